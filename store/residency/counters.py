"""Running counts: of events, and of one tier, from which its `TierStats` are drawn."""

from __future__ import annotations

import threading
from collections import Counter

from store.types import TierStats


class Count:
    """A number that threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.value = 0

    def add(self) -> None:
        with self._lock:
            self.value += 1


class TierCounters:
    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._hits = 0
        self._misses: Counter[str] = Counter()
        self._evictions: Counter[str] = Counter()
        self._rejected: Counter[str] = Counter()
        self._read = (0, 0.0)
        self._written = (0, 0.0)

    def hit(self, nbytes: int, seconds: float) -> None:
        with self._lock:
            self._hits += 1
            self._read = (self._read[0] + nbytes, self._read[1] + seconds)

    def miss(self, reason: str) -> None:
        with self._lock:
            self._misses[reason] += 1

    def rejected(self, reason: str) -> None:
        with self._lock:
            self._rejected[reason] += 1
            self._misses[reason] += 1

    def evicted(self, reason: str, count: int = 1) -> None:
        with self._lock:
            self._evictions[reason] += count

    def wrote(self, nbytes: int, seconds: float) -> None:
        with self._lock:
            self._written = (self._written[0] + nbytes, self._written[1] + seconds)

    def stats(self, available: bool, entries: int, logical: int, physical: int, budget: int) -> TierStats:
        with self._lock:
            return TierStats(
                name=self._name,
                available=available,
                entries=entries,
                bytes_logical=logical,
                bytes_physical=physical,
                bytes_budget=budget,
                hits=self._hits,
                misses=dict(self._misses),
                evictions=dict(self._evictions),
                rejected=dict(self._rejected),
                bytes_read=self._read[0],
                bytes_written=self._written[0],
                read_seconds=self._read[1],
                write_seconds=self._written[1],
            )
