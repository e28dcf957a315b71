"""A store from settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.codecs.protocol import codec_named
from store.residency.eviction import POLICIES
from store.residency.wishes import Wishes
from store.settings import StoreSettings
from store.tiered import TieredStore
from store.tiers.protocol import kinds

if TYPE_CHECKING:
    from store.records.entry import ImageKV


def open_store(settings: StoreSettings) -> TieredStore[ImageKV]:
    """Nothing is opened or connected yet: that happens at first use. Raises InvalidSettings."""
    tiers = [tier for kind in kinds() if (tier := kind.build(settings)) is not None]
    wishes = Wishes(None if settings.path is None else settings.path / "wishes.json")
    return TieredStore(
        tiers,
        codec_named(settings.codec).on(settings.device),
        settings.decoded_bytes,
        queue_bytes=settings.queue_bytes,
        policy=POLICIES[settings.eviction],
        persist_on_second=settings.persist_on == "second",
        wishes=wishes,
    )
