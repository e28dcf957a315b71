"""What every format of tool calls has in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from engine.messages import Constraint
from engine.tools import Tools


@dataclass(frozen=True, slots=True)
class CallPiece:
    """The next of a tool call. `call` counts the calls of an answer from 0; `name` comes with the first piece of one
    and with no other; `arguments` goes on its JSON text."""

    call: int
    name: str | None
    arguments: str


# What an answer turns out to be: text, and calls.
Piece = str | CallPiece


class CallReader(Protocol):
    """One answer on its way from text to pieces."""

    @property
    def whole_calls(self) -> int:
        """Calls that were read to their end."""
        ...

    def add(self, text: str) -> list[Piece]:
        """What has become certain. Text that may be the beginning of a call is held back."""
        ...

    def flush(self) -> list[Piece]:
        """The answer has ended: what is still held is text."""
        ...


@dataclass(frozen=True, slots=True)
class OwnTokens:
    """What a vocabulary has tokens of their own for, which a grammar must name: `tags` of the format, and the ids of
    those that may stand in `text`, such as a model's `<think>`."""

    tags: Mapping[str, int]
    text: tuple[int, ...]


class CallFormat(Protocol):
    """How a family of checkpoints writes tool calls."""

    name: str
    tags: tuple[str, ...]
    """What calls are marked with. The first is how every call begins, and no other text."""

    def written(self, name: str, arguments: str) -> str:
        """One call with its arguments, JSON of an object."""
        ...

    def grammar(self, tools: Tools, form: Constraint | None, own: OwnTokens) -> str:
        """Answers that `tools` allow, as a Lark grammar of llguidance. `form`, a JSON Schema, is what an answer must be
        that is no call; None where any text will do."""
        ...

    def reader(self) -> CallReader: ...
