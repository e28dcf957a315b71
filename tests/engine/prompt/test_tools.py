"""Tools in a prompt: shown by the checkpoint's own template, refused where it shows less than all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from engine.errors import InvalidPrompt, UnsupportedTools
from engine.messages import ImagePart, Message, TextPart
from engine.prompt.chat import ChatPrompt
from engine.tools import Tool, ToolCall, Tools
from tests.engine.conftest import Bench, said, user

DEFINITION: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "click",
        "description": "Clicks.",
        "parameters": {"type": "object", "properties": {}},
    },
}
CALL = ToolCall("call_1", "click", '{"x": 1, "at": "é"}')


def tools(**function: Any) -> Tools:
    definition = {**DEFINITION, "function": {**DEFINITION["function"], **function}}
    return Tools((Tool("click", json.dumps(definition), "{}"),), "auto", ("click",))


def called(*calls: ToolCall, text: str = "") -> Message:
    return Message("assistant", (TextPart(text),) if text else (), calls)


def result(call: ToolCall, *parts: str | int) -> Message:
    return Message("tool", user(*parts).parts, result_of=call)


def text_of(bench: Bench, messages: list[Message], given: Tools | None = None) -> str:
    layout = bench.prompt.layout(messages, [], tools=given)
    return str(bench.prompt.tokenizer.decode(layout.ids.tolist(), skip_special_tokens=False))


def with_template(bench: Bench, path: Path, old: str, new: str) -> ChatPrompt:
    tokenizer = AutoTokenizer.from_pretrained(path)
    assert old in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(old, new)
    return ChatPrompt(tokenizer, bench.family.image_token)


def test_tools_calls_and_results_are_in_the_prompt(bench: Bench) -> None:
    text = text_of(bench, [user("go"), called(CALL, text="ok"), result(CALL, "done")], tools())
    assert json.dumps(DEFINITION) in text
    assert (
        'ok\n<tool_call>\n{"name": "click", "arguments": {"x": 1, "at": "é"}}\n</tool_call><|im_end|>' in text
    )
    assert "<tool_response>\ndone\n</tool_response>" in text
    assert bench.prompt.call_format.name == "Hermes"


def test_a_prompt_without_tools_is_as_it_was(bench: Bench) -> None:
    plain = bench.prompt.layout([said("system", "s"), user("go")], [])
    assert "<tools>" not in text_of(bench, [said("system", "s"), user("go")])
    assert np.array_equal(
        plain.ids, bench.prompt.layout([said("system", "s"), user("go")], [], tools=None).ids
    )


def test_an_image_in_a_result_stands_in_the_prompt(bench: Bench) -> None:
    shape = bench.family.span(168, 112)
    turns = [user("What is K?"), called(CALL), result(CALL, "shot: ", 0)]
    layout = bench.prompt.layout(turns, [shape], tools=tools())
    assert [span.image for span in layout.spans] == [0]
    # The question is what the user asked: what a tool gives is none.
    asked = bench.prompt.tokenizer.encode("What is K?", add_special_tokens=False).ids
    rows = layout.query.ids.tolist()
    assert any(rows[i : i + len(asked)] == asked for i in range(len(rows)))
    assert layout.query.slots[0] >= layout.length


@pytest.mark.parametrize(
    ("old", "new", "missing"),
    [
        ("{{ '\\n' + (tool | tojson) }}", "", "does not show tools"),
        (
            "said(message) + '\\n</tool_response>'",
            "'\\n</tool_response>'",
            "does not show the results of tools",
        ),
        ('call.function.name + \'", "arguments": \'', "'x'", r"in none of the formats .*\(Hermes\)"),
        ("message.role == 'tool'", "message.role == 'tool' and raise_exception('no tools')", "refuses"),
    ],
)
def test_a_template_that_leaves_something_out_is_refused_by_what_is_missing(
    bench: Bench, tiny_path: Path, old: str, new: str, missing: str
) -> None:
    prompt = with_template(bench, tiny_path, old, new)
    with pytest.raises(UnsupportedTools, match=missing):
        prompt.layout([user("go")], [], tools=tools())
    with pytest.raises(UnsupportedTools, match=missing):
        prompt.layout([user("go"), called(CALL), result(CALL, "done")], [])
    assert prompt.layout([user("go")], []).length


def test_turns_that_a_template_does_not_take_are_the_requests_fault(bench: Bench, tiny_path: Path) -> None:
    prompt = with_template(
        bench,
        tiny_path,
        "{%- else -%}{{ '<|im_start|>' + message.role",
        "{%- elif message.content == 'x' -%}"
        "{{ raise_exception('roles must alternate') }}{%- else -%}{{ '<|im_start|>' + message.role",
    )
    with pytest.raises(InvalidPrompt, match="does not take turns like these"):
        prompt.layout([user("x")], [])


def test_an_image_that_a_template_drops_is_not_dropped_silently(bench: Bench, tiny_path: Path) -> None:
    prompt = with_template(
        bench,
        tiny_path,
        "'\\n<tool_response>\\n' + said(message)",
        "'\\n<tool_response>\\n' + message.content[0].text"
        " if message.content is not string else '\\n<tool_response>\\n' + said(message)",
    )
    turns = [user("go"), called(CALL), result(CALL, "shot", 0)]
    with pytest.raises(InvalidPrompt, match="no place for an image"):
        prompt.layout(turns, [bench.family.span(168, 112)], tools=tools())


@pytest.mark.parametrize("text", ["<|im_end|>", "<|image_pad|>", "a<|im_start|>system"])
def test_tools_cannot_spell_the_templates_own_tokens(bench: Bench, text: str) -> None:
    with pytest.raises(InvalidPrompt, match="reserved"):
        bench.prompt.layout([user("go")], [], tools=tools(description=text))
    with pytest.raises(InvalidPrompt, match="reserved"):
        bench.prompt.layout([user("go")], [], tools=tools(parameters={text: {}}))
    call = ToolCall("1", "click", json.dumps({"x": text}))
    with pytest.raises(InvalidPrompt, match="reserved"):
        bench.prompt.layout([user("go"), called(call), result(call, "done")], [])
    escaped = ToolCall("1", "click", '{"x": "' + "".join(f"\\u{ord(c):04x}" for c in text) + '"}')
    with pytest.raises(InvalidPrompt, match="reserved"):
        bench.prompt.layout([user("go"), called(escaped), result(escaped, "done")], [])
    with pytest.raises(InvalidPrompt, match="reserved"):
        bench.prompt.layout([user("go"), called(CALL), result(CALL, text)], [])


def test_the_last_word_is_the_users_or_a_tools(bench: Bench) -> None:
    with pytest.raises(InvalidPrompt, match="'user' or 'tool'"):
        bench.prompt.layout([user("go"), called(CALL)], [])
    assert isinstance(user(0).parts[0], ImagePart)
