"""What a request is told of itself at its end: what was reused, how long it took, what is counted. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ImageOutcome = Literal["hit", "miss", "outdated", "corrupt", "bypass"]


# Where the KV of a visual token may be from.
TOKEN_STATES = ("reused", "compiled", "refreshed", "exact", "chained")


@dataclass(frozen=True, slots=True)
class Explanation:
    """The visual tokens of one image, one by one, in prompt order. `grid`: rows and columns over the picture, None
    where they are no such grid. `states`: a byte each, a place in `TOKEN_STATES`. `scores`: what the policy chose by,
    in units of the image's mean. `drift`: how far the keys of a token that was computed are from the stored ones,
    relative to their length, mean over the layers. `shares`: of the layers that computed a token, for policies that go
    layer by layer. A value is None where there is none for that token, a whole tuple where there is none at all."""

    grid: tuple[int, int] | None
    states: bytes
    scores: tuple[float | None, ...] | None
    drift: tuple[float | None, ...] | None
    shares: tuple[float | None, ...] | None


@dataclass(frozen=True, slots=True)
class ImageReport:
    """What happened to one image of a request. `bytes` is the size of the stored record, `load_seconds` the time to
    fetch and decode it (0 for a compile), `compile_seconds` the time to compute it (0 for a hit). `chained` are the
    tokens whose rows a chain had; an image that an exact chain holds is a hit of the tier "chain". `same_as` is the
    first image of the request (from 0) that has the very same pixels, None where none does. `explained` only where the
    request asked for it."""

    key: str
    outcome: ImageOutcome
    reason: str
    tier: str | None
    bytes: int
    load_seconds: float
    compile_seconds: float
    tokens: int
    refreshed: int
    exact: bool
    chained: int = 0
    same_as: int | None = None
    explained: Explanation | None = None


@dataclass(frozen=True, slots=True)
class KvReport:
    """Where the KV of a request's visual tokens is from, counted over all images: `reused` as the store held it,
    `compiled` just now because the store had no use of it, `refreshed` for this request and its context, `chained` as
    a chain held it; together they are `visual_tokens` (under policy `full` all but the chained count as refreshed).
    `chained_exact` and `chained_refreshed` are tokens of the whole prompt, text too, whose rows a chain had. `fallback`
    names why a reuse policy ran as full prefill, else it is None. `refined`: prompt rows, text among them, that decode
    steps computed anew. `turns_reused`: tokens of text behind an edit that are as a chain held them for another
    history."""

    policy: str
    refresh_ratio: float
    images: tuple[ImageReport, ...]
    visual_tokens: int
    reused: int
    compiled: int
    refreshed: int
    fallback: str | None = None
    chained: int = 0
    chained_exact: int = 0
    chained_refreshed: int = 0
    refined: int = 0
    turns_reused: int = 0


@dataclass(frozen=True, slots=True)
class Usage:
    """`cached_tokens`: prompt tokens whose KV was reused. `cache_write_tokens`: image tokens compiled and stored."""

    prompt_tokens: int
    completion_tokens: int
    image_tokens: int
    cached_tokens: int
    cache_write_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds inside the engine, from `submit` on: waiting, images fetched or compiled, first token, whole request."""

    queue: float
    images: float
    first_token: float
    total: float


@dataclass(frozen=True, slots=True)
class Tokenized:
    """The prompt of a request as token ids (the image token where a visual token stands), and how many visual tokens
    each place of an image takes, in the order of the conversation."""

    ids: tuple[int, ...]
    image_tokens: tuple[int, ...]
