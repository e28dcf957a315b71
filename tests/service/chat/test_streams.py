"""Streams of `POST /v1/chat`: chunks, the one error event, pings, and the end."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from engine.messages import Failed, TextDelta
from tests.service.asking import RED, ask, events
from tests.service.fake_engine import FakeEngine, accepted, finished
from tests.service.serving import eventually


@pytest.mark.parametrize("path", ["/v1/chat", "/v1/chat/completions"])
def test_stream_has_openai_chunks(api: httpx.Client, path: str) -> None:
    response = api.post(path, json=ask(RED, stream=True))
    *chunks, done = events(response)
    assert done == "[DONE]"
    assert {(c["id"], c["created"], c["object"], c["model"]) for c in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], "chat.completion.chunk", "test-reader")
    }
    deltas = [c["choices"][0]["delta"] for c in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert "".join(d["content"] for d in deltas[1:-1]) == "The total is 42."
    assert deltas[-1] == {}
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert all("usage" not in c for c in chunks)
    assert chunks[-1]["kv_report"]["images"][0]["outcome"] == "miss"
    assert response.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize("usage", [False, True])
def test_text_arrives_as_the_engine_said_it(api: httpx.Client, engine: FakeEngine, usage: bool) -> None:
    pieces = ['"quoted" \\ ', "two\n\nlines\r", "nul \0", "\u2028 \x7f", "äöü 🦉", '\\u0000"},{"']
    engine.script = lambda request: [
        accepted(request),
        *(TextDelta(request.id, piece) for piece in pieces),
        finished(request, len(pieces)),
    ]
    options = {"stream_options": {"include_usage": True}} if usage else {}
    answer = events(api.post("/v1/chat", json=ask(RED, stream=True, **options)))
    opening, *texts = answer[: 1 + len(pieces)]
    assert [chunk["choices"][0]["delta"]["content"] for chunk in texts] == pieces
    assert all(chunk.keys() == opening.keys() for chunk in texts)


def test_f18_usage_chunk_is_exact(api: httpx.Client) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for outcome in ("miss", "hit"):
        *chunks, usage, done = events(api.post("/v1/chat", json=ask(RED, **options)))
        assert done == "[DONE]"
        assert usage["choices"] == []
        assert all(c["usage"] is None for c in chunks)
        assert chunks[-1]["kv_report"]["images"][0]["outcome"] == outcome
        used = usage["usage"]
        details = used["prompt_tokens_details"]
        assert used["total_tokens"] == used["prompt_tokens"] + used["completion_tokens"]
        assert details["image_tokens"] + details["text_tokens"] == used["prompt_tokens"]
        assert 0 <= details["cached_tokens"] <= used["prompt_tokens"]
        assert details["cache_write_tokens"] == (36 if outcome == "miss" else 0)
    body = api.post("/v1/chat", json=ask(RED)).json()
    assert body["usage"] == used


def test_f5_failure_in_a_stream_is_one_error_event(api: httpx.Client, engine: FakeEngine) -> None:
    nasty = 'a "quote",\na line break and \u2028'
    engine.script = lambda request: [
        accepted(request),
        *(TextDelta(request.id, word) for word in ("one ", "two ", "three")),
        Failed(request.id, "internal_error", nasty),
    ]
    *chunks, error, done = events(api.post("/v1/chat", json=ask(RED, stream=True)))
    assert done == "[DONE]"
    assert error == {
        "error": {"message": nasty, "type": "server_error", "param": None, "code": "internal_error"}
    }
    assert "".join(c["choices"][0]["delta"]["content"] for c in chunks) == "one two three"
    assert 'conduit_requests_total{outcome="internal_error"}' in api.get("/metrics").text


def test_f5_exception_of_the_engine_does_not_show_its_text(api: httpx.Client, engine: FakeEngine) -> None:
    secret = RuntimeError("/home/somebody/weights at 0x7f00")
    engine.script = lambda request: [accepted(request), TextDelta(request.id, "one"), secret]
    *_, error, done = events(api.post("/v1/chat", json=ask(RED, stream=True)))
    assert done == "[DONE]"
    assert error["error"]["code"] == "internal_error"
    assert "0x" not in error["error"]["message"] and "/" not in error["error"]["message"]
    plain_answer = api.post("/v1/chat", json=ask(RED))
    assert plain_answer.status_code == 500
    assert "0x" not in plain_answer.text


def test_stream_without_terminal_event_ends_as_an_error(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [accepted(request), TextDelta(request.id, "one")]
    *_, error, done = events(api.post("/v1/chat", json=ask(RED, stream=True)))
    assert (error["error"]["code"], done) == ("internal_error", "[DONE]")


def test_f6_ping_while_nothing_comes(start: Any, engine: FakeEngine) -> None:
    engine.script = lambda request: [
        accepted(request),
        0.5,
        TextDelta(request.id, "late"),
        finished(request, 1),
    ]
    response = start(ping_interval=0.05).post("/v1/chat", json=ask(RED, stream=True))
    assert response.text.count(": ping\n\n") >= 2
    assert events(response)[-1] == "[DONE]"


def test_f6_deadline_ends_a_stream_with_an_error(start: Any, engine: FakeEngine) -> None:
    engine.script = lambda request: [accepted(request), TextDelta(request.id, "one"), 3600.0]
    *_, error, done = events(start(request_timeout=0.3).post("/v1/chat", json=ask(stream=True)))
    assert (error["error"]["code"], done) == ("request_timeout", "[DONE]")
    eventually(lambda: (engine.open, engine.aborted) == (0, 1), "the request ends in the engine")
