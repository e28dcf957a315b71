"""The breaker in front of a server."""

from __future__ import annotations

from store.tiers.redis.breaker import Breaker
from tests.store.samples import (
    Clock,
)


class TestBreaker:
    def test_opens_rests_and_closes(self) -> None:
        clock = Clock(0.0)
        breaker = Breaker(2, 5.0, clock)
        breaker.failed()
        assert breaker.admits() and not breaker.open
        breaker.failed()
        assert breaker.open and not breaker.admits()
        clock.now = 5.0
        assert breaker.admits()
        assert not breaker.admits()
        breaker.failed()
        clock.now = 9.0
        assert not breaker.admits()
        clock.now = 10.0
        assert breaker.admits()
        breaker.worked()
        assert not breaker.open and breaker.admits() and breaker.admits()
