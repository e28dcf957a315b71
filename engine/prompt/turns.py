"""A conversation as chat templates take it: plain objects in the shape that the transformers library documents."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from engine.errors import InvalidPrompt
from engine.messages import Message, TextPart
from engine.tools import ToolCall, Tools

Turn = dict[str, Any]
_PROBE: Final = "probe_name"


def turns_of(messages: Sequence[Message]) -> list[Turn]:
    return [_turn(message) for message in messages]


def definitions_of(tools: Tools | None) -> list[dict[str, Any]] | None:
    """What a template is given as `tools`."""
    return None if tools is None else [json.loads(tool.definition) for tool in tools.known]


def has_tools(messages: Sequence[Message], tools: Tools | None) -> bool:
    """Whether a template must know tools to show all that there is."""
    return tools is not None or any(message.calls or message.result_of for message in messages)


def tool_texts(messages: Sequence[Message], tools: Tools | None) -> Iterator[str]:
    """All texts of definitions and calls that a template may show: as JSON and each for itself."""
    jsons = [call.arguments for message in messages for call in message.calls]
    if tools is not None:
        jsons += [tool.definition for tool in tools.known]
    for text in jsons:
        value = json.loads(text)
        yield json.dumps(value, ensure_ascii=False)
        yield from _strings(value)


def split_begun(messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
    """The turns that ask, and what the assistant has said of the answer already: his turn, where it is the last and
    text alone."""
    if not messages or messages[-1].role != "assistant" or messages[-1].calls:
        return messages, ""
    texts = [part.text for part in messages[-1].parts if isinstance(part, TextPart)]
    if len(texts) < len(messages[-1].parts):
        return messages, ""
    return messages[:-1], "".join(texts)


def spelled_out(messages: Sequence[Message]) -> list[Message]:
    """Names in front of what is said, for templates that do not show them."""
    return [
        message
        if message.name is None
        else replace(message, name=None, parts=(TextPart(f"{message.name}: "), *message.parts))
        for message in messages
    ]


def shows_names(apply: Callable[[list[Turn]], str]) -> bool:
    try:
        return _PROBE in apply([{"role": "user", "content": "x", "name": _PROBE}])
    except InvalidPrompt:
        return False


def _turn(message: Message) -> Turn:
    turn: Turn = {"role": message.role, "content": _content(message)}
    if message.name is not None:
        turn["name"] = message.name
    if message.calls:
        turn["tool_calls"] = [_call(call) for call in message.calls]
    if message.result_of is not None:
        turn |= {"name": message.result_of.name, "tool_call_id": message.result_of.id}
    return turn


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.loads(call.arguments)}
    return {"type": "function", "id": call.id, "function": function}


def _content(message: Message) -> str | list[dict[str, str]]:
    """Plain text as a string (what every template takes), anything with an image as parts."""
    if all(isinstance(part, TextPart) for part in message.parts):
        return "".join(part.text for part in message.parts if isinstance(part, TextPart))
    return [
        {"type": "text", "text": part.text} if isinstance(part, TextPart) else {"type": "image"}
        for part in message.parts
    ]


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield name
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)
