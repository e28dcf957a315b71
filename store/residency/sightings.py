"""Which keys have been asked for before."""

from __future__ import annotations

import threading
from collections import OrderedDict


class Sightings:
    """Remembers the `limit` newest keys that were seen once. Thread-safe."""

    def __init__(self, limit: int = 1 << 16) -> None:
        self._limit = limit
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()

    def again(self, digest: bytes) -> bool:
        """False the first time, True the second; then it is forgotten."""
        with self._lock:
            if digest in self._seen:
                del self._seen[digest]
                return True
            self._seen[digest] = None
            if len(self._seen) > self._limit:
                self._seen.popitem(last=False)
            return False
