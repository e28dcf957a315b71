"""Wire models of the turns of a conversation, in the dialects that are understood: OpenAI parts, a bare string as
`image_url`, `input_image` of the Responses API, Anthropic image blocks."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, Tag, model_validator

from service.chat.tool_schemas import MOST_TOOLS, CallId, CallMade
from service.http.wire import Label, WireModel, by_type, text_or, without_no_ops

# What answers hold besides role and content, ours too: a client may send a turn back as it came.
UNSUPPORTED_IN_MESSAGE: Final[dict[str, tuple[object, ...]]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
}

MAX_TEXT: Final = 4 * 1024**2
"""Characters of all texts of a request together: no model reads as many, and to count their tokens takes seconds."""
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Items = Field(max_length=2048, fail_fast=True)


class CacheControl(WireModel):
    """Anthropic's mark: the images up to here are kept from ordinary eviction for that long."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @property
    def seconds(self) -> float:
        return 3600.0 if self.ttl == "1h" else 300.0


class TextBlock(WireModel):
    type: Literal["text", "input_text"]
    text: Text
    cache_control: CacheControl | None = None


class ImageUrl(WireModel):
    url: str
    detail: Literal["auto", "high"] | None = None


class ImageUrlBlock(WireModel):
    type: Literal["image_url"]
    image_url: Annotated[
        Annotated[str, Tag("@text")] | Annotated[ImageUrl, Tag("@object")],
        text_or("@object", dict, "a string or an object with 'url'"),
    ]


class InputImageBlock(WireModel):
    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto", "high"] | None = None


class Base64Source(WireModel):
    """`media_type` is not believed: the content is looked at."""

    type: Literal["base64"]
    media_type: Label | None = None
    data: str


class UrlSource(WireModel):
    type: Literal["url"]
    url: str


class ImageBlock(WireModel):
    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag("@base64")] | Annotated[UrlSource, Tag("@url")],
        by_type({"base64": "@base64", "url": "@url"}, "an object of type 'base64' or 'url'"),
    ]
    cache_control: CacheControl | None = None


Block = TextBlock | ImageUrlBlock | InputImageBlock | ImageBlock
TaggedBlock = Annotated[
    Annotated[TextBlock, Tag("@text")]
    | Annotated[ImageUrlBlock, Tag("@image_url")]
    | Annotated[InputImageBlock, Tag("@input_image")]
    | Annotated[ImageBlock, Tag("@image")],
    by_type(
        {
            "text": "@text",
            "input_text": "@text",
            "image_url": "@image_url",
            "input_image": "@input_image",
            "image": "@image",
        },
        "a part of type 'text', 'image_url', 'input_image' or 'image'",
    ),
]


class ChatMessage(WireModel):
    """`content` null is nothing said, as some clients write an empty turn of the assistant, and OpenAI one that only
    calls tools."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: Annotated[list[CallMade], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_call_id: CallId | None = None
    name: Annotated[str, Field(pattern=r"^[^\s<|\\/>]{1,64}$")] | None = None
    content: (
        Annotated[
            Annotated[Text, Tag("@text")] | Annotated[list[TaggedBlock], Items, Tag("@blocks")],
            text_or("@blocks", list, "a string or a list of parts"),
        ]
        | None
    ) = None

    @model_validator(mode="before")
    @classmethod
    def _drop_no_ops(cls, body: object) -> object:
        return without_no_ops(body, UNSUPPORTED_IN_MESSAGE)
