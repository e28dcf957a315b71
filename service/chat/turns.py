"""The one conversation inside, and how it is put together turn by turn, whatever dialect it came in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine.messages import ImagePart, Message, Part, Role, TextPart
from engine.tools import ToolCall
from service.chat.image_list import ImageList
from service.chat.message_schemas import MAX_TEXT
from service.errors import RequestError
from service.http.json_reader import JsonLimits, JsonReader
from service.images.reference import FileReference, ImageReference, PlacedImage

MAX_ARGUMENTS: Final = 1024 * 1024
"""Characters of the arguments of all calls of a request: they are read at once."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """`ImagePart(i)` in `messages` is `images[i]`; an image given twice has two places. `pins` are seconds for which
    the entry of image i is kept from ordinary eviction, 0 where nobody asked."""

    messages: tuple[Message, ...]
    images: tuple[PlacedImage, ...]
    pins: tuple[float, ...]


class Turns:
    """Collects turns in order; `conversation` is what they make. Every method raises `RequestError` for what cannot be
    answered as a conversation; `field` is where the turns stand in the request."""

    def __init__(self, field: str, images: ImageList) -> None:
        self._field, self._images = field, images
        self._messages: list[Message] = []
        self._pins: list[float] = []
        self._arguments = 0
        self._open: dict[str, ToolCall] = {}
        self._results: dict[str, Message] = {}

    def images(
        self, reference: ImageReference | FileReference, param: str, low: bool = False
    ) -> list[ImagePart]:
        """Places an image, or the pages of an uploaded file; `param` is its field. `low`: small pictures will do."""
        parts = self._images.place(reference, param, low)
        self._pins += [0.0] * len(parts)
        return parts

    def pin(self, seconds: float) -> None:
        """Keep all images so far for `seconds`."""
        self._pins = [max(seconds, before) for before in self._pins]

    def call(self, call_id: str, name: str, arguments: str, param: str) -> ToolCall:
        """A call that an earlier answer made, for `say`. `arguments` are JSON in a text, which stands in `param`."""
        self._arguments += len(arguments)
        if self._arguments > MAX_ARGUMENTS:
            message = f"The arguments of all calls together are longer than {MAX_ARGUMENTS} characters."
            raise RequestError("request_too_large", message, param=param)
        if not _is_object(arguments):
            raise RequestError("invalid_request", f"'{param}' must be a JSON object in a text.", param=param)
        return ToolCall(call_id, name, arguments)

    def say(
        self,
        role: Role,
        parts: Sequence[Part],
        param: str,
        calls: Sequence[ToolCall] = (),
        name: str | None = None,
    ) -> None:
        """A turn of anybody but a tool. Others than the user may have said nothing: an empty answer can be sent back as
        it came. `name` is who speaks."""
        self._close(param)
        if role == "user" and not any(isinstance(part, ImagePart) or part.text.strip() for part in parts):
            message = "A message of the user must hold text or an image."
            raise RequestError("invalid_prompt", message, param=param)
        self._open = {call.id: call for call in calls}
        if len(self._open) < len(calls):
            raise RequestError("invalid_prompt", "Two calls of a turn have the same id.", param=param)
        self._messages.append(Message(role, _without_empty(parts), tuple(calls), name=name))

    def result(self, call_id: str, parts: Sequence[Part], param: str, name: str | None = None) -> None:
        """What a tool gave, under its `name` where a client says that too. The results of a turn's calls may come in
        any order; the model sees them in that of the calls, since what it reads has no ids."""
        call = self._open.get(call_id)
        if call is None or call_id in self._results:
            message = (
                "This result belongs to no call of the turn before it, or to one that has a result already."
            )
            raise RequestError("invalid_prompt", message, param=param)
        if name not in (None, call.name):
            message = f"This is the result of a call of '{call.name}', not of '{name}'."
            raise RequestError("invalid_prompt", message, param=param)
        self._results[call_id] = Message("tool", _without_empty(parts), result_of=call)

    def conversation(self) -> Conversation:
        self._close(self._field)
        if not self._asks():
            message = (
                "The last message must be the user's, a tool's result, or the beginning of the answer to one."
            )
            raise RequestError("invalid_prompt", message, param=self._field)
        images = self._images.checked()
        self._check_length()
        return Conversation(tuple(self._messages), images, tuple(self._pins))

    def _asks(self) -> bool:
        """Behind a question there may be text of the assistant, with which the answer begins."""
        turns = self._messages
        if len(turns) > 1 and turns[-1].role == "assistant" and not _shows(turns[-1]):
            turns = turns[:-1]
        return bool(turns) and turns[-1].role in ("user", "tool")

    def _check_length(self) -> None:
        length = self._arguments + sum(map(_length, self._messages))
        if length > MAX_TEXT:
            message = f"The texts have {length} characters in all; the limit is {MAX_TEXT}."
            raise RequestError("request_too_large", message, param=self._field)

    def _close(self, param: str) -> None:
        """The calls of the turn before have their results."""
        if len(self._results) < len(self._open):
            message = "Every call of a turn needs a result right behind that turn."
            raise RequestError("invalid_prompt", message, param=param)
        self._messages += [self._results[call_id] for call_id in self._open]
        self._open, self._results = {}, {}


def _is_object(text: str) -> bool:
    """Within the limits of what a body may hold."""
    reader = JsonReader(JsonLimits())
    try:
        reader.feed(text.encode())
        return isinstance(reader.finish(), dict)
    except RequestError:
        return False


def _without_empty(parts: Sequence[Part]) -> tuple[Part, ...]:
    return tuple(part for part in parts if isinstance(part, ImagePart) or part.text)


def _shows(message: Message) -> bool:
    return any(isinstance(part, ImagePart) for part in message.parts)


def _length(message: Message) -> int:
    return sum(len(part.text) for part in message.parts if isinstance(part, TextPart))
