"""Wire models of `POST /v1/messages`, as strict as those of `/v1/chat`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field, Tag, model_validator

from engine.tools import Tools, ToolUse
from service.chat.cache_schemas import UNSUPPORTED_IN_CACHE, CacheControls, agreed_salt
from service.chat.form_schemas import Schema
from service.chat.message_schemas import CacheControl, FileSource, ImageBlock, Items, Text
from service.chat.schemas import Stop
from service.chat.tool_schemas import (
    MOST_TOOLS,
    CallId,
    Description,
    Parameters,
    ToolName,
    chosen,
    tool,
)
from service.http.wire import Label, Salt, Whole, WireModel, by_type, conflict, text_or, without_no_ops

UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "container": (),
    "context_management": (),
    "diagnostics": (),
    "inference_geo": (),
    "mcp_servers": ([],),
    "service_tier": ("auto", "standard_only"),
    "speed": ("standard",),
    "thinking": ({"type": "disabled"},),
    "user_profile_id": (),
}
_IN_TEXT: Final[dict[str, tuple[object, ...]]] = {
    "citations": ([], {"enabled": False}),
    "context": (),
    "title": (),
}
_IN_CALL: Final[dict[str, tuple[object, ...]]] = {"caller": ({"type": "direct"},), "toolset_name": ()}
_IN_TOOL: Final[dict[str, tuple[object, ...]]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "eager_input_streaming": (True, False),
    "input_examples": ([],),
}


class _WithNoOps(WireModel):
    """Fields of others that change nothing are let through, any other value of them is refused by name."""

    @model_validator(mode="before")
    @classmethod
    def _drop_no_ops(cls, body: object) -> object:
        return without_no_ops(body, {**_IN_TEXT, **_IN_CALL, **_IN_TOOL})


class TextPart(_WithNoOps):
    type: Literal["text"]
    text: Text
    cache_control: CacheControl | None = None


class DocumentPart(_WithNoOps):
    """An uploaded file, of which every page is an image."""

    type: Literal["document"]
    source: Annotated[
        Annotated[FileSource, Tag("@file")], by_type({"file": "@file"}, "an object of type 'file'")
    ]
    cache_control: CacheControl | None = None


_SHOWN: Final = {"text": "@text", "image": "@image", "document": "@document"}
ShownPart = Annotated[
    Annotated[TextPart, Tag("@text")]
    | Annotated[ImageBlock, Tag("@image")]
    | Annotated[DocumentPart, Tag("@document")],
    by_type(_SHOWN, "a block of type 'text', 'image' or 'document'"),
]
Shown = Annotated[
    Annotated[Text, Tag("@text")] | Annotated[list[ShownPart], Items, Tag("@blocks")],
    text_or("@blocks", list, "a string or a list of blocks"),
]


class ResultPart(_WithNoOps):
    type: Literal["tool_result"]
    tool_use_id: CallId
    content: Shown | None = None
    is_error: bool | None = None
    cache_control: CacheControl | None = None


class CallPart(_WithNoOps):
    type: Literal["tool_use"]
    id: CallId
    name: ToolName
    input: dict[str, Any]
    cache_control: CacheControl | None = None


Seen = TextPart | ImageBlock | DocumentPart
Part = Seen | ResultPart | CallPart
TaggedPart = Annotated[
    Annotated[TextPart, Tag("@text")]
    | Annotated[ImageBlock, Tag("@image")]
    | Annotated[DocumentPart, Tag("@document")]
    | Annotated[ResultPart, Tag("@tool_result")]
    | Annotated[CallPart, Tag("@tool_use")],
    by_type(
        {**_SHOWN, "tool_result": "@tool_result", "tool_use": "@tool_use"},
        "a block of type 'text', 'image', 'document', 'tool_use' or 'tool_result'",
    ),
]


class Turn(WireModel):
    role: Literal["user", "assistant"]
    content: Annotated[
        Annotated[Text, Tag("@text")] | Annotated[list[TaggedPart], Items, Tag("@blocks")],
        text_or("@blocks", list, "a string or a list of blocks"),
    ]


System = Annotated[
    Annotated[Text, Tag("@text")] | Annotated[list[TextPart], Items, Tag("@blocks")],
    text_or("@blocks", list, "a string or a list of blocks"),
]


class DeclaredTool(_WithNoOps):
    """`type` names the provider's own tools; one that the caller runs has none, or `custom`."""

    type: Literal["custom"] | None = None
    name: ToolName
    description: Description | None = None
    input_schema: Parameters
    strict: bool | None = None
    cache_control: CacheControl | None = None


class ToolChoice(WireModel):
    type: Literal["auto", "any", "tool", "none"]
    name: ToolName | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(WireModel):
    type: Literal["json_schema"]
    schema_: Annotated[Schema, Field(alias="schema")]


class OutputConfig(WireModel):
    format: OutputFormat | None = None


class Metadata(WireModel):
    user_id: Label | None = None


class CountRequest(WireModel):
    """What counts as input. `cache` and `cache_salt` are ours, as in `/v1/chat`."""

    model: Label | None = None
    messages: Annotated[list[Turn], Items, Field(min_length=1)]
    system: System | None = None
    tools: Annotated[list[DeclaredTool], Field(max_length=MOST_TOOLS, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    cache: CacheControls | None = None
    cache_salt: Salt | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_no_ops(cls, body: object) -> object:
        return without_no_ops(body, UNSUPPORTED)

    @model_validator(mode="after")
    def _fields_agree(self) -> CountRequest:
        choice = self.tool_choice
        if choice is not None and (choice.name is not None) != (choice.type == "tool"):
            raise conflict("tool_choice", "'name' goes with the type 'tool', which needs it")
        agreed_salt(self.cache, self.cache_salt)
        self.known_tools()
        return self

    @classmethod
    def is_known_elsewhere(cls, place: Sequence[int | str]) -> bool:
        *above, name = place
        if above == ["cache"]:
            return name in UNSUPPORTED_IN_CACHE
        return name in (UNSUPPORTED if not above else {**_IN_TEXT, **_IN_CALL, **_IN_TOOL, "effort": ()})

    @property
    def salt(self) -> str | None:
        return agreed_salt(self.cache, self.cache_salt)

    def known_tools(self) -> Tools | None:
        """What the engine is told; None where there are no tools."""
        choice = self.tool_choice
        if not self.tools:
            if choice is not None and choice.type in ("any", "tool"):
                raise conflict("tool_choice", "'tool_choice' goes with 'tools'")
            return None
        known = [tool(one.name, one.description, one.input_schema) for one in self.tools]
        use, names = _use(choice), [one.name for one in known]
        named = [choice.name] if choice is not None and choice.name is not None else names
        return chosen(known, use, named, not (choice is not None and choice.disable_parallel_tool_use))


class MessagesRequest(CountRequest):
    """`max_tokens` may be left out: then the model's own end counts. Temperature is 0 (greedy) unless set."""

    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=0)] | None = None
    stop_sequences: Annotated[list[Stop], Field(max_length=16, fail_fast=True)] | None = None
    metadata: Metadata | None = None
    stream: bool | None = None


def _use(choice: ToolChoice | None) -> ToolUse:
    kind = "auto" if choice is None else choice.type
    return "none" if kind == "none" else "auto" if kind == "auto" else "required"
