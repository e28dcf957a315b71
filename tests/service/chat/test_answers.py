"""Whole answers of `POST /v1/chat`: their shape, and how what goes wrong is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from engine.messages import Ended, GenerateRequest, TextDelta, TokenLogprob
from tests.service.asking import RED, ask, events
from tests.service.fake_engine import FakeEngine, Step, accepted, fails, finished
from tests.service.images.pictures import data_url, plain


def test_json_answer_has_openai_shape(api: httpx.Client) -> None:
    body = api.post("/v1/chat", json=ask(RED)).raise_for_status().json()
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["model"] == "test-reader"
    (choice,) = body["choices"]
    assert choice["message"] == {"role": "assistant", "content": "The total is 42.", "refusal": None}
    assert (choice["index"], choice["finish_reason"], choice["logprobs"]) == (0, "stop", None)


def test_kv_report_names_each_image(api: httpx.Client, engine: FakeEngine) -> None:
    blue = data_url(plain((0, 0, 255)))
    api.post("/v1/chat", json=ask(RED)).raise_for_status()
    report = api.post("/v1/chat", json=ask(RED, blue)).raise_for_status().json()["kv_report"]
    assert [image["outcome"] for image in report["images"]] == ["hit", "miss"]
    assert [image["tier"] for image in report["images"]] == ["memory", None]
    assert report["images"][0]["key"] == engine.requests[1].images[0].digest.hex()[:16]
    counts = ("visual_tokens", "reused_tokens", "compiled_tokens", "refreshed_tokens")
    assert [report[name] for name in counts] == [72, 32, 32, 8]
    assert report["timings"] == {"queue_ms": 1.0, "images_ms": 2.0, "ttft_ms": 3.0, "total_ms": 4.0}


@pytest.mark.parametrize("stream", [False, True])
def test_who_asks_is_told_of_every_visual_token(api: httpx.Client, stream: bool) -> None:
    asked = ask(RED, cache={"explain": True}, stream=stream)
    response = api.post("/v1/chat", json=asked).raise_for_status()
    body = events(response)[-2] if stream else response.json()
    (image,) = body["kv_report"]["images"]
    told = image["explained"]
    assert told["grid"] == [6, 6] and told["states"] == [2] * 4 + [1] * 32
    assert told["scores"][:2] == [2.5, 2.4167] and told["shares"] is None
    assert told["drift"] == [0.5] * 4 + [None] * 32
    unasked = api.post("/v1/chat", json=ask(RED, cache={"explain": False})).raise_for_status().json()
    assert unasked["kv_report"]["images"][0]["explained"] is None


def test_headers_tell_request_id_cache_and_timing(api: httpx.Client) -> None:
    first = api.post("/v1/chat", json=ask(RED), headers={"x-request-id": "mine-1"})
    second = api.post("/v1/chat", json=ask(RED))
    assert first.headers["x-request-id"] == "mine-1"
    assert second.headers["x-request-id"].startswith("req_")
    assert (first.headers["x-cache"], second.headers["x-cache"]) == ("miss", "hit")
    assert "ttft;dur=3.0" in first.headers["server-timing"]
    forged = api.post("/v1/chat", json=ask(), headers={"x-request-id": "a b\tc"})
    assert forged.headers["x-request-id"].startswith("req_")
    assert forged.headers["x-cache"] == "none"


@pytest.mark.parametrize("stream", [False, True])
def test_context_length_exceeded_is_a_400_before_any_byte(
    api: httpx.Client, engine: FakeEngine, stream: bool
) -> None:
    engine.script = fails("context_length_exceeded", "The prompt has 5000 tokens; the model takes 4096.")
    response = api.post("/v1/chat", json=ask(RED, stream=stream))
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "The prompt has 5000 tokens; the model takes 4096.",
        "type": "invalid_request_error",
        "param": None,
        "code": "context_length_exceeded",
    }


def test_f6_deadline_before_the_first_byte_is_a_504(start: Any, engine: FakeEngine) -> None:
    engine.script = lambda request: [3600.0]
    response = start(request_timeout=0.2).post("/v1/chat", json=ask(stream=True))
    assert (response.status_code, response.json()["error"]["code"]) == (504, "request_timeout")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("queue_full", 429),
        ("engine_stopped", 503),
        ("invalid_prompt", 400),
        ("invalid_sampling", 400),
        ("nonsense", 500),
    ],
)
def test_engine_failures_map_to_statuses(
    api: httpx.Client, engine: FakeEngine, code: str, status: int
) -> None:
    engine.script = fails(code)
    response = api.post("/v1/chat", json=ask(RED))
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert ("retry-after" in response.headers) == (status in (429, 503))


def test_logprobs_have_openai_shape(api: httpx.Client, engine: FakeEngine) -> None:
    tokens = (TokenLogprob("é", -0.5, (("é", -0.5), ("e", -1.0))), TokenLogprob("!", -0.1))
    engine.script = lambda request: [
        accepted(request),
        TextDelta(request.id, "é", tokens[:1]),
        TextDelta(request.id, "!", tokens[1:]),
        finished(request, 2),
    ]
    body = api.post("/v1/chat", json=ask(RED, logprobs=True, top_logprobs=2)).raise_for_status().json()
    first, second = body["choices"][0]["logprobs"]["content"]
    assert (first["token"], first["logprob"], first["bytes"]) == ("é", -0.5, [0xC3, 0xA9])
    assert [top["token"] for top in first["top_logprobs"]] == ["é", "e"]
    assert second["top_logprobs"] == []
    *chunks, _ = events(api.post("/v1/chat", json=ask(RED, logprobs=True, stream=True)))
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [item["content"][0]["token"] for item in streamed if item] == ["é", "!"]
    assert [request.sampling.logprobs for request in engine.requests] == [2, 0]


def test_logprobs_behind_the_text_are_not_lost(api: httpx.Client, engine: FakeEngine) -> None:
    held_back = (TokenLogprob("\n", -0.2), TokenLogprob("Q:", -0.3))
    engine.script = lambda request: [
        accepted(request),
        TextDelta(request.id, "yes", (TokenLogprob("yes", -0.1),)),
        replace(finished(request, 3), logprobs=held_back),
    ]
    asked = ask(RED, logprobs=True, stop="Q:")
    (choice,) = api.post("/v1/chat", json=asked).raise_for_status().json()["choices"]
    assert [item["token"] for item in choice["logprobs"]["content"]] == ["yes", "\n", "Q:"]
    *_, closing, done = events(api.post("/v1/chat", json={**asked, "stream": True}))
    (choice,) = closing["choices"]
    assert (choice["finish_reason"], done) == ("stop", "[DONE]")
    assert [item["token"] for item in choice["logprobs"]["content"]] == ["\n", "Q:"]


def test_f23_log_probabilities_of_an_empty_answer_are_an_empty_list(
    api: httpx.Client, engine: FakeEngine
) -> None:
    engine.script = lambda request: [accepted(request), finished(request, 0)]
    (choice,) = api.post("/v1/chat", json=ask(logprobs=True)).raise_for_status().json()["choices"]
    assert choice["logprobs"] == {"content": [], "refusal": None}
    (choice,) = api.post("/v1/chat", json=ask()).raise_for_status().json()["choices"]
    assert choice["logprobs"] is None


def test_several_answers_are_choices_by_their_number(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = two_answers
    body = api.post("/v1/chat", json=ask(RED, n=2)).raise_for_status().json()
    assert [
        (choice["index"], choice["message"]["content"], choice["finish_reason"]) for choice in body["choices"]
    ] == [(0, "left first", "length"), (1, "right", "stop")]
    assert engine.requests[0].answers == 2


def test_the_stream_of_several_answers_says_whose_text_it_is(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = two_answers
    *chunks, done = events(api.post("/v1/chat", json=ask(RED, n=2, stream=True)))
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [
        (choice["index"], choice["delta"].get("content"), choice["finish_reason"]) for choice in choices
    ] == [
        (0, "", None),
        (1, "", None),
        (0, "left", None),
        (1, "right", None),
        (1, None, "stop"),
        (0, " first", None),
        (0, None, "length"),
    ]
    assert ["kv_report" in chunk for chunk in chunks] == [False] * 6 + [True]
    assert done == "[DONE]"


def two_answers(request: GenerateRequest) -> list[Step]:
    """The first ends last."""
    return [
        accepted(request),
        TextDelta(request.id, "left", index=0),
        TextDelta(request.id, "right", index=1),
        Ended(request.id, "stop", index=1),
        TextDelta(request.id, " first", index=0),
        replace(finished(request, 3), reason="length", index=0),
    ]
