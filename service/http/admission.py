"""How much is taken in: requests at the same time, requests a minute, bodies in memory, and nothing any more once the
service drains. What is bounded is shared: one tenant cannot take all of it."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from service.errors import UnavailableError
from service.settings import Settings

_WINDOW_SECONDS = 60.0
_BODIES_A_PLACE: Final = 4
"""Bodies may be read for so many times the requests that are worked on: a slow one holds nobody up."""
_LARGEST_BODIES: Final = 8
"""The memory of all bodies together, in bodies of the largest size, and at least:"""
_BODY_MEMORY: Final = 64 * 1024**2


class Shared:
    """Something of which there is `limit`, taken by tenants. With several of them a tenant may have as much as is
    left: alone it gets half, beside another one a third, and there is always some for who comes next. (A switch
    shares its buffers among ports by this rule.)"""

    def __init__(self, limit: int, several: bool) -> None:
        self.limit = limit
        self.taken: Counter[str] = Counter()
        self._several = several

    @property
    def total(self) -> int:
        return self.taken.total()

    def fits(self, tenant: str, amount: int) -> bool:
        """True if `tenant` may take `amount` more."""
        own = self.taken[tenant] if self._several else 0
        return own + amount <= self.limit - self.total

    def give_back(self, tenant: str, amount: int) -> None:
        self.taken[tenant] -= amount
        if not self.taken[tenant]:
            del self.taken[tenant]


class Admission:
    """Counts requests by tenant. A rate is a bucket that holds one minute's requests and fills evenly."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        several = len(settings.api_keys) > 1
        self._places = Shared(settings.max_concurrent, several)
        self._bodies = Shared(_BODIES_A_PLACE * settings.max_concurrent, several)
        self._bytes = Shared(max(_BODY_MEMORY, _LARGEST_BODIES * settings.max_body_bytes), several)
        self._tenant_limit = settings.max_concurrent_per_tenant or settings.max_concurrent
        self._rate = settings.rate_limit
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        self.draining = False

    @property
    def running(self) -> int:
        return self._places.total

    @property
    def full(self) -> bool:
        return self.running >= self._places.limit

    def arrive(self, tenant: str) -> None:
        """Count a request of `tenant`, and refuse it where its body would be read for nothing. Raises
        `UnavailableError`."""
        self._check(tenant)
        self._take_from_bucket(tenant)

    @contextlib.contextmanager
    def admit(self, tenant: str) -> Iterator[None]:
        """Hold a place for one request of `tenant`. Raises `UnavailableError`."""
        self._check(tenant)
        self._places.taken[tenant] += 1
        try:
            yield
        finally:
            self._places.give_back(tenant, 1)

    @contextlib.contextmanager
    def body(self, tenant: str) -> Iterator[BodyShare]:
        """What one body of `tenant` takes, until nothing of it is kept any more. Raises `UnavailableError`."""
        if not self._bodies.fits(tenant, 1):
            raise _busy("Too many bodies are being read.")
        self._bodies.taken[tenant] += 1
        share = BodyShare(self._bytes, tenant)
        try:
            yield share
        finally:
            self._bodies.give_back(tenant, 1)
            share.close()

    def _check(self, tenant: str) -> None:
        if self.draining:
            raise UnavailableError("draining", "The service is shutting down.", retry_after=5.0)
        own = self._places.taken[tenant]
        if own >= self._tenant_limit or not self._places.fits(tenant, 1):
            raise _busy("Too many requests are being worked on.")

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


class BodyShare:
    """The bytes that one body holds."""

    def __init__(self, memory: Shared, tenant: str) -> None:
        self._memory = memory
        self._tenant = tenant
        self._held = 0

    def grow(self, nbytes: int) -> None:
        """Raises `UnavailableError` where there is no more room."""
        if not self._memory.fits(self._tenant, nbytes):
            raise _busy("The bodies that are being worked on take all the memory there is for them.")
        self._memory.taken[self._tenant] += nbytes
        self._held += nbytes

    def close(self) -> None:
        self._memory.give_back(self._tenant, self._held)
        self._held = 0


def _busy(why: str) -> UnavailableError:
    return UnavailableError("queue_full", f"{why} Try again later.", retry_after=1.0)
