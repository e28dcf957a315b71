"""Stops asking a server that does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Breaker:
    """Opens after `failures` in a row; every `rest` seconds from then on one call may try, and closes it if
    it works. Thread-safe."""

    def __init__(self, failures: int, rest: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = failures
        self._rest = rest
        self._clock = clock
        self._failures = 0
        self._next_try = 0.0
        self._lock = threading.Lock()

    @property
    def open(self) -> bool:
        return self._failures >= self._limit

    def admits(self) -> bool:
        """Whether to call now. Of many callers at an open breaker one is admitted per `rest`."""
        with self._lock:
            if self._failures < self._limit:
                return True
            now = self._clock()
            if now < self._next_try:
                return False
            self._next_try = now + self._rest
            return True

    def worked(self) -> None:
        with self._lock:
            self._failures = 0

    def failed(self) -> None:
        with self._lock:
            self._failures += 1
            self._next_try = self._clock() + self._rest
