"""From the wire of `/v1/chat` to the one conversation inside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from engine.messages import Part, Role, TextPart
from service.chat.image_list import ImageList, named_image
from service.chat.message_schemas import (
    Base64Source,
    Block,
    ChatMessage,
    Detail,
    FileBlock,
    FileSource,
    ImageBlock,
    ImageFileBlock,
    ImageUrlBlock,
    InputFileBlock,
    InputImageBlock,
    PictureBlock,
    Source,
    TextBlock,
)
from service.chat.schemas import ChatRequest
from service.chat.turns import Conversation, Turns
from service.errors import RequestError
from service.images.reference import FileReference, ImageReference

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


def read_conversation(request: ChatRequest, images: ImageList) -> Conversation:
    """The conversation of `request`. Raises `RequestError` if it cannot be answered as a conversation."""
    turns = Turns("messages", images)
    if request.messages is None:
        _shorthand(request, turns)
    for i, message in enumerate(request.messages or ()):
        _turn(message, f"messages[{i}]", turns)
    return turns.conversation()


def read_parts(blocks: Sequence[Block], param: str, turns: Turns) -> Iterator[Part]:
    """What `blocks`, which stand in `param`, say and show."""
    for i, block in enumerate(blocks):
        place = f"{param}[{i}]"
        if isinstance(block, TextBlock):
            yield TextPart(block.text)
        else:
            yield from pictures_of(block, place, turns)
        if isinstance(block, TextBlock | ImageBlock) and block.cache_control is not None:
            turns.pin(block.cache_control.seconds)


def pictures_of(block: PictureBlock, place: str, turns: Turns) -> Iterator[Part]:
    """The image or the pages that a part in `place` shows."""
    reference, field = _reference(block)
    yield from turns.images(reference, f"{place}.{field}", _detail(block) == "low")


def _shorthand(request: ChatRequest, turns: Turns) -> None:
    parts: list[Part] = []
    for i, text in enumerate(request.images or ()):
        parts += turns.images(named_image(text), f"images[{i}]")
    turns.say("user", [*parts, TextPart(request.prompt or "")], "prompt")


def _turn(message: ChatMessage, param: str, turns: Turns) -> None:
    _check_fields(message, param)
    content, place = message.content or "", f"{param}.content"
    parts: list[Part] = (
        [TextPart(content)] if isinstance(content, str) else list(read_parts(content, place, turns))
    )
    if message.tool_call_id is not None:
        turns.result(message.tool_call_id, parts, f"{param}.tool_call_id", message.name)
        return
    calls = [
        turns.call(
            call.id,
            call.function.name,
            call.function.arguments,
            f"{param}.tool_calls[{i}].function.arguments",
        )
        for i, call in enumerate(message.tool_calls or ())
    ]
    turns.say(_ROLES[message.role], parts, place, calls, message.name)


def _check_fields(message: ChatMessage, param: str) -> None:
    """What of a message goes with its role."""
    if message.tool_calls and message.role != "assistant":
        raise _conflict(f"{param}.tool_calls", "'tool_calls' are the assistant's")
    if message.tool_call_id is not None and message.role != "tool":
        raise _conflict(f"{param}.tool_call_id", "'tool_call_id' goes with the role 'tool'")
    missing = (
        "tool_call_id"
        if message.role == "tool" and message.tool_call_id is None
        else "content"
        if not message.tool_calls and "content" not in message.model_fields_set
        else None
    )
    if missing is not None:
        place = f"{param}.{missing}"
        raise RequestError("missing_parameter", f"Missing parameter: '{place}'.", param=place)


def _conflict(param: str, text: str) -> RequestError:
    return RequestError("invalid_request", f"Fields that do not fit together: {text}.", param=param)


def _reference(block: PictureBlock) -> tuple[ImageReference | FileReference, str]:
    """What a part names, and the field that names it."""
    if isinstance(block, ImageUrlBlock):
        if isinstance(block.image_url, str):
            return named_image(block.image_url), "image_url"
        return named_image(block.image_url.url), "image_url.url"
    if isinstance(block, InputImageBlock) and block.file_id is None:
        return named_image(block.image_url or ""), "image_url"
    if isinstance(block, InputImageBlock | InputFileBlock):
        return FileReference(block.file_id or "", block.pages), "file_id"
    if isinstance(block, FileBlock):
        return FileReference(block.file.file_id, block.file.pages), "file.file_id"
    if isinstance(block, ImageFileBlock):
        return FileReference(block.image_file.file_id), "image_file.file_id"
    return source_of(block.source)


def _detail(block: PictureBlock) -> Detail | None:
    if isinstance(block, ImageUrlBlock):
        return None if isinstance(block.image_url, str) else block.image_url.detail
    if isinstance(block, ImageFileBlock):
        return block.image_file.detail
    return block.detail if isinstance(block, InputImageBlock | InputFileBlock) else None


def source_of(source: Source) -> tuple[ImageReference | FileReference, str]:
    if isinstance(source, Base64Source):
        return ImageReference(source.data, inline=True), "source.data"
    if isinstance(source, FileSource):
        return FileReference(source.file_id), "source.file_id"
    return named_image(source.url), "source.url"
