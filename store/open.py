"""A store from settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from store.codec import codec_named
from store.settings import StoreSettings
from store.tier import kinds
from store.tiered import TieredStore

if TYPE_CHECKING:
    from store.entry import ImageKV


def open_store(settings: StoreSettings) -> TieredStore[ImageKV]:
    """Nothing is opened or connected yet: that happens at first use. Raises InvalidSettings."""
    tiers = [tier for kind in kinds() if (tier := kind.build(settings)) is not None]
    return TieredStore(
        tiers, codec_named(settings.codec), settings.decoded_bytes, queue_bytes=settings.queue_bytes
    )
