"""Wire models of the turns of a conversation, in the dialects that are understood: OpenAI parts, a bare string as
`image_url`, `input_image` of the Responses API, Anthropic image blocks."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, Tag, model_validator

from service.chat.tool_schemas import MOST_TOOLS, CallId, CallMade
from service.http.wire import Label, WireModel, by_type, conflict, text_or, without_no_ops

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
Detail = Literal["auto", "high", "low"]
FileId = Annotated[str, Field(max_length=64)]
Pages = Annotated[str, Field(min_length=1, max_length=256)]
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
    detail: Detail | None = None


class ImageUrlBlock(WireModel):
    type: Literal["image_url"]
    image_url: Annotated[
        Annotated[str, Tag("@text")] | Annotated[ImageUrl, Tag("@object")],
        text_or("@object", dict, "a string or an object with 'url'"),
    ]


class InputImageBlock(WireModel):
    """Of the Responses API: a URL, or an uploaded file."""

    type: Literal["input_image"]
    image_url: str | None = None
    file_id: FileId | None = None
    pages: Pages | None = None
    detail: Detail | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> InputImageBlock:
        if (self.image_url is None) == (self.file_id is None):
            raise conflict("image_url", "give either 'image_url' or 'file_id'")
        if self.pages is not None and self.file_id is None:
            raise conflict("pages", "'pages' goes with 'file_id'")
        return self


class InputFileBlock(WireModel):
    """Of the Responses API."""

    type: Literal["input_file"]
    file_id: FileId
    filename: Label | None = None
    pages: Pages | None = None
    detail: Detail | None = None


class FileOf(WireModel):
    """`pages` of the file such as `1-3,7`: ours, all without it. `filename` is accepted, not used."""

    file_id: FileId
    filename: Label | None = None
    pages: Pages | None = None


class FileBlock(WireModel):
    """An uploaded file, as OpenAI's chat names it."""

    type: Literal["file"]
    file: FileOf


class ImageFile(WireModel):
    file_id: FileId
    detail: Detail | None = None


class ImageFileBlock(WireModel):
    """An uploaded file, as OpenAI's assistants name it."""

    type: Literal["image_file"]
    image_file: ImageFile


class Base64Source(WireModel):
    """`media_type` is not believed: the content is looked at."""

    type: Literal["base64"]
    media_type: Label | None = None
    data: str


class UrlSource(WireModel):
    type: Literal["url"]
    url: str


class FileSource(WireModel):
    type: Literal["file"]
    file_id: FileId


Source = Base64Source | UrlSource | FileSource


class ImageBlock(WireModel):
    type: Literal["image"]
    source: Annotated[
        Annotated[Base64Source, Tag("@base64")]
        | Annotated[UrlSource, Tag("@url")]
        | Annotated[FileSource, Tag("@file")],
        by_type(
            {"base64": "@base64", "url": "@url", "file": "@file"},
            "an object of type 'base64', 'url' or 'file'",
        ),
    ]
    cache_control: CacheControl | None = None


PictureBlock = ImageUrlBlock | InputImageBlock | InputFileBlock | FileBlock | ImageFileBlock | ImageBlock
Block = TextBlock | PictureBlock
TaggedBlock = Annotated[
    Annotated[TextBlock, Tag("@text")]
    | Annotated[ImageUrlBlock, Tag("@image_url")]
    | Annotated[InputImageBlock, Tag("@input_image")]
    | Annotated[InputFileBlock, Tag("@input_file")]
    | Annotated[FileBlock, Tag("@file")]
    | Annotated[ImageFileBlock, Tag("@image_file")]
    | Annotated[ImageBlock, Tag("@image")],
    by_type(
        {
            "text": "@text",
            "input_text": "@text",
            "image_url": "@image_url",
            "input_image": "@input_image",
            "input_file": "@input_file",
            "file": "@file",
            "image_file": "@image_file",
            "image": "@image",
        },
        "a part of type 'text', 'image_url', 'image', 'file', 'image_file', 'input_image' or 'input_file'",
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
