"""A store from settings, or from tiers and a codec."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic

from store.care.admin import StoreAdmin
from store.codecs.protocol import Codec, codec_named
from store.parts import Parts
from store.records.buffers import BufferPool
from store.residency.decoded import DecodedCache, E
from store.residency.eviction import POLICIES, Policy, lru
from store.residency.holds import Holds
from store.residency.sightings import Sightings
from store.residency.wishes import Wishes
from store.segments import SegmentStore
from store.settings import StoreSettings
from store.stack import TierStack
from store.tiered import TieredStore
from store.tiers.protocol import Tier, kinds

if TYPE_CHECKING:
    from store.records.entry import ImageKV

# Idle buffers: a quarter of the decoded cache's budget, at least room for a few entries.
_LEAST_IDLE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Store(Generic[E]):
    """`entries` and `segments` (of chains) are for requests, `admin` for the operator. It may be built before a fork,
    its first use must be after."""

    entries: TieredStore[E]
    segments: SegmentStore
    admin: StoreAdmin[E]


def open_store(settings: StoreSettings) -> Store[ImageKV]:
    """Nothing is opened or connected yet: that happens at first use. Raises InvalidSettings."""
    tiers = [tier for kind in kinds() if (tier := kind.build(settings)) is not None]
    return assemble(
        tiers,
        codec_named(settings.codec).on(settings.device),
        settings.decoded_bytes,
        queue_bytes=settings.queue_bytes,
        policy=POLICIES[settings.eviction],
        persist_on_second=settings.persist_on == "second",
        chains=settings.chains,
        wishes=Wishes(None if settings.path is None else settings.path / "wishes.json"),
    )


def assemble(
    tiers: Sequence[Tier],
    codec: Codec[E],
    decoded_bytes: int,
    *,
    queue_bytes: int = 512 << 20,
    policy: Policy = lru,
    persist_on_second: bool = False,
    chains: bool = True,
    wishes: Wishes | None = None,
    clock: Callable[[], float] = time.time,
) -> Store[E]:
    """tiers: fastest first. decoded_bytes, queue_bytes: budgets of the decoded cache and of what waits to be
    written. policy: who goes first when a tenant is over its quota. persist_on_second: write an entry, or
    a segment, to the tiers only when it is asked for again. chains: write segments at all. wishes: pins and quotas."""
    wishes = wishes or Wishes(None, clock)
    holds = Holds(wishes, clock)
    buffers = BufferPool(max(decoded_bytes // 4, _LEAST_IDLE_BYTES))
    parts: Parts[E] = Parts(
        stack=TierStack(tiers, buffers, holds.hold, wishes.quota, queue_bytes, policy, wishes.save),
        decoded=DecodedCache(decoded_bytes, holds.leased),
        holds=holds,
        wishes=wishes,
        buffers=buffers,
        clock=clock,
    )
    return Store(
        TieredStore(parts, codec, Sightings() if persist_on_second else None),
        SegmentStore(parts, Sightings() if persist_on_second else None, chains),
        StoreAdmin(parts),
    )
