"""What answers look like, for the OpenAPI document. Routes write their answers by hand (`service.answer`);
tests/service/test_openapi.py holds them to these."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from engine.messages import ImageOutcome
from store.types import EntryInfo, QuotaInfo


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


class TimingsBody(BaseModel):
    queue_ms: float
    images_ms: float
    ttft_ms: float
    total_ms: float


class ReportBody(BaseModel):
    """What was reused. `fallback` says why it ran as full prefill although reuse was asked for."""

    policy: str
    refresh_ratio: float
    fallback: str | None
    visual_tokens: int
    reused_tokens: int
    refreshed_tokens: int
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


class AnswerMessage(BaseModel):
    role: Literal["assistant"]
    content: str
    refusal: None


class ChoiceBody(BaseModel):
    index: Literal[0]
    message: AnswerMessage
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class CompletionBody(BaseModel):
    """OpenAI's chat completion, and the report beside it."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChoiceBody]
    usage: UsageBody
    kv_report: ReportBody


class LookupBody(BaseModel):
    digest: str
    width: int
    height: int
    entry: EntryInfo | None


class QuotasBody(BaseModel):
    quotas: list[QuotaInfo]


class CompactBody(BaseModel):
    """Bytes given back by tier, or why a tier could not."""

    tiers: dict[str, int | str]


class LivezBody(BaseModel):
    status: Literal["alive", "stalled"]
    progress_age_seconds: float


class ReadyzBody(BaseModel):
    status: Literal["ready", "unready"]
    reasons: list[str]
    degraded: list[str]


class VersionModel(BaseModel):
    name: str
    device: str
    dtype: str


class VersionBody(BaseModel):
    version: str
    model: VersionModel


class ArchitectureBody(BaseModel):
    input_modalities: list[str]
    output_modalities: list[str]


class ModelBody(BaseModel):
    """OpenAI's model, with what it can read and how it may be asked."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    max_model_len: int
    architecture: ArchitectureBody
    policies: list[str]
    default_policy: str
    default_refresh_ratio: float


class ModelsBody(BaseModel):
    object: Literal["list"]
    data: list[ModelBody]
