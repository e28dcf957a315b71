"""What a worker counts while it runs. Values that cross the seam, as those of `engine.messages`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ShadowStats:
    """What reuse cost on live requests that also ran by full prefill: how many, how many of those had the same most
    likely first token, and the sum of the KL divergence (nats, full prefill to reuse) of the first token."""

    checked: int = 0
    agreed: int = 0
    kl_sum: float = 0.0


@dataclass(frozen=True, slots=True)
class ChainStats:
    """The chains in memory: how many segments and bytes, and how many of them are about to be read. Of `requests` that
    looked for a chain `matched` found one; `exact_tokens` and `refreshed_tokens` are what they did not compute again.
    `evictions` are segments by reason. `loaded` segments came from the store's tiers; records that could not be used
    are `lost`, by reason: `corrupt`, `outdated`, or `entry` where the image's entry behind a record is gone. `finished`
    chains became exact in idle time, by `refined_rows` computed."""

    segments: int = 0
    bytes: int = 0
    bytes_budget: int = 0
    leases: int = 0
    requests: int = 0
    matched: int = 0
    exact_tokens: int = 0
    refreshed_tokens: int = 0
    evictions: Mapping[str, int] = field(default_factory=dict)
    loaded: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    finished: int = 0
    refined_rows: int = 0
