"""How long a caller asks us to keep what a prompt leaves, in the words of other services: a soft pin with an end.

Each dialect has words of its own for it. What they mean in seconds belongs here, and nothing else of them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, Literal

from engine.messages import CacheOptions

Retention = Literal["in_memory", "24h"]
"""OpenAI's `prompt_cache_retention`."""
_SECONDS: Final[dict[Retention, float]] = {"24h": 86_400.0}


def retention_seconds(retention: Retention | None) -> float | None:
    """None for what is kept as long as there is room, which is the default."""
    return None if retention is None else _SECONDS.get(retention)


def retained(cache: CacheOptions, seconds: float | None) -> CacheOptions:
    """`cache` with a soft pin of `seconds` (None: as it is). A pin that `cache` has already stands: it says more."""
    if seconds is None or cache.pin_seconds is not None:
        return cache
    return replace(cache, pin_seconds=seconds)
