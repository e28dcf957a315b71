"""From the dialects of the wire to one conversation: the engine's messages, and where their images come
from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from engine.messages import ImagePart, Message, Part, Role, TextPart
from service.chat.message_schemas import (
    MAX_TEXT,
    Base64Source,
    Block,
    ChatMessage,
    ImageBlock,
    ImageUrlBlock,
    InputImageBlock,
    TextBlock,
)
from service.chat.schemas import ChatRequest
from service.errors import RequestError
from service.images.reference import ImageReference, PlacedImage

_ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
}


@dataclass(frozen=True, slots=True)
class Conversation:
    """`ImagePart(i)` in `messages` is `images[i]`; an image given twice has two places."""

    messages: tuple[Message, ...]
    images: tuple[PlacedImage, ...]


def read_conversation(request: ChatRequest, max_images: int) -> Conversation:
    """The conversation of `request`. Raises `RequestError` if it cannot be answered as a conversation."""
    images: list[PlacedImage] = []
    messages: tuple[Message, ...]
    if request.messages is None:
        messages = (_shorthand(request, images),)
    else:
        messages = tuple(
            _turn(message, f"messages[{i}]", images) for i, message in enumerate(request.messages)
        )
    if messages[-1].role != "user":
        raise RequestError("invalid_prompt", "The last message must be the user's.", param="messages")
    if len(images) > max_images:
        raise RequestError(
            "too_many_images",
            f"The conversation holds {len(images)} images; the limit is {max_images} over all turns.",
            param=images[max_images].param,
        )
    _check_length(messages)
    return Conversation(messages, tuple(images))


def _check_length(messages: Sequence[Message]) -> None:
    texts = (part.text for message in messages for part in message.parts if isinstance(part, TextPart))
    length = sum(len(text) for text in texts)
    if length > MAX_TEXT:
        message = f"The texts have {length} characters in all; the limit is {MAX_TEXT}."
        raise RequestError("request_too_large", message, param="messages")


def _shorthand(request: ChatRequest, images: list[PlacedImage]) -> Message:
    parts: list[Part] = []
    for i, text in enumerate(request.images or ()):
        parts.append(_place(ImageReference(text), f"images[{i}]", images))
    parts.append(TextPart(request.prompt or ""))
    return _message("user", parts, "prompt")


def _turn(message: ChatMessage, param: str, images: list[PlacedImage]) -> Message:
    content, place = message.content or "", f"{param}.content"
    parts: list[Part] = (
        [TextPart(content)] if isinstance(content, str) else list(_parts(content, place, images))
    )
    return _message(_ROLES[message.role], parts, place)


def _message(role: Role, parts: list[Part], param: str) -> Message:
    """Others than the user may have said nothing: an empty answer can be sent back as it came."""
    if role == "user" and not any(isinstance(part, ImagePart) or part.text.strip() for part in parts):
        raise RequestError("invalid_prompt", "A message of the user must hold text or an image.", param=param)
    return Message(role, tuple(part for part in parts if isinstance(part, ImagePart) or part.text))


def _parts(blocks: list[Block], param: str, images: list[PlacedImage]) -> Iterator[Part]:
    for i, block in enumerate(blocks):
        place = f"{param}[{i}]"
        if isinstance(block, TextBlock):
            yield TextPart(block.text)
        else:
            reference, field = _reference(block)
            yield _place(reference, f"{place}.{field}", images)


def _reference(block: ImageUrlBlock | InputImageBlock | ImageBlock) -> tuple[ImageReference, str]:
    if isinstance(block, ImageUrlBlock):
        if isinstance(block.image_url, str):
            return ImageReference(block.image_url), "image_url"
        return ImageReference(block.image_url.url), "image_url.url"
    if isinstance(block, InputImageBlock):
        return ImageReference(block.image_url), "image_url"
    if isinstance(block.source, Base64Source):
        return ImageReference(block.source.data, inline=True), "source.data"
    return ImageReference(block.source.url), "source.url"


def _place(reference: ImageReference, param: str, images: list[PlacedImage]) -> ImagePart:
    images.append(PlacedImage(reference, param))
    return ImagePart(len(images) - 1)
