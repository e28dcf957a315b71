"""The other dialects with their own clients over real HTTP, one conversation in three words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from demo.random_model import SHIPPED
from tests.e2e.live import Live
from tests.service.asking import RED

QUESTION = "What is A on the red page?"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["x"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with Live(tmp_path_factory.mktemp("dialects"), SHIPPED) as live:
        yield live


@pytest.fixture
def claude(live: Live) -> Iterator[Anthropic]:
    with Anthropic(base_url=live.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def openai(live: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def shown() -> list[Any]:
    data = {"type": "base64", "media_type": "image/png", "data": RED.partition(",")[2]}
    return [{"type": "image", "source": data}, {"type": "text", "text": QUESTION}]


def test_three_dialects_ask_the_same_and_find_the_same_entry(claude: Anthropic, openai: OpenAI) -> None:
    parts: Any = [{"type": "image_url", "image_url": {"url": RED}}, {"type": "text", "text": QUESTION}]
    chat = openai.chat.completions.create(
        model="page-reader", messages=[{"role": "user", "content": parts}], max_tokens=10
    )
    turns: Any = [{"role": "user", "content": shown()}]
    message = claude.messages.create(model="page-reader", messages=turns, max_tokens=10)
    items: Any = [
        {
            "role": "user",
            "content": [{"type": "input_image", "image_url": RED}, {"type": "input_text", "text": QUESTION}],
        }
    ]
    response = openai.responses.create(model="page-reader", input=items, max_output_tokens=10)
    said = chat.choices[0].message.content
    assert said
    assert [block.text for block in message.content if block.type == "text"] == [said]
    assert response.output_text == said
    reports: list[Any] = [(it.model_extra or {})["kv_report"] for it in (chat, message, response)]
    assert len({report["images"][0]["key"] for report in reports}) == 1
    assert [report["images"][0]["outcome"] for report in reports[1:]] == ["hit", "hit"]
    usage, prompt = message.usage, chat.usage.prompt_tokens if chat.usage else 0
    read, written = usage.cache_read_input_tokens or 0, usage.cache_creation_input_tokens or 0
    assert read > 0 and usage.input_tokens + read + written == prompt
    counted = claude.messages.count_tokens(model="page-reader", messages=turns)
    assert counted.input_tokens == prompt


def test_a_call_and_its_result_with_a_screenshot(claude: Anthropic, openai: OpenAI) -> None:
    tools: Any = [{"name": "click", "input_schema": SCHEMA}]
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    turns: list[Any] = [{"role": "user", "content": "go"}]
    for _ in range(2):
        with claude.messages.stream(
            model="page-reader", messages=turns, tools=tools, tool_choice=choice, max_tokens=120
        ) as stream:
            message = stream.get_final_message()
        assert message.stop_reason == "tool_use"
        (call,) = message.content
        assert call.type == "tool_use" and call.name == "click"
        assert isinstance(call.input, dict) and 0 <= call.input["x"] <= 99  # type: ignore[operator]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": shown()[:1]}
        turns += [message.to_param(), {"role": "user", "content": [result]}]

    own: Any = [{"type": "function", "name": "click", "parameters": SCHEMA, "strict": True}]
    with openai.responses.stream(
        model="page-reader",
        input="go",
        tools=own,
        tool_choice={"type": "function", "name": "click"},
        max_output_tokens=120,
    ) as answer:
        for _ in answer:
            pass
        (item,) = answer.get_final_response().output
    assert item.type == "function_call" and 0 <= json.loads(item.arguments)["x"] <= 99


def test_a_stop_sequence_that_ended_an_answer_is_named(claude: Anthropic) -> None:
    turns: Any = [{"role": "user", "content": shown()}]
    whole = claude.messages.create(model="page-reader", messages=turns, max_tokens=30)
    (block,) = whole.content
    assert block.type == "text" and len(block.text) > 1
    stop = block.text[1:3]
    cut = claude.messages.create(
        model="page-reader", messages=turns, max_tokens=30, stop_sequences=["§", stop]
    )
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)


def test_a_mark_pins_the_entry(claude: Anthropic, live: Live) -> None:
    image = {**shown()[0], "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    turns: Any = [{"role": "user", "content": [image, *shown()[1:]]}]
    message = claude.messages.create(model="page-reader", messages=turns, max_tokens=3)
    key = (message.model_extra or {})["kv_report"]["images"][0]["key"]
    live.flush()
    entries = live.api.get("/v1/cache/entries", params={"limit": 1000}).json()["entries"]
    (entry,) = (entry for entry in entries if entry["key"].startswith(key))
    assert entry["pinned"] == "soft"
