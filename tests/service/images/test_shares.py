"""Places that callers share: nobody can take them all."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from service.http.admission import Shared
from service.images.shares import FairPlaces


class Crowd:
    """Callers who hold places until they are told to leave."""

    def __init__(self, total: int) -> None:
        self.places = FairPlaces(Shared(total, several=True))
        self.holding: Counter[str] = Counter()
        self.order: list[str] = []
        self._stacks: list[tuple[str, AsyncExitStack]] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def come(self, caller: str, count: int = 1) -> None:
        self._tasks += [asyncio.create_task(self._hold(caller)) for _ in range(count)]
        await settled()

    async def _hold(self, caller: str) -> None:
        stack = AsyncExitStack()
        await stack.enter_async_context(self.places.place(caller))
        self.holding[caller] += 1
        self.order.append(caller)
        self._stacks.append((caller, stack))

    async def leave(self, caller: str) -> None:
        """One of them."""
        found = next(entry for entry in self._stacks if entry[0] == caller)
        self._stacks.remove(found)
        self.holding[caller] -= 1
        await found[1].aclose()
        await settled()

    async def give_up(self) -> None:
        """Everybody who waits."""
        for task in self._tasks:
            task.cancel()
        await settled()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def test_a_caller_alone_has_half_of_the_places() -> None:
    async def work() -> None:
        crowd = Crowd(8)
        await crowd.come("a", 20)
        assert crowd.holding == {"a": 4}
        await crowd.leave("a")
        assert crowd.holding == {"a": 4}, "the next one has it"
        await crowd.give_up()

    run(work())


def test_the_only_caller_there_can_be_has_all_of_them() -> None:
    async def work() -> None:
        places = FairPlaces(Shared(2, several=False))
        async with places.place("a"), places.place("a"):
            third = asyncio.create_task(_enter(places, "a"))
            await settled()
            assert not third.done()
        await settled()
        assert third.done()

    run(work())


def test_m3_the_next_caller_always_finds_one() -> None:
    async def work() -> None:
        crowd = Crowd(8)
        for caller in "abc":
            await crowd.come(caller, 20)
        assert crowd.holding == {"a": 4, "b": 2, "c": 1}
        await crowd.come("d")
        assert crowd.holding["d"] == 1
        await crowd.give_up()

    run(work())


def test_who_holds_the_fewest_is_next_and_each_in_its_own_line() -> None:
    async def work() -> None:
        crowd = Crowd(2)
        await crowd.come("a", 5)
        await crowd.come("b", 2)
        await crowd.come("c")
        assert crowd.holding == {"a": 1, "b": 1}
        for caller in ("a", "a", "b"):
            await crowd.leave(caller)
        assert crowd.order == ["a", "b", "a", "c", "b"], "not the others of `a` that have waited longer"
        await crowd.give_up()

    run(work())


def test_one_place_goes_round() -> None:
    async def work() -> None:
        crowd = Crowd(1)
        await crowd.come("a", 4)
        await crowd.come("b", 2)
        for caller in ("a", "a", "b", "a"):
            await crowd.leave(caller)
        assert crowd.order == ["a", "a", "b", "a", "b"]
        await crowd.give_up()

    run(work())


def test_who_gives_up_leaves_nothing_behind() -> None:
    async def work() -> None:
        crowd = Crowd(2)
        await crowd.come("a", 3)
        await crowd.come("b", 3)
        await crowd.give_up()
        await crowd.leave("a")
        await crowd.leave("b")
        await crowd.come("c")
        await crowd.come("d")
        assert (crowd.holding["c"], crowd.holding["d"]) == (1, 1), "both places are free again"

    run(work())


def test_a_turn_that_comes_as_its_caller_gives_up_goes_to_the_next() -> None:
    async def work() -> None:
        places = FairPlaces(Shared(1, several=True))
        holder = AsyncExitStack()
        await holder.enter_async_context(places.place("a"))
        got: list[str] = []

        async def want(caller: str) -> None:
            async with places.place(caller):
                got.append(caller)

        leaving, staying = (asyncio.create_task(want(caller)) for caller in ("b", "c"))
        await settled()
        await holder.aclose()  # grants it to b, who has not run yet
        leaving.cancel()
        await settled()
        assert got == ["c"] and staying.done()

    run(work())


def test_a_place_is_kept_until_work_ends_that_nobody_waits_for() -> None:
    async def work() -> None:
        places = FairPlaces(Shared(1, several=True))
        endless: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with places.place("a") as place:
            place.keep_until_done(endless)
        next_one = asyncio.create_task(_enter(places, "b"))
        await settled()
        assert not next_one.done()
        endless.set_exception(ValueError("nobody looks at it"))
        await settled()
        assert next_one.done()

    run(work())


async def _enter(places: FairPlaces, caller: str) -> None:
    async with places.place(caller):
        pass


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_no_place_is_lost_or_given_twice(seed: int) -> None:
    """Callers come, work, fail and give up at random; then all places are there again."""
    rng = random.Random(seed)
    total = rng.randrange(1, 7)

    async def work() -> None:
        places = FairPlaces(Shared(total, several=True))
        inside: Counter[str] = Counter()

        async def one(caller: str) -> None:
            async with places.place(caller):
                inside[caller] += 1
                assert inside.total() <= total
                try:
                    for _ in range(rng.randrange(4)):
                        await asyncio.sleep(0)
                finally:
                    inside[caller] -= 1

        tasks = []
        for _ in range(60):
            tasks.append(asyncio.create_task(one(rng.choice("abc"))))
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            await asyncio.sleep(0)
        await asyncio.wait(tasks)
        assert all(task.cancelled() or task.exception() is None for task in tasks)
        async with AsyncExitStack() as stack:
            for n in range(total):
                await asyncio.wait_for(stack.enter_async_context(places.place(f"new {n}")), 5)

    run(work())
