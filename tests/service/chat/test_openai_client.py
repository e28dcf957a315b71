"""The stock `openai` client works unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam

from engine.messages import Failed, TextDelta
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, accepted, fails
from tests.service.images.pictures import data_url, plain
from tests.service.serving import eventually

MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "Be brief."},
    {
        "role": "user",
        "content": [
            {"type": "image_url", "image_url": {"url": data_url(plain())}},
            {"type": "text", "text": "What is the total?"},
        ],
    },
]


@pytest.fixture
def sdk(start: Start) -> Iterator[OpenAI]:
    api = start(api_keys="alice:sk-alice-1")
    with OpenAI(
        base_url=f"{str(api.base_url).rstrip('/')}/v1", api_key="sk-alice-1", max_retries=0
    ) as client:
        yield client


def test_json(sdk: OpenAI) -> None:
    answer = sdk.chat.completions.create(model="test-reader", messages=MESSAGES, temperature=0, max_tokens=20)
    assert answer.choices[0].message.content == "The total is 42."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None and answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert answer.model_extra is not None
    assert answer.model_extra["kv_report"]["images"][0]["outcome"] == "miss"


def test_stream(sdk: OpenAI, engine: FakeEngine) -> None:
    with sdk.chat.completions.create(
        model="test-reader", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "The total is 42."
    assert chunks[-1].usage is not None and chunks[-1].choices == []
    assert (engine.open, engine.aborted) == (0, 0)


def test_extra_body_reaches_the_cache_options(sdk: OpenAI, engine: FakeEngine) -> None:
    sdk.chat.completions.create(
        model="test-reader", messages=MESSAGES, extra_body={"cache": {"policy": "full", "mode": "bypass"}}
    )
    assert (engine.requests[0].cache.policy, engine.requests[0].cache.mode) == ("full", "bypass")


def test_an_answer_may_be_sent_back_as_a_turn(sdk: OpenAI, engine: FakeEngine) -> None:
    answer = sdk.chat.completions.create(model="test-reader", messages=MESSAGES).choices[0].message
    turns = [*MESSAGES, answer.model_dump(), {"role": "user", "content": "And on page 2?"}]
    sdk.chat.completions.create(model="test-reader", messages=turns)  # type: ignore[arg-type]
    assert [message.role for message in engine.requests[1].messages] == [
        "system",
        "user",
        "assistant",
        "user",
    ]


def test_models(sdk: OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["test-reader"]
    assert sdk.models.retrieve("test-reader").owned_by == "conduit"


def test_refusals_are_typed_exceptions(sdk: OpenAI, engine: FakeEngine) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        sdk.chat.completions.create(model="test-reader", messages=[])
    assert bad.value.param == "messages"
    with pytest.raises(openai.NotFoundError):
        sdk.chat.completions.create(model="gpt-4o", messages=MESSAGES)
    with pytest.raises(openai.AuthenticationError):
        sdk.with_options(api_key="wrong").chat.completions.create(model="test-reader", messages=MESSAGES)
    engine.script = fails("queue_full")
    with pytest.raises(openai.RateLimitError) as busy:
        sdk.chat.completions.create(model="test-reader", messages=MESSAGES, stream=True)
    assert busy.value.request_id


def test_f5_sdk_raises_on_a_failure_in_the_stream(sdk: OpenAI, engine: FakeEngine) -> None:
    engine.script = lambda request: [
        accepted(request),
        TextDelta(request.id, "one"),
        Failed(request.id, "engine_stopped", 'The "worker" stopped.\nTry again.'),
    ]
    with pytest.raises(openai.APIError, match="worker"):
        list(sdk.chat.completions.create(model="test-reader", messages=MESSAGES, stream=True))


def test_f3_closing_the_sdks_stream_ends_the_request(sdk: OpenAI, engine: FakeEngine) -> None:
    engine.script = lambda request: [accepted(request), TextDelta(request.id, "one"), 3600.0]
    stream = sdk.chat.completions.create(model="test-reader", messages=MESSAGES, stream=True)
    next(iter(stream))
    stream.close()
    eventually(lambda: (engine.open, engine.aborted) == (0, 1), "the request ends in the engine")
