"""What answers look like, for the OpenAPI document. Routes write their answers by hand (`service.chat.answer`);
tests/service/http/test_openapi.py holds them to these."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from engine.reports import ImageOutcome


class ExplanationBody(BaseModel):
    """The visual tokens of an image, one by one. `grid` is rows and columns; `states` are 0 reused, 1 compiled,
    2 refreshed, 3 exact, 4 chained; `scores` are in units of the image's mean; `drift` is relative; `shares` are of the
    layers. Null is what there is no value for."""

    grid: tuple[int, int] | None
    states: list[Annotated[int, Field(ge=0, le=4)]]
    scores: list[float | None] | None
    drift: list[float | None] | None
    shares: list[float | None] | None


class ImageBody(BaseModel):
    """One image of a `kv_report`; `key` is the beginning of its entry's."""

    key: str
    outcome: ImageOutcome
    reason: str
    tier: str | None
    bytes: int
    load_ms: float
    compile_ms: float
    tokens: int
    refreshed: int
    exact: bool
    chained: int
    same_as: int | None
    explained: ExplanationBody | None


class TimingsBody(BaseModel):
    queue_ms: float
    images_ms: float
    ttft_ms: float
    total_ms: float


class ReportBody(BaseModel):
    """What was reused from the store, compiled because it was not there, refreshed for this request, and taken from a
    chain: together `visual_tokens`. `chained_exact_tokens` and `chained_refreshed_tokens` count text too.
    `turns_reused_tokens` are text behind an edit, as an earlier history left it. `fallback`
    says why it ran as full prefill although reuse was asked for. `refined_rows` of the prompt, text among them, were
    computed anew while the answer was written."""

    policy: str
    refresh_ratio: float
    fallback: str | None
    visual_tokens: int
    reused_tokens: int
    compiled_tokens: int
    refreshed_tokens: int
    chained_tokens: int
    chained_exact_tokens: int
    chained_refreshed_tokens: int
    turns_reused_tokens: int
    refined_rows: int
    images: list[ImageBody]
    timings: TimingsBody


class PromptTokensBody(BaseModel):
    """`image_tokens`, `text_tokens` and `audio_tokens` add up to `prompt_tokens`."""

    cached_tokens: int
    cache_write_tokens: int
    image_tokens: int
    text_tokens: int
    audio_tokens: int


class UsageBody(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensBody


class CalledFunctionBody(BaseModel):
    name: str
    arguments: str


class ToolCallBody(BaseModel):
    id: str
    type: Literal["function"]
    function: CalledFunctionBody


class AnswerMessage(BaseModel):
    """`content` is null where the answer is nothing but `tool_calls`, which others do not have."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: list[ToolCallBody] = []


class ChoiceBody(BaseModel):
    index: int
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length", "tool_calls"]


class CompletionBody(BaseModel):
    """OpenAI's chat completion, and the report beside it."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChoiceBody]
    usage: UsageBody
    kv_report: ReportBody
