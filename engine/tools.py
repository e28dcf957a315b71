"""Tools that a model may ask to be called, and its calls. Values that cross the seam, as those of `engine.messages`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# May an answer hold tool calls, must it be nothing else, or may it hold none.
ToolUse = Literal["auto", "required", "none"]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that the assistant made. `arguments` is JSON of an object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may ask to be called. `definition` is JSON as OpenAI has it, {"type": "function",
    "function": {...}}, which the chat template shows; `parameters` is the JSON Schema of its arguments, an object."""

    name: str
    definition: str
    parameters: str


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of a request. Only those named in `callable` may be called, `parallel`: several in one answer."""

    known: tuple[Tool, ...]
    use: ToolUse
    callable: tuple[str, ...]
    parallel: bool = True
