"""Several users of one service, the real one in processes of its own: they do not disturb one another, and one who
leaves, or is sent away, leaves nothing behind."""

from __future__ import annotations

import os
import signal
from typing import Any

import httpx
import pytest
from openai import OpenAI

from demo.asking import ask
from tests.serving.crowd import (
    Service,
    asking,
    endless,
    ends_with_one_error,
    metric,
    nothing_is_left,
    questions,
    running,
    streaming,
    together,
    until,
)

GONE = 'conduit_requests_total{outcome="client_gone"}'


def test_concurrent_streams_answer_exactly_as_alone(service: Service, api: httpx.Client) -> None:
    """First all at once over an empty store, then one after the other over what that left there."""
    asked = questions(service.url, 8, seed=1)
    crowded = together(service, asked)
    alone = [ask(api, body) for body in asked]
    assert [(a.text, a.usage["completion_tokens"]) for a in crowded] == [
        (a.text, a.usage["completion_tokens"]) for a in alone
    ]
    assert len({answer.text for answer in alone}) > 4, "answers that were mixed up would show"
    assert {image["outcome"] for answer in alone for image in answer.report["images"]} == {"hit"}
    nothing_is_left(api)


@pytest.mark.parametrize("stream", [True, False])
def test_f3_a_client_that_leaves_frees_its_place_while_another_stream_goes_on(
    service: Service, api: httpx.Client, stream: bool
) -> None:
    """Both answers are equally long, so a place that is free while the other stream runs was freed by the leaving."""
    ours, theirs = map(endless, questions(service.url, 2, seed=2))
    gone = metric(api, GONE)
    with streaming(api, ours) as lines:
        with asking(api, {**theirs, "stream": stream}):
            until(lambda: running(api) == 2, "both run")
        until(lambda: running(api) == 1, "the place is free")
        assert '"finish_reason":null' in next(lines)
    until(lambda: metric(api, GONE) == gone + 2, "both are counted")
    nothing_is_left(api)


def test_the_stock_openai_client_streams_the_same_answer(service: Service, api: httpx.Client) -> None:
    (asked,) = questions(service.url, 1, seed=3)
    plain = api.post("/v1/chat", json=asked).json()
    with (
        OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0) as sdk,
        sdk.chat.completions.create(
            model=model_of(api), stream=True, stream_options={"include_usage": True}, **asked
        ) as stream,
    ):
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text_of(plain)
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == plain["usage"]["completion_tokens"]
    report = next(c.model_extra["kv_report"] for c in chunks if c.model_extra)
    assert [image["outcome"] for image in report["images"]] == ["hit", "hit"]
    nothing_is_left(api)


def model_of(api: httpx.Client) -> str:
    name: str = api.get("/v1/models").json()["data"][0]["id"]
    return name


def text_of(completion: dict[str, Any]) -> str:
    text: str = completion["choices"][0]["message"]["content"]
    return text


def test_f5_a_stream_that_outlives_the_service_ends_with_one_error_event(
    service: Service, api: httpx.Client
) -> None:
    """Last in this file: it stops the service, and whoever comes next has to start it again."""
    (asked,) = questions(service.url, 1, seed=4)
    with streaming(api, endless(asked)) as lines:
        os.kill(service.pid, signal.SIGTERM)
        ends_with_one_error(list(lines), "engine_stopped")
    service.stop()
    assert not service.running
