"""Wire models of `POST /v1/chat`. Strict: wrong types are not bent into shape and unknown fields are refused.

Several dialects of messages are understood (OpenAI parts, a bare string as `image_url`, `input_image` of the
Responses API, Anthropic image blocks, and `{prompt, images}` for somebody with curl). `service.chat.conversation`
makes one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from service.http.wire import Label, Salt, Whole, WireModel, conflict

# Parameters of this API's habits that are known and not built. A value that changes nothing is let through,
# since many clients send it; any other is refused by name, never ignored.
UNSUPPORTED: Final[dict[str, tuple[object, ...]]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": (),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": ("medium",),
    "web_search_options": (),
}
# What answers hold besides role and content, ours too: a client may send a turn back as it came.
UNSUPPORTED_IN_MESSAGE: Final[dict[str, tuple[object, ...]]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "name": (),
    "refusal": (),
    "tool_calls": ([],),
}
UNSUPPORTED_IN_CACHE: Final[dict[str, tuple[object, ...]]] = {"id": ()}

MAX_TEXT: Final = 4 * 1024**2
"""Characters of all texts of a request together: no model reads as many, and to count their tokens takes seconds."""
Text = Annotated[str, Field(max_length=MAX_TEXT)]
_Items = Field(max_length=2048, fail_fast=True)

LAST_PRIORITY: Final = 100
"""What a caller may choose to be served behind everybody else's requests."""
# Prompt rows of one decode step: more only make the second token late.
MOST_REFINED_ROWS: Final = 4096


def _without_no_ops(body: object, known: dict[str, tuple[object, ...]]) -> object:
    if not isinstance(body, dict):
        return body
    return {name: value for name, value in body.items() if not _is_no_op(value, known.get(name))}


def _is_no_op(value: object, no_ops: tuple[object, ...] | None) -> bool:
    # `1 == True` in Python and not in JSON.
    return no_ops is not None and (
        value is None
        or any(value == no_op and isinstance(value, bool) == isinstance(no_op, bool) for no_op in no_ops)
    )


def _by_type(tags: dict[str, str], expected: str) -> Discriminator:
    """Picks the model by the field `type`. The tags start with `@` so that a path in an error can leave them
    out."""

    def tag(value: Any) -> str | None:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return tags.get(kind) if isinstance(kind, str) else None

    return Discriminator(tag, custom_error_type="unknown_variant", custom_error_message=expected)


def _text_or(tag: str, kind: type, expected: str) -> Discriminator:
    def choose(value: Any) -> str | None:
        return "@text" if isinstance(value, str) else tag if isinstance(value, kind | BaseModel) else None

    return Discriminator(choose, custom_error_type="unknown_variant", custom_error_message=expected)


class CacheControl(WireModel):
    """Anthropic's mark. Accepted, and without effect: every image is cached here, for longer than that."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


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
        _text_or("@object", dict, "a string or an object with 'url'"),
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
        _by_type({"base64": "@base64", "url": "@url"}, "an object of type 'base64' or 'url'"),
    ]
    cache_control: CacheControl | None = None


Block = TextBlock | ImageUrlBlock | InputImageBlock | ImageBlock
TaggedBlock = Annotated[
    Annotated[TextBlock, Tag("@text")]
    | Annotated[ImageUrlBlock, Tag("@image_url")]
    | Annotated[InputImageBlock, Tag("@input_image")]
    | Annotated[ImageBlock, Tag("@image")],
    _by_type(
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
    """`content` null is nothing said, as some clients write an empty turn of the assistant."""

    role: Literal["system", "developer", "user", "assistant"]
    content: (
        Annotated[
            Annotated[Text, Tag("@text")] | Annotated[list[TaggedBlock], _Items, Tag("@blocks")],
            _text_or("@blocks", list, "a string or a list of parts"),
        ]
        | None
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_no_ops(cls, body: object) -> object:
        return _without_no_ops(body, UNSUPPORTED_IN_MESSAGE)


def _off(value: bool) -> bool:
    # `Literal[False]` would take 0 for it.
    if value:
        raise PydanticCustomError("unknown_variant", "false")
    return value


class StreamOptions(WireModel):
    include_usage: bool | None = None
    # Padding against traffic analysis, which OpenAI's SDK may send; there is none here to switch off.
    include_obfuscation: Annotated[bool, AfterValidator(_off), WithJsonSchema({"const": False})] | None = None


OptionName = Annotated[str, Field(max_length=64)]
Option = Annotated[
    Annotated[bool, Tag("@bool")]
    | Annotated[int, Tag("@int")]
    | Annotated[float, Tag("@float")]
    | Annotated[str, Field(max_length=256), Tag("@str")],
    Discriminator(
        lambda value: f"@{type(value).__name__}",
        custom_error_type="unknown_variant",
        custom_error_message="a string, a number, true or false",
    ),
]


class CacheControls(WireModel):
    """How the request uses the store of image KV."""

    mode: Literal["auto", "read", "bypass", "rewrite"] | None = None
    policy: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    refresh_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    refine: Annotated[Whole, Field(ge=0, le=MOST_REFINED_ROWS)] | None = None
    options: Annotated[dict[OptionName, Option], Field(max_length=32, fail_fast=True)] | None = None
    salt: Salt | None = None
    chain: Literal["auto", "exact", "off"] | None = None
    pin: bool | None = None
    ttl: Annotated[float, Field(ge=1, le=86_400)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_no_ops(cls, body: object) -> object:
        return _without_no_ops(body, UNSUPPORTED_IN_CACHE)

    @model_validator(mode="after")
    def _pin_makes_sense(self) -> CacheControls:
        if self.ttl is not None and not self.pin:
            raise conflict("cache.ttl", "'cache.ttl' goes with 'cache.pin': true")
        if self.pin and self.mode in ("read", "bypass"):
            raise conflict(
                "cache.pin", f"with 'cache.mode' {self.mode} nothing is stored that could be pinned"
            )
        return self


Stop = Annotated[str, Field(min_length=1, max_length=1024)]
TokenId = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]
Bias = Annotated[float, Field(ge=-100, le=100)]
MetadataKey = Annotated[str, Field(max_length=64)]
MetadataValue = Annotated[str, Field(max_length=512)]


class ChatRequest(WireModel):
    """Either `messages`, or `prompt` with `images`. Temperature is 0 (greedy) unless set."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["messages"]}, {"required": ["prompt"]}]},
    )

    model: Label | None = None
    messages: Annotated[list[ChatMessage], _Items, Field(min_length=1)] | None = None
    prompt: Text | None = None
    images: Annotated[list[str], _Items] | None = None
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
            _text_or("@list", list, "a string or a list of up to 4 strings"),
        ]
        | None
    ) = None
    n: Annotated[Whole, Field(ge=1, le=1)] | None = None
    priority: Annotated[Whole, Field(ge=-LAST_PRIORITY, le=LAST_PRIORITY)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=16, fail_fast=True)] | None = None
    cache: CacheControls | None = None
    cache_salt: Salt | None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_no_ops(cls, body: object) -> object:
        return _without_no_ops(body, UNSUPPORTED)

    @model_validator(mode="after")
    def _fields_agree(self) -> ChatRequest:
        if (self.messages is None) == (self.prompt is None):
            raise conflict("messages", "give either 'messages' or 'prompt'")
        if self.images is not None and self.prompt is None:
            raise conflict("images", "'images' goes with 'prompt'; in 'messages' images are parts")
        limits = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(limits) > 1:
            raise conflict("max_completion_tokens", "'max_tokens' and 'max_completion_tokens' differ")
        if self.top_logprobs and not self.logprobs:
            raise conflict("top_logprobs", "'top_logprobs' goes with 'logprobs': true")
        if self.stream_options is not None and not self.stream:
            raise conflict("stream_options", "'stream_options' goes with 'stream': true")
        if (
            self.cache_salt is not None
            and self.cache is not None
            and self.cache.salt not in (None, self.cache_salt)
        ):
            raise conflict("cache_salt", "'cache_salt' and 'cache.salt' differ")
        return self

    @classmethod
    def is_known_elsewhere(cls, place: Sequence[int | str]) -> bool:
        *above, name = place
        if above == ["cache"]:
            return name in UNSUPPORTED_IN_CACHE
        if len(above) == 2 and above[0] == "messages":
            return name in UNSUPPORTED_IN_MESSAGE
        return not above and name in UNSUPPORTED

    @property
    def salt(self) -> str | None:
        return self.cache_salt or (self.cache.salt if self.cache else None)

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens
