"""What of a request reaches the engine: dialects, roles, options, and who asks."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from engine.messages import ImagePart, TextPart
from service.chat.message_schemas import MAX_TEXT
from tests.service.asking import QUESTION, RED, ask, refused, user
from tests.service.fake_engine import FakeEngine, accepted, finished
from tests.service.images.pictures import data_url, plain

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


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, None),
        ({"prompt_cache_retention": None}, None),
        ({"prompt_cache_retention": "in_memory"}, None),
        ({"prompt_cache_retention": "24h"}, 86_400),
        ({"prompt_cache_retention": "24h", "cache": {"chain": "exact"}}, 86_400),
        ({"prompt_cache_retention": "24h", "cache": {"pin": True, "ttl": 60}}, 60),
        ({"prompt_cache_retention": "in_memory", "cache": {"pin": True}}, 1800),
    ],
)
def test_retention_is_a_soft_pin(
    api: httpx.Client, engine: FakeEngine, fields: dict[str, Any], seconds: float | None
) -> None:
    api.post("/v1/chat", json=ask(RED, **fields)).raise_for_status()
    assert engine.requests[0].cache.pin_seconds == seconds


@pytest.mark.parametrize("cache", [None, {"chain": "auto"}])
def test_what_belongs_together_is_a_hint_for_the_engine(
    api: httpx.Client, engine: FakeEngine, cache: dict[str, Any] | None
) -> None:
    api.post("/v1/chat", json=ask(RED, prompt_cache_key="session-7", cache=cache)).raise_for_status()
    api.post("/v1/chat", json=ask(RED, cache=cache)).raise_for_status()
    assert [request.cache.hint for request in engine.requests] == ["session-7", None]
    assert len({request.tenant for request in engine.requests}) == 1


def test_engine_is_told_how_long_it_has(start: Any, engine: FakeEngine) -> None:
    start(request_timeout=100.0).post("/v1/chat", json=ask(RED)).raise_for_status()
    given = engine.requests[0].timeout_seconds
    assert given is not None and 0 < given <= 100


@pytest.mark.parametrize("content", ["", None, [], [{"type": "text", "text": ""}], " \n"])
@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_f11_others_than_the_user_may_have_said_nothing(
    api: httpx.Client, engine: FakeEngine, role: str, content: object
) -> None:
    turns = [{"role": role, "content": content}, {"role": "user", "content": QUESTION}]
    api.post("/v1/chat", json={"messages": turns}).raise_for_status()
    silent, asking = engine.requests[0].messages
    assert silent.role == ("assistant" if role == "assistant" else "system")
    assert "".join(part.text for part in silent.parts if isinstance(part, TextPart)).strip() == ""
    assert asking.parts == (TextPart(QUESTION),)


def test_f11_an_empty_answer_can_be_sent_back_as_it_came(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [accepted(request), finished(request, 0)]
    said = api.post("/v1/chat", json=ask()).raise_for_status().json()["choices"][0]["message"]
    assert said["content"] == ""
    turns = [{"role": "user", "content": QUESTION}, said, {"role": "user", "content": "Well?"}]
    api.post("/v1/chat", json={"messages": turns}).raise_for_status()
    assert [len(message.parts) for message in engine.requests[1].messages] == [1, 0, 1]


@pytest.mark.parametrize("as_prompt", [True, False])
def test_f23_a_text_that_looks_like_a_picture_stays_a_text(
    api: httpx.Client, engine: FakeEngine, as_prompt: bool
) -> None:
    body = {"prompt": RED} if as_prompt else user([{"type": "text", "text": RED}])
    api.post("/v1/chat", json=body).raise_for_status()
    assert engine.requests[0].messages[0].parts == (TextPart(RED),)
    assert engine.requests[0].images == ()


def test_f23_a_number_without_a_fraction_is_an_integer(api: httpx.Client, engine: FakeEngine) -> None:
    whole = {"max_tokens": 100.0, "top_k": 5.0, "seed": -3.0, "n": 1.0, "priority": 7.0, "top_logprobs": 2.0}
    api.post("/v1/chat", json=ask(logprobs=True, **whole)).raise_for_status()
    (request,) = engine.requests
    sampling = request.sampling
    found = (sampling.max_tokens, sampling.top_k, sampling.seed, request.priority, sampling.logprobs)
    assert found == (100, 5, -3, 7, 2)
    assert all(type(number) is int for number in found)


def test_the_texts_of_a_request_are_bounded_in_all(api: httpx.Client, engine: FakeEngine) -> None:
    half = "x" * (MAX_TEXT // 2)
    parts = [{"type": "text", "text": half}] * 2
    api.post("/v1/chat", json=user(parts)).raise_for_status()
    body = {"messages": [{"role": "assistant", "content": "y"}, *user(parts)["messages"]]}
    error = refused(api.post("/v1/chat", json=body), 413, "request_too_large")
    assert (error["param"], str(MAX_TEXT) in error["message"]) == ("messages", True)
    assert engine.submitted == 1


def test_an_answer_that_is_begun_and_who_speaks_reach_the_engine(
    api: httpx.Client, engine: FakeEngine
) -> None:
    messages = [
        {"role": "user", "name": "Al", "content": "What is K?"},
        {"role": "assistant", "content": "K is"},
    ]
    options = {"chat_template_kwargs": {"thinking": False, "effort": 2}}
    api.post("/v1/chat", json={"messages": messages, **options}).raise_for_status()
    asked, begun = engine.requests[0].messages
    assert (asked.name, begun.role, begun.parts) == ("Al", "assistant", (TextPart("K is"),))
    assert engine.requests[0].template == {"thinking": False, "effort": 2}


def test_a_null_limit_is_none(api: httpx.Client, engine: FakeEngine) -> None:
    body = {"prompt": "x", "max_tokens": 5, "max_completion_tokens": None}
    api.post("/v1/chat", json=body).raise_for_status()
    assert engine.requests[0].sampling.max_tokens == 5
