"""A conversation as chat templates take it: plain objects in the shape that the transformers library documents."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from engine.messages import Message, TextPart
from engine.tools import ToolCall, Tools

Turn = dict[str, Any]


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


def _turn(message: Message) -> Turn:
    turn: Turn = {"role": message.role, "content": _content(message)}
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
