"""Who keeps an entry from being evicted."""

from __future__ import annotations

import threading
from collections import Counter

from store.eviction import Hold


class Lease:
    """One request's use of one entry."""

    __slots__ = ("_digest", "_holds")

    def __init__(self, holds: Holds | None, digest: bytes) -> None:
        self._holds = holds
        self._digest = digest

    def release(self) -> None:
        """Idempotent."""
        holds, self._holds = self._holds, None
        if holds is not None:
            holds.end(self._digest)


class Holds:
    """Leases by digest. Thread-safe."""

    def __init__(self) -> None:
        self._leases: Counter[bytes] = Counter()
        self._lock = threading.Lock()

    def lease(self, digest: bytes) -> Lease:
        with self._lock:
            self._leases[digest] += 1
        return Lease(self, digest)

    def end(self, digest: bytes) -> None:
        with self._lock:
            self._leases[digest] -= 1
            if not self._leases[digest]:
                del self._leases[digest]

    def leased(self, digest: bytes) -> bool:
        return digest in self._leases

    def hold(self, digest: bytes) -> Hold:
        return Hold.HARD if digest in self._leases else Hold.FREE

    @property
    def leases(self) -> int:
        with self._lock:
            return self._leases.total()
