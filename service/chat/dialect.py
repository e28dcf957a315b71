"""What a dialect of the API is: how its body asks, and how its answers are written. Everything between is one path."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from engine.messages import (
    Accepted,
    CacheOptions,
    CallDelta,
    EndReason,
    Finished,
    Sampling,
    TextDelta,
)
from engine.tools import ToolCall, Tools
from service.chat.generation import Output
from service.chat.image_list import ImageList
from service.chat.logprobs import logprob_bodies
from service.chat.turns import Conversation
from service.errors import ServiceError
from service.http.wire import WireModel
from service.http.written_json import WrittenList

Body = TypeVar("Body", bound=WireModel, contravariant=True)


@dataclass(frozen=True, slots=True)
class Options:
    """What a request asks for beside its conversation. `model` None takes the one that there is."""

    model: str | None
    salt: str | None
    stream: bool
    sampling: Sampling
    cache: CacheOptions
    tools: Tools | None = None
    template: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    answers: int = 1
    priority: int = 0


def new_call_id() -> str:
    """A name that no other call has."""
    return f"call_{uuid.uuid4().hex[:24]}"


@dataclass(slots=True)
class Written:
    """One of a request's answers while it comes: its text, and the calls behind it; `reason` of its end once it has.
    The first `spoken` of the log probabilities are those of the text, all where there are no calls."""

    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: WrittenList = field(default_factory=WrittenList)
    reason: EndReason | None = None
    spoken: int | None = None

    def add(self, piece: Output) -> None:
        self.logprobs += logprob_bodies(piece.logprobs)
        if isinstance(piece, TextDelta):
            self.text += piece.text
        elif isinstance(piece, CallDelta):
            self._add_call(piece)
        else:
            self.reason = piece.reason

    def _add_call(self, piece: CallDelta) -> None:
        if self.spoken is None:
            self.spoken = len(self.logprobs) - len(piece.logprobs)
        if piece.name is not None:
            self.calls.append(ToolCall(new_call_id(), piece.name, ""))
        last = self.calls[piece.call]
        self.calls[piece.call] = replace(last, arguments=last.arguments + piece.arguments)


class Frame(Protocol):
    """Writes the answers to one request: `whole` at once, or as events `begin`, any number of `piece`, the last of them
    `Finished`, or `fail` at any place."""

    id: str
    model: str

    def whole(self, answers: Sequence[Written], end: Finished) -> dict[str, Any]: ...

    def begin(self, accepted: Accepted) -> Iterator[bytes]: ...

    def piece(self, piece: Output) -> Iterator[bytes]: ...

    def fail(self, error: ServiceError) -> Iterator[bytes]: ...

    def ping(self) -> bytes:
        """What is sent while there is nothing to say."""
        ...


class Dialect(Protocol[Body]):
    """`options` and `conversation` raise `ServiceError` for what cannot be served."""

    def options(self, body: Body) -> Options: ...

    def conversation(self, body: Body, images: ImageList) -> Conversation: ...

    def frame(self, body: Body, model: str) -> Frame:
        """`model` is the name that is answered with. Keeps nothing of the conversation."""
        ...
