"""JSON that is written while it comes is the JSON that it would have been."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.responses import JSONResponse

from service.http.written_json import WrittenList, WrittenResponse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def written(items: list[Any]) -> WrittenList:
    found = WrittenList()
    found += items
    return found


@given(st.dictionaries(st.text(), VALUES, max_size=3), st.lists(st.lists(VALUES, max_size=4), max_size=3))
def test_it_is_what_the_encoder_would_have_made_of_it(around: dict[str, Any], lists: list[list[Any]]) -> None:
    plain = {**around, "lists": [{"content": items} for items in lists], "end": 1}
    long = {**around, "lists": [{"content": written(items)} for items in lists], "end": 1}
    response = WrittenResponse(long)
    assert response.body == JSONResponse(plain).body
    assert json.loads(bytes(response.body)) == json.loads(json.dumps(plain))
    assert response.headers["content-length"] == str(len(response.body))
    assert response.headers["content-type"] == "application/json"


def test_the_first_of_its_items_are_a_list_too() -> None:
    items = ["a", {"b": 1}, None]
    for count in (0, 1, 3, 9, None):
        found = written(items).first(count)
        assert len(found) == len(items[:count])
        assert WrittenResponse(found).body == JSONResponse(items[:count]).body


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}])
def test_what_is_no_json_is_refused(value: object) -> None:
    for make in (lambda: WrittenResponse({"x": value}), lambda: written([value])):
        with pytest.raises((TypeError, ValueError)):
            make()


def test_what_was_written_while_it_came_takes_no_time_at_the_end() -> None:
    """Against the same answer encoded at once, in processor time."""
    token = {"token": "abc", "logprob": -1.25, "bytes": [97, 98, 99]}
    items = [{**token, "top_logprobs": [token] * 20}] * 1000
    kept = written(items)
    at_once = min(_seconds(lambda: JSONResponse({"content": items})) for _ in range(3))
    assert min(_seconds(lambda: WrittenResponse({"content": kept})) for _ in range(3)) < at_once / 5


def _seconds(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started
