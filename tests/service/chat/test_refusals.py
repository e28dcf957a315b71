"""What `POST /v1/chat` refuses, in which words, and that nothing of it reaches the engine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import EngineError
from service.chat.message_schemas import MAX_TEXT
from service.chat.schemas import UNSUPPORTED, ChatRequest
from service.errors import ERROR_TABLE, RequestError
from service.http.json_reader import JsonLimits, JsonReader
from service.http.validation import validated
from tests.service.asking import RED, refused, user
from tests.service.fake_engine import FakeEngine, fails
from tests.service.serving import eventually

TEXT = {"type": "text", "text": "What is it?"}


CASES: dict[str, tuple[dict[str, Any], str, str | None]] = {
    "nothing": ({}, "invalid_request", "messages"),
    "both": (user("x", prompt="x"), "invalid_request", "messages"),
    "images beside messages": (user("x", images=[RED]), "invalid_request", "images"),
    "unknown field": (user("x", temprature=1), "unknown_parameter", "temprature"),
    "unknown in part": (user([{**TEXT, "colour": 1}]), "unknown_parameter", "messages[0].content[0].colour"),
    "unknown in cache": (user("x", cache={"moed": "auto"}), "unknown_parameter", "cache.moed"),
    "unknown, like a tag": (user("x", **{"@text": None}), "unknown_parameter", "@text"),
    "unknown, like a mark": (user("x", cache={"[key]": 1}), "unknown_parameter", "cache.[key]"),
    "id in cache": (user("x", cache={"id": "page-1"}), "unsupported_parameter", "cache.id"),
    "ttl alone": (user("x", cache={"ttl": 5}), "invalid_request", "cache.ttl"),
    "ttl without a pin": (user("x", cache={"ttl": 5, "pin": False}), "invalid_request", "cache.ttl"),
    "no ttl": (user("x", cache={"ttl": 0, "pin": True}), "invalid_request", "cache.ttl"),
    "ttl beyond a day": (user("x", cache={"ttl": 86_401, "pin": True}), "invalid_request", "cache.ttl"),
    "pin by word": (user("x", cache={"pin": "soft"}), "invalid_request", "cache.pin"),
    "pin of nothing": (user("x", cache={"pin": True, "mode": "bypass"}), "invalid_request", "cache.pin"),
    "pin, only read": (user("x", cache={"pin": True, "mode": "read"}), "invalid_request", "cache.pin"),
    "retention by another name": (
        user("x", prompt_cache_retention="in-memory"),
        "invalid_request",
        "prompt_cache_retention",
    ),
    "retention of nothing": (
        user("x", prompt_cache_retention="24h", cache={"mode": "bypass"}),
        "invalid_request",
        "prompt_cache_retention",
    ),
    "endless cache key": (user("x", prompt_cache_key="x" * 1025), "invalid_request", "prompt_cache_key"),
    "early": (user("x", priority=-101), "invalid_request", "priority"),
    "half a priority": (user("x", priority=0.5), "invalid_request", "priority"),
    "old functions": (user("x", functions=[{"name": "f"}]), "unsupported_parameter", "functions"),
    "a form of another kind": (
        user("x", response_format={"type": "grammar"}),
        "invalid_request",
        "response_format",
    ),
    "a schema without a name": (
        user("x", response_format={"type": "json_schema", "json_schema": {"schema": {}}}),
        "missing_parameter",
        "response_format.json_schema.name",
    ),
    "an endless schema": (
        user("x", structured_outputs={"json": {"description": "x" * 200_000}}),
        "invalid_request",
        "structured_outputs.json",
    ),
    "two forms at once": (
        user("x", structured_outputs={"regex": "a", "choice": ["b"]}),
        "invalid_request",
        "structured_outputs",
    ),
    "two forms in two words": (
        user("x", structured_outputs={"regex": "a"}, response_format={"type": "json_object"}),
        "invalid_request",
        "structured_outputs",
    ),
    "a choice of nothing": (
        user("x", structured_outputs={"choice": []}),
        "invalid_request",
        "structured_outputs.choice",
    ),
    "top_logprobs alone": (user("x", top_logprobs=3), "invalid_request", "top_logprobs"),
    "many top_logprobs": (user("x", logprobs=True, top_logprobs=21), "invalid_request", "top_logprobs"),
    "bias by word": (user("x", logit_bias={"cat": 1}), "invalid_request", "logit_bias.cat"),
    "bias on everything": (
        user("x", logit_bias={str(token): 1 for token in range(1025)}),
        "invalid_request",
        "logit_bias",
    ),
    "penalty": (user("x", presence_penalty=3), "invalid_request", "presence_penalty"),
    "a name of two words": (
        {"messages": [{"role": "user", "content": "x", "name": "Al B"}]},
        "invalid_request",
        "messages[0].name",
    ),
    "an answer that is begun to nothing": (
        {"messages": [{"role": "assistant", "content": "Well"}]},
        "invalid_prompt",
        "messages",
    ),
    "two answers that are begun": (
        {"messages": [{"role": "user", "content": "x"}, *({"role": "assistant", "content": "Well"},) * 2]},
        "invalid_prompt",
        "messages",
    ),
    "a list for the template": (
        user("x", chat_template_kwargs={"a": []}),
        "invalid_request",
        "chat_template_kwargs.a",
    ),
    "nine choices": (user("x", n=9), "invalid_request", "n"),
    "a stop token below zero": (user("x", stop_token_ids=[-1]), "invalid_request", "stop_token_ids[0]"),
    "many stop tokens": (user("x", stop_token_ids=[1] * 65), "invalid_request", "stop_token_ids"),
    "more than the most": (user("x", min_tokens=9, max_tokens=8), "invalid_request", "min_tokens"),
    "a form without end": (
        user("x", ignore_eos=True, response_format={"type": "json_object"}),
        "invalid_request",
        "ignore_eos",
    ),
    "a true choice": (user("x", n=True), "invalid_request", "n"),
    "no choice": (user("x", n=0), "invalid_request", "n"),
    "true tokens": (user("x", max_tokens=True), "invalid_request", "max_tokens"),
    "no obfuscation by number": (
        user("x", stream=True, stream_options={"include_obfuscation": 0}),
        "invalid_request",
        "stream_options.include_obfuscation",
    ),
    "an option that is a list": (
        user("x", cache={"options": {"preset": ["paper"]}}),
        "invalid_request",
        "cache.options.preset",
    ),
    "a long option": (
        user("x", cache={"options": {"preset": "p" * 257}}),
        "invalid_request",
        "cache.options.preset",
    ),
    "many options": (
        user("x", cache={"options": {str(i): 1 for i in range(33)}}),
        "invalid_request",
        "cache.options",
    ),
    "a long model": (user("x", model="m" * 1025), "invalid_request", "model"),
    "a long user": (user("x", user="u" * 1025), "invalid_request", "user"),
    "a long stop": (user("x", stop="s" * 1025), "invalid_request", "stop"),
    "much metadata": (user("x", metadata={str(i): "v" for i in range(17)}), "invalid_request", "metadata"),
    "long metadata": (user("x", metadata={"k": "v" * 513}), "invalid_request", "metadata.k"),
    "metadata under a long name": (
        user("x", metadata={"k" * 65: "v"}),
        "invalid_request",
        "metadata." + "k" * 64,
    ),
    "a long text": (user("x" * (MAX_TEXT + 1)), "invalid_request", "messages[0].content"),
    "many parts": (user([TEXT] * 2049), "invalid_request", "messages[0].content"),
    "bias by another script's digits": (user("x", logit_bias={"٣": 1}), "invalid_request", "logit_bias.٣"),
    "null for the user": (user(None), "invalid_prompt", "messages[0].content"),
    "text temperature": (user("x", temperature="hot"), "invalid_request", "temperature"),
    "boolean temperature": (user("x", temperature=True), "invalid_request", "temperature"),
    "high temperature": (user("x", temperature=2.5), "invalid_request", "temperature"),
    "no tokens": (user("x", max_tokens=0), "invalid_request", "max_tokens"),
    "half a token": (user("x", max_tokens=1.5), "invalid_request", "max_tokens"),
    "two limits": (
        user("x", max_tokens=1, max_completion_tokens=2),
        "invalid_request",
        "max_completion_tokens",
    ),
    "five stops": (user("x", stop=["a"] * 5), "invalid_request", "stop"),
    "empty stop": (user("x", stop=""), "invalid_request", "stop"),
    "huge seed": (user("x", seed=2**63), "invalid_request", "seed"),
    "ratio": (user("x", cache={"refresh_ratio": 1.01}), "invalid_request", "cache.refresh_ratio"),
    "negative refine": (user("x", cache={"refine": -1}), "invalid_request", "cache.refine"),
    "large refine": (user("x", cache={"refine": 4097}), "invalid_request", "cache.refine"),
    "refine in halves": (user("x", cache={"refine": 0.5}), "invalid_request", "cache.refine"),
    "mode": (user("x", cache={"mode": "never"}), "invalid_request", "cache.mode"),
    "policy": (user("x", cache={"policy": "paper"}), "unknown_policy", "cache.policy"),
    "salts": (user("x", cache_salt="a", cache={"salt": "b"}), "invalid_request", "cache_salt"),
    "usage without stream": (
        user("x", stream_options={"include_usage": True}),
        "invalid_request",
        "stream_options",
    ),
    "role": ({"messages": [{"role": "critic", "content": "x"}]}, "invalid_request", "messages[0].role"),
    "no role": ({"messages": [{"content": "x"}]}, "missing_parameter", "messages[0].role"),
    "number as content": (user(5), "invalid_request", "messages[0].content"),
    "unknown part": (user([{"type": "video_url"}]), "invalid_request", "messages[0].content[0]"),
    "part without type": (user([{"text": "x"}]), "invalid_request", "messages[0].content[0]"),
    "an unknown detail": (
        user([{"type": "image_url", "image_url": {"url": RED, "detail": "tiny"}}]),
        "invalid_request",
        "messages[0].content[0].image_url.detail",
    ),
    "null url": (
        user([{"type": "image_url", "image_url": None}]),
        "invalid_request",
        "messages[0].content[0].image_url",
    ),
    "f7 no messages": ({"messages": []}, "invalid_request", "messages"),
    "f7 empty text": (user(""), "invalid_prompt", "messages[0].content"),
    "f7 no parts": (user([]), "invalid_prompt", "messages[0].content"),
    "f7 blank": (user(" \n\t"), "invalid_prompt", "messages[0].content"),
    "f7 blank part": (user([{"type": "text", "text": " "}]), "invalid_prompt", "messages[0].content"),
    "f7 empty prompt": ({"prompt": ""}, "invalid_prompt", "prompt"),
    "assistant last": ({"messages": [{"role": "assistant", "content": "x"}]}, "invalid_prompt", "messages"),
    "f16 id instead of the image": (
        user([{"type": "image_url", "image_url": None, "uuid": "page-1"}]),
        "invalid_request",
        "messages[0].content[0].image_url",
    ),
    "f16 id beside the image": (
        user([{"type": "image_url", "image_url": {"url": RED}, "uuid": "page-1"}]),
        "unknown_parameter",
        "messages[0].content[0].uuid",
    ),
    "d10 tensors": (
        user([{"type": "image_embeds", "image_embeds": "gASV"}]),
        "invalid_request",
        "messages[0].content[0]",
    ),
}


@pytest.mark.parametrize(("body", "code", "param"), CASES.values(), ids=CASES.keys())
def test_refused(
    api: httpx.Client, engine: FakeEngine, body: dict[str, Any], code: str, param: str | None
) -> None:
    error = refused(api.post("/v1/chat", json=body), 400, code)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert engine.requests == []
    api.post("/v1/chat", json={"prompt": "still there?"}).raise_for_status()


def test_who_names_an_unknown_policy_is_told_the_known_ones(api: httpx.Client) -> None:
    body = user("x", cache={"policy": "paper"})
    error = refused(api.post("/v1/chat", json=body), 400, "unknown_policy")
    assert "choose from conduit, full, reuse" in error["message"]


def test_model_of_another_name_is_a_404(api: httpx.Client) -> None:
    error = refused(api.post("/v1/chat", json={"prompt": "x", "model": "gpt-4o"}), 404, "model_not_found")
    assert error["param"] == "model"
    for name in ("test-reader", "models/test-reader"):
        api.post("/v1/chat", json={"prompt": "x", "model": name}).raise_for_status()


def test_f10_image_limit_counts_all_turns(start: Any) -> None:
    api = start(max_images=3)

    def turns(*counts: int) -> dict[str, Any]:
        image = {"type": "image_url", "image_url": RED}
        return {"messages": [{"role": "user", "content": [TEXT, *([image] * count)]} for count in counts]}

    api.post("/v1/chat", json=turns(0)).raise_for_status()
    api.post("/v1/chat", json=turns(1, 2)).raise_for_status()
    error = refused(api.post("/v1/chat", json=turns(2, 2)), 400, "too_many_images")
    assert "4" in error["message"] and "3" in error["message"]
    assert error["param"] == "messages[1].content[2].image_url"


BODIES = {
    "empty": b"",
    "cut": b'{"messages": [{"role": "us',
    "text": b"What is it?",
    "nan": b'{"prompt": "x", "temperature": NaN}',
    "infinity": b'{"prompt": "x", "temperature": 1e999}',
    "deep list": b"[" * 100_000,
    "deep object": b'{"prompt":' * 10_000,
    "deep metadata": b'{"prompt": "x", "metadata": ' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
    "not utf-8": b'{"prompt": "\xff\xfe"}',
    "half a surrogate": b'{"prompt": "\\ud800"}',
    "list": b"[]",
    "null": b"null",
    "number": b"1e400",
    "huge integer": b'{"prompt": "x", "seed": ' + b"9" * 10_000 + b"}",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_malformed_body_is_a_400(api: httpx.Client, engine: FakeEngine, body: bytes) -> None:
    response = api.post("/v1/chat", content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    refused(response, 400, response.json()["error"]["code"])
    assert engine.requests == []
    api.post("/v1/chat", json={"prompt": "still there?"}).raise_for_status()


def test_body_that_is_not_json_by_its_type_is_a_415(api: httpx.Client) -> None:
    refused(api.post("/v1/chat", data={"prompt": "x"}), 415, "unsupported_media_type")


def test_null_byte_in_text_passes_through(api: httpx.Client, engine: FakeEngine) -> None:
    api.post("/v1/chat", json={"prompt": "a\0b"}).raise_for_status()
    assert engine.requests[0].messages[0].parts[0].text == "a\0b"  # type: ignore[union-attr]


@pytest.mark.parametrize("declared", [True, False])
def test_oversized_body_is_a_413(start: Any, engine: FakeEngine, declared: bool) -> None:
    api = start(max_body_bytes=4096)
    body = json.dumps({"prompt": "x" * 200_000}).encode()
    content = body if declared else (body[i : i + 1000] for i in range(0, len(body), 1000))
    response = api.post("/v1/chat", content=content, headers={"content-type": "application/json"})
    refused(response, 413, "request_too_large")
    api.post("/v1/chat", json={"prompt": "x"}).raise_for_status()


def test_unknown_names_are_cut_before_they_are_shown(api: httpx.Client) -> None:
    error = refused(api.post("/v1/chat", json=user("x", **{"a\n" * 5000: 1})), 400, "unknown_parameter")
    assert len(error["message"]) < 200 and "\n" not in error["message"]


def test_every_unsupported_name_is_refused_by_name(api: httpx.Client) -> None:
    for name in UNSUPPORTED:
        error = refused(
            api.post("/v1/chat", json=user("x", **{name: "something"})), 400, "unsupported_parameter"
        )
        assert error["param"] == name and name in error["message"]


def test_every_code_of_the_engine_has_a_status() -> None:
    only_at_start = {"unsupported_model", "tracing_unavailable"}
    codes = {error.code for error in _tree(EngineError)} - only_at_start
    assert len(codes) > 5
    assert codes <= set(ERROR_TABLE)


def _tree(kind: type[EngineError]) -> list[type[EngineError]]:
    return [kind, *(found for child in kind.__subclasses__() for found in _tree(child))]


def test_routes_that_do_not_exist_have_the_error_body(api: httpx.Client) -> None:
    refused(api.get("/v1/nothing"), 404, "not_found")
    refused(api.get("/v1/chat"), 405, "method_not_allowed")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
known_fields = st.sampled_from(sorted(ChatRequest.model_fields))


def parse(body: bytes) -> ChatRequest:
    reader = JsonReader(JsonLimits())
    reader.feed(body)
    return validated(reader.finish(), ChatRequest)


@given(st.dictionaries(known_fields | st.text(max_size=8), json_values, max_size=5))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_fuzz_any_json_parses_or_is_refused_with_a_known_code(body: dict[str, Any]) -> None:
    try:
        parse(json.dumps(body).encode())
    except RequestError as error:
        assert error.code in ERROR_TABLE
        assert "pydantic" not in error.message


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_fuzz_any_bytes_parse_or_are_refused(body: bytes) -> None:
    try:
        parse(body)
    except RequestError as error:
        assert error.code in ERROR_TABLE


@pytest.mark.slow
def test_body_of_100_mb_is_refused_and_life_goes_on(api: httpx.Client, engine: FakeEngine) -> None:
    piece = b" " * 2**20
    headers = {"content-type": "application/json"}
    response = api.post("/v1/chat", content=(piece for _ in range(100)), headers=headers)
    refused(response, 413, "request_too_large")
    eventually(lambda: api.get("/livez").status_code == 200, "still alive")


@pytest.mark.parametrize("stream", [False, True])
def test_f22_a_picture_that_the_model_refuses_is_named_as_others_are(
    api: httpx.Client, engine: FakeEngine, stream: bool
) -> None:
    engine.script = fails("invalid_image", "it is 3000 x 2 pixels; that is too narrow.", image=1)
    parts = [
        TEXT,
        {"type": "image_url", "image_url": {"url": RED}},
        {"type": "input_image", "image_url": RED},
    ]
    error = refused(api.post("/v1/chat", json=user(parts, stream=stream)), 400, "invalid_image")
    assert error["message"] == "Image 2: it is 3000 x 2 pixels; that is too narrow."
    assert error["param"] == "messages[0].content[2].image_url"
    error = refused(
        api.post("/v1/chat", json={"prompt": "x", "images": [RED, RED], "stream": stream}),
        400,
        "invalid_image",
    )
    assert error["param"] == "images[1]"
