"""What is said of a fault in a body: the first one, at its place, with what may stand there."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request

from service.chat.schemas import ChatRequest
from service.errors import RequestError, UnavailableError
from service.http.error_handlers import _service_error
from service.http.tenancy import namespace, presented_key
from service.http.validation import validated


def fault(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        validated({"prompt": "x", **fields}, ChatRequest)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": -1}, "temperature", "must be at least 0"),
        ({"temperature": 3, "top_p": 3}, "temperature", "must be at most 2"),
        ({"top_p": 0}, "top_p", "must be greater than 0"),
        ({"seed": 2**63}, "seed", f"must be less than {2**63}"),
        ({"stop": ["a"] * 5}, "stop", "must be at most 4 items long"),
        ({"stop": ""}, "stop", "must be at least 1 characters long"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "must be the number of a token"),
        ({"metadata": {"k" * 65: "v"}}, None, "must be at most 64 characters long"),
        ({"n": "1"}, "n", "must be an integer"),
        ({"temprature": 1}, "temprature", "did you mean 'temperature'?"),
    ],
)
def test_a_fault_is_named_by_its_place_and_by_what_may_stand_there(
    fields: dict[str, Any], param: str | None, words: str
) -> None:
    error = fault(**fields)
    assert words in error.message
    assert param is None or error.param == param
    assert "[key]" not in error.message and "@" not in error.message


def test_a_name_of_the_top_is_no_hint_for_one_inside() -> None:
    error = fault(cache={"temprature": 1})
    assert (error.code, error.param) == ("unknown_parameter", "cache.temprature")
    assert "leave it out" in error.message


def test_a_bearer_key_goes_before_another_header() -> None:
    assert presented_key({"authorization": "Bearer mine", "x-api-key": "other"}) == "mine"
    assert presented_key({"authorization": "Basic mine", "x-api-key": "other"}) == "other"
    assert presented_key({"authorization": "Bearer ", "x-api-key": ""}) is None


def test_an_empty_salt_is_a_salt() -> None:
    assert len({namespace("alice", salt) for salt in (None, "", "x")}) == 3
    assert len(namespace("alice", "x").removeprefix("alice+")) == 32


@pytest.mark.parametrize(("seconds", "header"), [(0.01, "1"), (1.0, "1"), (2.6, "3")])
def test_who_is_told_to_come_back_is_told_a_whole_second_at_least(seconds: float, header: str) -> None:
    error = UnavailableError("queue_full", "Try again later.", retry_after=seconds)
    request = Request(
        {"type": "http", "method": "POST", "path": "/v1/chat", "headers": [], "server": ("x", 80)}
    )
    answer = asyncio.run(_service_error(request, error))
    assert answer.headers["retry-after"] == header
