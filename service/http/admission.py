"""How much is taken in: requests at the same time, requests a minute, and nothing any more once the service
drains."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

from service.errors import UnavailableError
from service.settings import Settings

_WINDOW_SECONDS = 60.0


class Admission:
    """Counts requests by tenant. A rate is a bucket that holds one minute's requests and fills evenly."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = settings.max_concurrent
        self._tenant_limit = settings.max_concurrent_per_tenant or settings.max_concurrent
        self._rate = settings.rate_limit
        self._clock = clock
        self._running: Counter[str] = Counter()
        self._buckets: dict[str, tuple[float, float]] = {}
        self.draining = False

    @property
    def running(self) -> int:
        return self._running.total()

    @property
    def full(self) -> bool:
        return self.running >= self._limit

    @contextlib.contextmanager
    def admit(self, tenant: str) -> Iterator[None]:
        """Hold a place for one request of `tenant`. Raises `UnavailableError`."""
        if self.draining:
            raise UnavailableError("draining", "The service is shutting down.", retry_after=5.0)
        if self.full or self._running[tenant] >= self._tenant_limit:
            raise UnavailableError("queue_full", "Too many requests are being worked on.", retry_after=1.0)
        self._take_from_bucket(tenant)
        self._running[tenant] += 1
        try:
            yield
        finally:
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]

    def _take_from_bucket(self, tenant: str) -> None:
        if self._rate is None:
            return
        now, per_second = self._clock(), self._rate / _WINDOW_SECONDS
        level, seen = self._buckets.get(tenant, (float(self._rate), now))
        level = min(float(self._rate), level + (now - seen) * per_second)
        if level < 1:
            self._buckets[tenant] = (level, now)
            wait = (1 - level) / per_second
            raise UnavailableError(
                "rate_limited", f"More than {self._rate} requests a minute.", retry_after=wait
            )
        self._buckets[tenant] = (level - 1, now)
