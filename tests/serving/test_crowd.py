"""What the users of these tests make of a stream."""

from __future__ import annotations

import httpx
import pytest

from tests.serving.crowd import streaming

ROLE = 'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
FAILED = 'data: {"error":{"message":"the worker ended","code":"engine_stopped"}}\n\n'
DONE = "data: [DONE]\n\n"


def api(*events: str) -> httpx.Client:
    answer = httpx.Response(200, text="".join(events))
    return httpx.Client(base_url="http://service", transport=httpx.MockTransport(lambda _: answer))


def test_a_stream_that_fails_before_its_first_text_is_told_as_that() -> None:
    with pytest.raises(AssertionError, match="before any text"), streaming(api(ROLE, FAILED, DONE), {}):
        pass


def test_what_comes_behind_the_first_text_is_handed_on() -> None:
    text = 'data: {"choices":[{"delta":{"content":"x"}}]}\n\n'
    with streaming(api(ROLE, text, DONE), {}) as lines:
        assert list(lines) == [DONE.strip()]
