"""Wire models of `POST /v1/chat`. Strict: wrong types are not bent into shape and unknown fields are refused.

Messages may be in several dialects (`message_schemas.py`), or `{prompt, images}` for somebody with curl.
`service.chat.conversation` makes one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from service.chat.cache_schemas import UNSUPPORTED_IN_CACHE, CacheControls, Option, OptionName, agreed_salt
from service.chat.form_schemas import FreeText, ResponseFormat, StructuredOutputs
from service.chat.message_schemas import UNSUPPORTED_IN_MESSAGE, ChatMessage, Items, Text
from service.chat.retention import Retention
from service.chat.tool_schemas import ToolChoice, ToolList, tools_of
from service.http.wire import (
    TOKEN_ID_PATTERN,
    Label,
    Salt,
    Whole,
    WireModel,
    conflict,
    text_or,
    without_no_ops,
)

# Parameters of this API's habits that are known and not built. A value that changes nothing is let through,
# since many clients send it; any other is refused by name, never ignored.
UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": (),
    "verbosity": ("medium",),
    "web_search_options": (),
}
LAST_PRIORITY: Final = 100
"""What a caller may choose to be served behind everybody else's requests."""
MOST_ANSWERS: Final = 8
"""Of one request. Each takes KV of its own beside the others."""


def _off(value: bool) -> bool:
    # `Literal[False]` would take 0 for it.
    if value:
        raise PydanticCustomError("unknown_variant", "false")
    return value


class StreamOptions(WireModel):
    include_usage: bool | None = None
    # Padding against traffic analysis, which OpenAI's SDK may send; there is none here to switch off.
    include_obfuscation: Annotated[bool, AfterValidator(_off), WithJsonSchema({"const": False})] | None = None


Stop = Annotated[str, Field(min_length=1, max_length=1024)]
StopToken = Annotated[Whole, Field(ge=0, lt=2**31)]
TokenId = Annotated[str, Field(pattern=TOKEN_ID_PATTERN)]
Bias = Annotated[float, Field(ge=-100, le=100)]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class ChatRequest(WireModel):
    """Either `messages`, or `prompt` with `images`. Temperature is 0 (greedy) unless set."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["messages"]}, {"required": ["prompt"]}]},
    )

    model: Label | None = None
    messages: Annotated[list[ChatMessage], Items, Field(min_length=1)] | None = None
    prompt: Text | None = None
    images: Annotated[list[str], Items] | None = None
    max_tokens: Annotated[Whole, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[Whole, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[TokenId, Bias], Field(max_length=1024, fail_fast=True)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: (
        Annotated[
            Annotated[Stop, Tag("@text")]
            | Annotated[list[Stop], Field(max_length=4, fail_fast=True), Tag("@list")],
            text_or("@list", list, "a string or a list of up to 4 strings"),
        ]
        | None
    ) = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stop_token_ids: Annotated[list[StopToken], Field(max_length=64, fail_fast=True)] | None = None
    min_tokens: Annotated[Whole, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    tools: ToolList | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    n: Annotated[Whole, Field(ge=1, le=MOST_ANSWERS)] | None = None
    priority: Annotated[Whole, Field(ge=-LAST_PRIORITY, le=LAST_PRIORITY)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    prompt_cache_retention: Retention | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16, fail_fast=True)] | None = None
    cache: CacheControls | None = None
    cache_salt: Salt | None = None
    chat_template_kwargs: Annotated[dict[OptionName, Option], Field(max_length=16, fail_fast=True)] | None = (
        None
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_no_ops(cls, body: object) -> object:
        return without_no_ops(body, UNSUPPORTED)

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatRequest:
        if (self.messages is None) == (self.prompt is None):
            raise conflict("messages", "give either 'messages' or 'prompt'")
        if self.images is not None and self.prompt is None:
            raise conflict("images", "'images' goes with 'prompt'; in 'messages' images are parts")
        if self.structured_outputs is not None and not isinstance(self.response_format, FreeText | None):
            raise conflict(
                "structured_outputs", "'structured_outputs' and 'response_format' both name a form"
            )
        if self.prompt_cache_retention == "24h" and self.cache and self.cache.mode in ("read", "bypass"):
            raise conflict(
                "prompt_cache_retention",
                f"with 'cache.mode' {self.cache.mode} nothing is stored that could be kept for 24h",
            )
        if self.tools and self.structured_outputs and self.structured_outputs.json_ is None:
            raise conflict("structured_outputs", "beside 'tools' an answer may have a JSON form only")
        tools_of(self.tools, self.tool_choice, self.parallel_tool_calls)
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise conflict("max_completion_tokens", "'max_tokens' and 'max_completion_tokens' differ")
        if self.min_tokens and self.token_limit is not None and self.min_tokens > self.token_limit:
            raise conflict("min_tokens", "'min_tokens' is more than 'max_tokens'")
        if self.ignore_eos and (self._has_form or self.tools):
            raise conflict("ignore_eos", "an answer of a given form ends where the form does")
        if self.top_logprobs and not self.logprobs:
            raise conflict("top_logprobs", "'top_logprobs' goes with 'logprobs': true")
        if self.stream_options is not None and not self.stream:
            raise conflict("stream_options", "'stream_options' goes with 'stream': true")
        agreed_salt(self.cache, self.cache_salt)
        return self

    @classmethod
    def is_known_elsewhere(cls, place: Sequence[int | str]) -> bool:
        *above, name = place
        if above == ["cache"]:
            return name in UNSUPPORTED_IN_CACHE
        if len(above) == 2 and above[0] == "messages":
            return name in UNSUPPORTED_IN_MESSAGE
        if name == "file_data":
            return True  # of a file that was not uploaded
        return not above and name in UNSUPPORTED

    @property
    def _has_form(self) -> bool:
        return self.structured_outputs is not None or not isinstance(self.response_format, FreeText | None)

    @property
    def salt(self) -> str | None:
        return agreed_salt(self.cache, self.cache_salt)

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens
