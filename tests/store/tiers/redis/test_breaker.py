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

    def test_failures_that_lie_apart_leave_it_closed(self) -> None:
        clock = Clock(0.0)
        breaker = Breaker(2, 5.0, clock)
        for clock.now in (0.0, 6.0, 12.0):
            breaker.failed()
            assert not breaker.open
        clock.now = 17.0
        breaker.failed()
        assert breaker.open

    def test_small_answers_in_between_do_not_keep_it_closed(self) -> None:
        breaker = Breaker(2, 5.0, Clock(0.0))
        breaker.failed()
        breaker.worked()
        breaker.failed()
        assert breaker.open

    def test_once_it_has_closed_it_takes_as_many_failures_as_at_first(self) -> None:
        clock = Clock(0.0)
        breaker = Breaker(2, 5.0, clock)
        breaker.failed()
        breaker.failed()
        clock.now = 5.0
        assert breaker.admits()
        breaker.worked()
        breaker.failed()
        assert not breaker.open
        breaker.failed()
        assert breaker.open
