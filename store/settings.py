"""What an operator decides about the store."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from store.errors import InvalidSettings
from store.residency.eviction import POLICIES


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Sizes in bytes, times in seconds. A budget of 0 leaves the tier out, as does `path` None or an
    empty `redis_url`.

    path: directory of the disk tier. decoded_bytes: entries ready for the device, above the tiers.
    queue_bytes: entries waiting to be written; beyond it writing is skipped, never waited for. device: where
    lossy codecs decode. eviction: see `store.residency.eviction.POLICIES`. chains: segments of chains go to the tiers.
    """

    path: Path | None = None
    memory_bytes: int = 0
    disk_bytes: int = 8 << 30
    decoded_bytes: int = 1 << 30
    codec: str = "raw"
    device: str = "cpu"
    redis_url: str | None = None
    redis_cluster: bool = False
    redis_bytes: int = 0
    redis_timeout: float = 0.25
    eviction: str = "lru"
    queue_bytes: int = 512 << 20
    persist_on: Literal["first", "second"] = "first"
    chains: bool = True

    def __post_init__(self) -> None:
        if not (self.redis_url or "").strip():
            object.__setattr__(self, "redis_url", None)
        for name in ("memory_bytes", "disk_bytes", "decoded_bytes", "queue_bytes", "redis_bytes"):
            if getattr(self, name) < 0:
                raise InvalidSettings(f"{name} is negative")
        if not 0 < self.redis_timeout < math.inf:
            raise InvalidSettings(f"redis_timeout is a number of seconds above 0, not {self.redis_timeout}")
        if self.eviction not in POLICIES:
            raise InvalidSettings(f"eviction is one of {', '.join(POLICIES)}, not {self.eviction!r}")
        if self.persist_on not in ("first", "second"):
            raise InvalidSettings(f"persist_on is first or second, not {self.persist_on!r}")
