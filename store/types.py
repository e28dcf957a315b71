"""Values that the store hands out: what it holds, how it is doing. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One stored entry as an operator sees it. Times are seconds since the epoch; `tiers` fastest first;
    `bytes` is the size of the encoded record. `model_digest` tells weights, revision and settings of one
    `model` apart; `pinned` is "soft", "hard" or "". `kind` is "image", or "chain" for a segment of a chain, which has
    no width and height; `state` says whether that is "exact" or "refreshed", and is "" for an image."""

    key: str
    kind: str
    namespace: str
    tenant: str
    model: str
    codec: str
    tokens: int
    width: int
    height: int
    bytes: int
    tiers: tuple[str, ...]
    created: float
    last_used: float
    hits: int
    leased: bool
    model_digest: str = ""
    pinned: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """All conditions that are set must hold. `older_than` is seconds since last use."""

    tenant: str | None = None
    model: str | None = None
    tier: str | None = None
    older_than: float | None = None
    min_bytes: int | None = None
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class EntryPage:
    entries: tuple[EntryInfo, ...]
    cursor: str | None


@dataclass(frozen=True, slots=True)
class EvictResult:
    keys: tuple[str, ...]
    bytes: int
    skipped_leased: int
    dry_run: bool
    skipped_pinned: int = 0


@dataclass(frozen=True, slots=True)
class QuotaInfo:
    """`bytes` is the limit in each tier, `held` what the tenant holds in the tier where he holds most."""

    tenant: str
    bytes: int
    held: int


@dataclass(frozen=True, slots=True)
class VerifyProgress:
    """State of a scrub after one more record of `tier`. `removed` are counts by reason. `done` is set once,
    in the last report, with `failed` naming tiers that could not be asked to the end."""

    tier: str
    checked: int
    total: int
    bytes: int
    removed: Mapping[str, int]
    failed: tuple[str, ...] = ()
    done: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """How many records, and their bytes."""

    entries: int
    bytes: int


@dataclass(frozen=True, slots=True)
class TierStats:
    """`misses`, `evictions` and `rejected` are counts by reason; `bytes_physical` is what the tier occupies
    (file size, process memory), `bytes_logical` what its records add up to."""

    name: str
    available: bool
    entries: int
    bytes_logical: int
    bytes_physical: int
    bytes_budget: int
    hits: int
    misses: Mapping[str, int]
    evictions: Mapping[str, int]
    rejected: Mapping[str, int]
    bytes_read: int
    bytes_written: int
    read_seconds: float
    write_seconds: float


@dataclass(frozen=True, slots=True)
class StoreStats:
    """`decoded` is the cache of entries ready for the device that sits above the tiers. `degraded` names what
    is wrong (a quarantined file, a tier that does not answer). `chains_by_tier` counts segments of chains by the place
    that holds them and by state."""

    tiers: tuple[TierStats, ...]
    decoded: TierStats
    compiles: int
    joined: int
    write_queue: int
    write_queue_bytes: int
    writes_dropped: Mapping[str, int]
    leases: int
    degraded: tuple[str, ...]
    bytes_by_model: Mapping[str, int] = field(default_factory=dict)
    bytes_by_tenant: Mapping[str, int] = field(default_factory=dict)
    chains_by_tier: Mapping[str, Mapping[str, Held]] = field(default_factory=dict)
