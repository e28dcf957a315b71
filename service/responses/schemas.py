"""Wire models of `POST /v1/responses`, as strict as those of `/v1/chat`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from engine.tools import Tools
from service.chat.cache_schemas import UNSUPPORTED_IN_CACHE, CacheControls, agreed_salt
from service.chat.form_schemas import FreeText, JsonObject, NamedSchema
from service.chat.message_schemas import InputFileBlock, InputImageBlock, Items, Text
from service.chat.retention import Retention
from service.chat.schemas import MetadataKey, MetadataValue, StreamOptions
from service.chat.tool_schemas import (
    MOST_TOOLS,
    CallId,
    Function,
    ToolName,
    choice_tag,
    chosen,
    tool,
)
from service.http.wire import Label, Salt, Whole, WireModel, by_type, conflict, text_or, without_no_ops

# What is known of this API and not done: nothing is kept here that a later request could refer to, and the provider's
# own tools run elsewhere. A value that changes nothing is let through.
UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "background": (False,),
    "context_management": ([],),
    "conversation": (),
    "max_tool_calls": (),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "prompt_cache_options": (),
    "reasoning": ({}, {"effort": "none"}, {"effort": None, "summary": None}),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "truncation": ("disabled",),
}
_IN_ITEMS: Final[dict[str, tuple[object, ...]]] = {
    "annotations": ([],),
    "async": (False,),
    "async_": (False,),  # so OpenAI's own client sends it back
    "caller": ({"type": "direct"},),
    "logprobs": ([],),
    "namespace": (),
    "phase": ("final_answer", "commentary"),
    "verbosity": ("medium",),
}
_LOGPROBS: Final = "message.output_text.logprobs"
Status = Literal["in_progress", "completed", "incomplete"]


class _WithNoOps(WireModel):
    @model_validator(mode="before")
    @classmethod
    def _drop_no_ops(cls, body: object) -> object:
        return without_no_ops(body, _IN_ITEMS)


class TextPart(_WithNoOps):
    type: Literal["input_text", "output_text", "text"]
    text: Text


_TEXTS: Final = dict.fromkeys(("input_text", "output_text", "text"), "@text")
Content = Annotated[
    Annotated[Text, Tag("@text")]
    | Annotated[
        list[
            Annotated[
                Annotated[TextPart, Tag("@text")]
                | Annotated[InputImageBlock, Tag("@image")]
                | Annotated[InputFileBlock, Tag("@file")],
                by_type(
                    {**_TEXTS, "input_image": "@image", "input_file": "@file"},
                    "a part of type 'input_text', 'output_text', 'input_image' or 'input_file'",
                ),
            ]
        ],
        Items,
        Tag("@parts"),
    ],
    text_or("@parts", list, "a string or a list of parts"),
]


class MessageItem(_WithNoOps):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Content
    id: Label | None = None
    status: Status | None = None


class CallItem(_WithNoOps):
    type: Literal["function_call"]
    call_id: CallId
    name: ToolName
    arguments: str
    id: Label | None = None
    status: Status | None = None


class ResultItem(_WithNoOps):
    type: Literal["function_call_output"]
    call_id: CallId
    output: Content
    id: Label | None = None
    status: Status | None = None


def _item_tag(value: Any) -> str | None:
    """A message may leave its type out."""
    own = value if isinstance(value, dict) else vars(value) if isinstance(value, WireModel) else {}
    kind = own.get("type", "message" if "role" in own else None)
    known = {"message": "@message", "function_call": "@call", "function_call_output": "@result"}
    return known.get(kind) if isinstance(kind, str) else None


Item = MessageItem | CallItem | ResultItem
TaggedItem = Annotated[
    Annotated[MessageItem, Tag("@message")]
    | Annotated[CallItem, Tag("@call")]
    | Annotated[ResultItem, Tag("@result")],
    Discriminator(
        _item_tag,
        custom_error_type="unknown_variant",
        custom_error_message="an item of type 'message', 'function_call' or 'function_call_output'",
    ),
]


class FunctionTool(Function):
    type: Literal["function"]


class FunctionChoice(WireModel):
    type: Literal["function"]
    name: ToolName


class AllowedChoice(WireModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[FunctionChoice], Field(min_length=1, max_length=MOST_TOOLS, fail_fast=True)]


class SchemaFormat(NamedSchema):
    type: Literal["json_schema"]


class TextOptions(_WithNoOps):
    format: (
        Annotated[
            Annotated[FreeText, Tag("@text")]
            | Annotated[JsonObject, Tag("@json_object")]
            | Annotated[SchemaFormat, Tag("@json_schema")],
            by_type(
                {"text": "@text", "json_object": "@json_object", "json_schema": "@json_schema"},
                "an object of type 'text', 'json_object' or 'json_schema'",
            ),
        ]
        | None
    ) = None


class ResponsesRequest(WireModel):
    """Temperature is 0 (greedy) unless set. `cache` and `cache_salt` are ours, as in `/v1/chat`."""

    model: Label | None = None
    input: Annotated[
        Annotated[Text, Tag("@text")]
        | Annotated[list[TaggedItem], Items, Field(min_length=1), Tag("@items")],
        text_or("@items", list, "a string or a list of items"),
    ]
    instructions: Text | None = None
    max_output_tokens: Annotated[Whole, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    tools: (
        Annotated[
            list[
                Annotated[
                    Annotated[FunctionTool, Tag("@function")],
                    by_type({"function": "@function"}, "a tool of type 'function'"),
                ]
            ],
            Field(max_length=MOST_TOOLS, fail_fast=True),
        ]
        | None
    ) = None
    tool_choice: (
        Annotated[
            Annotated[Literal["none", "auto", "required"], Tag("@word")]
            | Annotated[FunctionChoice, Tag("@function")]
            | Annotated[AllowedChoice, Tag("@allowed_tools")],
            Discriminator(
                choice_tag,
                custom_error_type="unknown_variant",
                custom_error_message=(
                    "'none', 'auto', 'required' or an object of type 'function' or 'allowed_tools'"
                ),
            ),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    include: Annotated[list[Literal["message.output_text.logprobs"]], Field(max_length=8)] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Retention | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16, fail_fast=True)] | None = None
    cache: CacheControls | None = None
    cache_salt: Salt | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_no_ops(cls, body: object) -> object:
        return without_no_ops(body, UNSUPPORTED)

    @model_validator(mode="after")
    def _fields_agree(self) -> ResponsesRequest:
        if self.top_logprobs and not self.wants_logprobs:
            raise conflict("top_logprobs", f"'top_logprobs' goes with '{_LOGPROBS}' in 'include'")
        if self.stream_options is not None and not self.stream:
            raise conflict("stream_options", "'stream_options' goes with 'stream': true")
        agreed_salt(self.cache, self.cache_salt)
        self.known_tools()
        return self

    @classmethod
    def is_known_elsewhere(cls, place: Sequence[int | str]) -> bool:
        *above, name = place
        if above == ["cache"]:
            return name in UNSUPPORTED_IN_CACHE
        return name in (_IN_ITEMS if above else UNSUPPORTED)

    @property
    def salt(self) -> str | None:
        return agreed_salt(self.cache, self.cache_salt)

    @property
    def wants_logprobs(self) -> bool:
        return _LOGPROBS in (self.include or ())

    def known_tools(self) -> Tools | None:
        """What the engine is told; None where there are no tools."""
        choice = self.tool_choice
        if not self.tools:
            if choice not in (None, "none", "auto"):
                raise conflict("tool_choice", "'tool_choice' goes with 'tools'")
            return None
        known = [tool(one.name, one.description, one.parameters) for one in self.tools]
        names = [one.name for one in known]
        if isinstance(choice, FunctionChoice):
            return chosen(known, "required", [choice.name], False)
        if isinstance(choice, AllowedChoice):
            return chosen(known, choice.mode, [one.name for one in choice.tools], self.parallel_tool_calls)
        return chosen(known, choice or "auto", names, self.parallel_tool_calls)
