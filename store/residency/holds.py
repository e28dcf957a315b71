"""Who keeps an entry from being evicted: the requests that use it, and the operator."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from store.residency.eviction import Hold
from store.residency.wishes import Wishes


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
    """Leases by digest, beside the pins of `wishes`. Thread-safe."""

    def __init__(self, wishes: Wishes, clock: Callable[[], float]) -> None:
        self._wishes = wishes
        self._clock = clock
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

    def pinned(self, digest: bytes) -> str:
        """ "hard", "soft" or ""."""
        pin = self._wishes.pinned(digest, self._clock())
        if pin is None:
            return ""
        return "hard" if pin.hard else "soft"

    def hold(self, digest: bytes) -> Hold:
        if digest in self._leases:
            return Hold.HARD
        return {"hard": Hold.HARD, "soft": Hold.SOFT, "": Hold.FREE}[self.pinned(digest)]

    @property
    def leases(self) -> int:
        with self._lock:
            return self._leases.total()
