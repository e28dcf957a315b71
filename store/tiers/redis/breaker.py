"""Stops asking a server that does not answer."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable


class Breaker:
    """Opens after `failures` within `rest` seconds, whatever worked in between: a slow line lets small answers through
    and fails every large one. Open, it lets one call try every `rest` seconds, and closes if that works.
    Thread-safe."""

    def __init__(self, failures: int, rest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = failures
        self._rest = rest
        self._clock = clock
        self._failed: deque[float] = deque(maxlen=failures)
        self._open = False
        self._next_try = 0.0
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        return self._open

    def admits(self) -> bool:
        """Whether to call now. Of many callers at an open breaker one is admitted per `rest`."""
        with self._lock:
            if not self._open:
                return True
            now = self._clock()
            if now < self._next_try:
                return False
            self._next_try = now + self._rest
            return True

    def worked(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                self._failed.clear()

    def failed(self) -> None:
        with self._lock:
            now = self._clock()
            self._failed.append(now)
            self._next_try = now + self._rest
            self._open |= len(self._failed) == self._limit and now - self._failed[0] <= self._rest
