"""`POST /v1/chat`: dialects, shapes, streaming."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from engine.messages import Failed, ImagePart, TextDelta, TextPart, TokenLogprob
from tests.service.fake_engine import FakeEngine, accepted, fails, finished
from tests.service.images.pictures import data_url, plain
from tests.service.serving import eventually

QUESTION = "What is the total?"
RED = data_url(plain())


def ask(*images: str, **fields: Any) -> dict[str, Any]:
    return {"prompt": QUESTION, "images": list(images), **fields}


def user(content: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}]}


def events(response: httpx.Response) -> list[Any]:
    """The data of a finished stream; `[DONE]` as the text it is."""
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


def events_of(text: str) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
    return [line if line == "[DONE]" else json.loads(line) for line in lines]


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


RAW = base64.b64encode(plain()).decode()
IMAGE_DIALECTS = {
    "openai": {"type": "image_url", "image_url": {"url": RED, "detail": "high"}},
    "bare string": {"type": "image_url", "image_url": RED},
    "responses": {"type": "input_image", "image_url": RED},
    "anthropic base64": {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/jpeg", "data": RAW},
    },
    "anthropic data url": {"type": "image", "source": {"type": "url", "url": RED}},
    "anthropic cached": {
        "type": "image",
        "source": {"type": "base64", "data": RAW},
        "cache_control": {"type": "ephemeral"},
    },
}


@pytest.mark.parametrize("block", IMAGE_DIALECTS.values(), ids=IMAGE_DIALECTS.keys())
def test_image_dialects_mean_the_same(api: httpx.Client, engine: FakeEngine, block: dict[str, Any]) -> None:
    body = user([{"type": "text", "text": QUESTION}, block])
    api.post("/v1/chat", json=body).raise_for_status()
    api.post("/v1/chat", json=ask(RED)).raise_for_status()
    dialect, shorthand = engine.requests
    assert dialect.messages[0].parts == (TextPart(QUESTION), ImagePart(0))
    assert shorthand.messages[0].parts == (ImagePart(0), TextPart(QUESTION))
    assert dialect.images == shorthand.images
    assert (dialect.images[0].width, dialect.images[0].height) == (8, 6)


def test_turns_roles_and_order_reach_the_engine(api: httpx.Client, engine: FakeEngine) -> None:
    blue = data_url(plain((0, 0, 255)))
    messages = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "First:"}, {"type": "image_url", "image_url": RED}],
        },
        {"role": "assistant", "content": "Seen."},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": blue}, {"type": "text", "text": "And this?"}],
        },
    ]
    api.post("/v1/chat", json={"messages": messages}).raise_for_status()
    (request,) = engine.requests
    assert [message.role for message in request.messages] == ["system", "user", "assistant", "user"]
    assert request.messages[1].parts == (TextPart("First:"), ImagePart(0))
    assert request.messages[3].parts == (ImagePart(1), TextPart("And this?"))
    assert [image.pixels[:3] for image in request.images] == [bytes((200, 30, 30)), bytes((0, 0, 255))]


def test_same_image_twice_is_decoded_once(start: Any, engine: FakeEngine) -> None:
    api = start()
    api.post("/v1/chat", json=ask(RED, RED)).raise_for_status()
    first, second = engine.requests[0].images
    assert first is second
    assert "conduit_image_decode_seconds_count 1.0" in api.get("/metrics").text


def test_sampling_and_cache_options_reach_the_engine(api: httpx.Client, engine: FakeEngine) -> None:
    cache = {"mode": "read", "policy": "reuse", "refresh_ratio": 0, "refine": 16}
    cache |= {"options": {"preset": "paper"}}
    asked = ask(RED, max_tokens=5, temperature=0.7, top_p=0.9, seed=3, stop=["a", "b"], cache=cache)
    api.post("/v1/chat", json=asked).raise_for_status()
    (request,) = engine.requests
    sampling, options = request.sampling, request.cache
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.seed) == (5, 0.7, 0.9, 3)
    assert sampling.stop == ("a", "b")
    assert (options.mode, options.policy, options.refresh_ratio, options.refine) == ("read", "reuse", 0, 16)
    assert dict(options.options) == {"preset": "paper"}


def test_default_is_greedy_without_a_token_limit(api: httpx.Client, engine: FakeEngine) -> None:
    api.post("/v1/chat", json=ask(RED)).raise_for_status()
    sampling = engine.requests[0].sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.stop) == (None, 0.0, 1.0, ())


@pytest.mark.parametrize(
    "no_op", [{"tools": []}, {"n": 1}, {"logprobs": False}, {"presence_penalty": 0.0}, {"tools": None}]
)
def test_values_that_change_nothing_are_let_through(api: httpx.Client, no_op: dict[str, Any]) -> None:
    api.post("/v1/chat", json=ask(RED, **no_op)).raise_for_status()


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
    *_, error, done = events(start(request_timeout=0.3).post("/v1/chat", json=ask(RED, stream=True)))
    assert (error["error"]["code"], done) == ("request_timeout", "[DONE]")
    eventually(lambda: (engine.open, engine.aborted) == (0, 1), "the request ends in the engine")


def test_f6_deadline_before_the_first_byte_is_a_504(start: Any, engine: FakeEngine) -> None:
    engine.script = lambda request: [3600.0]
    response = start(request_timeout=0.2).post("/v1/chat", json=ask(RED, stream=True))
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


def test_filters_penalties_and_bias_reach_the_engine(api: httpx.Client, engine: FakeEngine) -> None:
    asked = {
        "top_k": 5,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": -1,
        "frequency_penalty": 0.5,
    }
    api.post("/v1/chat", json=ask(RED, **asked, logit_bias={"17": -100})).raise_for_status()
    api.post("/v1/chat", json=ask(RED, top_k=-1)).raise_for_status()
    sampling = engine.requests[0].sampling
    assert {name: getattr(sampling, name) for name in asked} == asked
    assert sampling.logit_bias == ((17, -100.0),)
    assert engine.requests[1].sampling.top_k == 0


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


def test_priority_and_who_asks_reach_the_engine(start: Any, engine: FakeEngine) -> None:
    api = start(api_keys="alice:sk-alice-1")
    headers = {"authorization": "Bearer sk-alice-1"}
    for fields in ({}, {"priority": 7, "cache": {"salt": "one"}}, {"priority": 100, "cache_salt": "two"}):
        api.post("/v1/chat", json=ask(RED, **fields), headers=headers).raise_for_status()
    assert [request.priority for request in engine.requests] == [0, 7, 100]
    assert [request.account for request in engine.requests] == ["alice"] * 3
    assert len({request.tenant for request in engine.requests}) == 3, "salts split the store, not the share"


def test_nobody_pushes_ahead_of_others_where_callers_have_keys(start: Any, engine: FakeEngine) -> None:
    ahead = ask(RED, priority=-100)
    refused = start(api_keys="alice:sk-alice-1").post(
        "/v1/chat", json=ahead, headers={"authorization": "Bearer sk-alice-1"}
    )
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")
    start().post("/v1/chat", json=ahead).raise_for_status()
    assert [request.priority for request in engine.requests] == [-100]


@pytest.mark.parametrize(
    ("cache", "seconds"),
    [
        ({"pin": True}, 1800),
        ({"pin": True, "ttl": 60, "mode": "rewrite"}, 60),
        ({"pin": True, "ttl": None}, 1800),
        ({"pin": False}, None),
        ({"pin": False, "mode": "bypass"}, None),
        ({"pin": None}, None),
        ({}, None),
    ],
)
def test_pins_reach_the_engine(
    api: httpx.Client, engine: FakeEngine, cache: dict[str, Any], seconds: float | None
) -> None:
    api.post("/v1/chat", json=ask(RED, cache=cache)).raise_for_status()
    assert engine.requests[0].cache.pin_seconds == seconds


def test_engine_is_told_how_long_it_has(start: Any, engine: FakeEngine) -> None:
    start(request_timeout=100.0).post("/v1/chat", json=ask(RED)).raise_for_status()
    given = engine.requests[0].timeout_seconds
    assert given is not None and 0 < given <= 100
