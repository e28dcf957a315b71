"""Whether a chat template can speak of tools, and in which format its checkpoint calls them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Final

from engine.calls.format import CallFormat
from engine.calls.known import FORMATS
from engine.errors import InvalidPrompt, UnsupportedTools
from engine.messages import Message, TextPart
from engine.tools import Tool, ToolCall, Tools

Render = Callable[[Sequence[Message], Tools | None], str]

_NAME: Final = "probe_name"
_DESCRIPTION: Final = "probe-description"
_CALL: Final = ToolCall("call_probe", _NAME, '{"probe": "value"}')
_RESULT: Final = "probe-result"
_DEFINITION: Final = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": _DESCRIPTION,
        "parameters": {"type": "object", "properties": {}},
    },
}
_TOOLS: Final = Tools((Tool(_NAME, json.dumps(_DEFINITION), "{}"),), "auto", (_NAME,))
_CONVERSATION: Final = (
    Message("user", (TextPart("probe"),)),
    Message("assistant", (), calls=(_CALL,)),
    Message("tool", (TextPart(_RESULT),), result_of=_CALL),
)


def call_format(render: Render, special: frozenset[str]) -> CallFormat:
    """The format in which the template that `render` applies writes calls. Raises `UnsupportedTools`, which says what
    is missing. `special` are tokens that are not part of an answer's text."""
    try:
        text = render(_CONVERSATION, _TOOLS)
    except InvalidPrompt:
        raise _missing("refuses a conversation with a tool's result") from None
    if _DESCRIPTION not in text:
        raise _missing("does not show tools to the model")
    if _RESULT not in text:
        raise _missing("does not show the results of tools to the model")
    for known in FORMATS:
        if known.written(_CALL.name, _CALL.arguments) in text and not special.intersection(known.tags):
            return known
    names = ", ".join(known.name for known in FORMATS)
    raise _missing(f"writes calls in none of the formats that this service reads ({names})")


def _missing(what: str) -> UnsupportedTools:
    return UnsupportedTools(f"tools cannot be used with this model: its chat template {what}")
