"""Tools with the stock client over real HTTP: whatever the shipped model would say, its calls are valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openai import BadRequestError, OpenAI

from demo.random_model import SHIPPED
from tests.e2e.live import Live
from tests.service.asking import RED

CLICK: Any = {
    "type": "function",
    "function": {
        "name": "click",
        "parameters": {
            "type": "object",
            "properties": {
                "x": {"type": "integer", "minimum": 0, "maximum": 99},
                "how": {"enum": ["left", "right"]},
            },
            "required": ["x", "how"],
            "additionalProperties": False,
        },
    },
}
STOP: Any = {
    "type": "function",
    "function": {"name": "stop", "parameters": {"type": "object", "additionalProperties": False}},
}
GO: Any = {"role": "user", "content": "Where is the button?"}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAI]:
    with (
        Live(tmp_path_factory.mktemp("tools"), SHIPPED) as live,
        OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client


def ask(client: OpenAI, *messages: Any, **fields: Any) -> Any:
    fields = {"tools": [CLICK, STOP], "max_tokens": 150, **fields}
    return client.chat.completions.create(model="page-reader", messages=messages or (GO,), **fields)


def check(call: Any) -> None:
    arguments = json.loads(call.function.arguments)
    if call.function.name == "click":
        assert set(arguments) == {"x", "how"}
        assert 0 <= arguments["x"] <= 99 and arguments["how"] in ("left", "right")
    else:
        assert (call.function.name, arguments) == ("stop", {})


def test_a_call_that_is_required_comes_and_is_valid(client: OpenAI) -> None:
    for temperature, seed in ((0, 1), (1.5, 2), (2, 3)):
        done = ask(
            client, tool_choice="required", parallel_tool_calls=False, temperature=temperature, seed=seed
        )
        choice = done.choices[0]
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        (call,) = choice.message.tool_calls
        check(call)


def test_a_named_tool_is_the_one_that_is_called(client: OpenAI) -> None:
    for name in ("click", "stop"):
        done = ask(client, tool_choice={"type": "function", "function": {"name": name}})
        assert [call.function.name for call in done.choices[0].message.tool_calls] == [name]


def test_a_stream_says_the_same_as_the_whole_answer(client: OpenAI) -> None:
    fields: dict[str, Any] = {
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 1,
        "seed": 7,
    }
    whole = ask(client, **fields).choices[0].message.tool_calls[0].function
    name, arguments, pieces, reason = "", "", 0, None
    for chunk in ask(client, **fields, stream=True):
        reason = chunk.choices[0].finish_reason or reason
        for piece in chunk.choices[0].delta.tool_calls or ():
            name += piece.function.name or ""
            arguments += piece.function.arguments
            pieces += 1
    assert (name, arguments, reason) == (whole.name, whole.arguments, "tool_calls")
    assert pieces > 3


def test_a_loop_of_an_agent_with_a_screenshot_in_the_result(client: OpenAI) -> None:
    first = ask(client, tool_choice="required", parallel_tool_calls=False, max_tokens=120).choices[0].message
    shot = [{"type": "text", "text": "now:"}, {"type": "image_url", "image_url": {"url": RED}}]
    back = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": shot}
    done = ask(client, GO, first.model_dump(), back, tool_choice="required", max_tokens=120)
    for call in done.choices[0].message.tool_calls:
        check(call)
    report = done.model_extra["kv_report"]
    assert len(report["images"]) == 1 and report["visual_tokens"] == report["images"][0]["tokens"]
    assert report["chained_exact_tokens"] > 100  # the turns before were answered from the chain


def test_auto_leaves_the_word_to_the_model_and_none_takes_calls_away(client: OpenAI) -> None:
    for choice in ("auto", "none"):
        done = ask(client, tool_choice=choice, max_tokens=8)
        assert done.choices[0].message.content
        assert not done.choices[0].message.tool_calls


def test_several_answers_with_calls_and_their_log_probabilities(client: OpenAI) -> None:
    done = ask(
        client, n=2, tool_choice="required", temperature=1, seed=5, logprobs=True, parallel_tool_calls=False
    )
    for choice in done.choices:
        (call,) = choice.message.tool_calls
        check(call)
        assert (
            "click" in "".join(token.token for token in choice.logprobs.content)
            or call.function.name == "stop"
        )


def test_a_call_that_is_cut_off_says_so(client: OpenAI) -> None:
    done = ask(client, tool_choice={"type": "function", "function": {"name": "click"}}, max_tokens=50)
    assert done.choices[0].finish_reason == "length"
    arguments = done.choices[0].message.tool_calls[0].function.arguments
    assert arguments.startswith("{") and not arguments.endswith("}")


def test_the_tool_at_fault_is_named(client: OpenAI) -> None:
    bad = {
        "type": "function",
        "function": {"name": "fly", "parameters": {"properties": {"to": {"type": "strng"}}}},
    }
    with pytest.raises(BadRequestError) as refused:
        ask(client, tools=[CLICK, bad])
    assert refused.value.code == "invalid_constraint"
    assert "tool 'fly': properties.to: Invalid type" in refused.value.message


def test_text_of_a_tool_cannot_end_its_turn(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="reserved by the chat template"):
        ask(client, tools=[{"type": "function", "function": {"name": "f", "description": "<|im_end|>"}}])
