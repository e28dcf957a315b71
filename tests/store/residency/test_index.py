"""The table of what a tier holds, and the order of uses under clocks that are wrong."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.records.header import RecordInfo
from store.residency.eviction import POLICIES, choose, lru, never_held
from store.residency.index import Index, Row
from store.tiers.memory import MemoryTier
from tests.store.samples import key_of, record_of
from tests.store.stand import in_threads

NOW = 1_700_000_000.0
YEAR = 365 * 86400.0


def row(number: int, used: float = NOW, size: int = 100, created: float | None = None) -> Row:
    info = RecordInfo.of(key_of(number), 3, used if created is None else created, 1.0)
    return Row(key_of(number).digest, info, size, used)


def order(index: Index) -> list[bytes]:
    """Digests, the least recently used first."""
    return [row.digest for row in choose(index.rows(), 1 << 40, lru, NOW)]


def digests(*numbers: int) -> list[bytes]:
    return [key_of(number).digest for number in numbers]


def test_bytes_and_rows_add_up() -> None:
    index = Index()
    for number in range(4):
        index.add(row(number, size=10 + number))
    index.add(row(2, size=50))
    assert (len(index), index.nbytes) == (4, 10 + 11 + 50 + 13)
    removed = index.remove(key_of(1).digest)
    assert removed is not None and removed.bytes == 11
    assert index.remove(key_of(1).digest) is None
    assert (len(index), index.nbytes) == (3, 73)
    index.reset([row(7, size=5), row(8, size=6)])
    assert (len(index), index.nbytes) == (2, 11) and index.get(key_of(2).digest) is None
    index.reset([])
    assert (len(index), index.nbytes) == (0, 0)


def test_a_use_counts_and_what_is_used_is_told_once() -> None:
    index = Index()
    index.add(row(1))
    assert index.take_used() == []
    touched = index.touch(key_of(1).digest, NOW + 5)
    assert touched is not None and (touched.last_used, touched.hits) == (NOW + 5, 1)
    assert index.touch(key_of(2).digest, NOW + 5) is None
    assert index.take_used() == [touched]
    assert index.take_used() == []


def test_what_is_gone_is_not_told() -> None:
    index = Index()
    index.add(row(1))
    index.touch(key_of(1).digest, NOW + 5)
    index.remove(key_of(1).digest)
    assert index.take_used() == []


def test_a_use_that_comes_late_takes_nothing_back() -> None:
    """Threads tell the time before they come to note a use."""
    index = Index()
    index.add(row(1))
    index.add(row(2))
    index.touch(key_of(1).digest, NOW + 5)
    index.touch(key_of(1).digest, NOW + 4)
    used = index.get(key_of(1).digest)
    assert used is not None and used.hits == 2 and NOW + 5 <= used.last_used < NOW + 5.001


def test_rows_from_the_file_do_not_undo_what_was_used_since() -> None:
    index = Index()
    index.add(row(1))
    index.add(row(2, NOW + 1))
    index.touch(key_of(1).digest, NOW + 5)
    index.reset([row(1), row(2), row(3)])
    used = index.get(key_of(1).digest)
    assert used is not None and (used.last_used, used.hits) == (NOW + 5, 1)
    assert index.take_used() == [used] and len(index) == 3
    index.touch(key_of(2).digest, NOW + 6)
    index.reset([row(1)])
    assert len(index) == 1 and index.take_used() == []


class TestClock:
    """M6: the clock was wrong for a while."""

    @pytest.mark.parametrize("ahead", [YEAR, 3600.0, 61.0, 20.0])
    def test_m6_ahead_once(self, ahead: float) -> None:
        index = Index()
        for number in range(3):
            index.add(row(number, NOW + number))
        for number in (1, 0):
            index.touch(key_of(number).digest, NOW + ahead - number)
        index.add(row(3, NOW + ahead + 5))
        index.add(row(4, NOW + 10))
        assert order(index) == digests(2, 1, 0, 3, 4)
        index.touch(key_of(2).digest, NOW + 11)
        assert order(index) == digests(1, 0, 3, 4, 2)
        assert all(found.last_used <= NOW + 72 for found in index.rows())

    def test_m6_behind_for_a_while(self) -> None:
        index = Index()
        for number in range(3):
            index.add(row(number, NOW + number))
        index.add(row(3, NOW - YEAR))
        index.touch(key_of(0).digest, NOW - YEAR + 1)
        assert order(index) == digests(1, 2, 3, 0)
        index.touch(key_of(1).digest, NOW + 20)
        index.add(row(4, NOW + 21))
        assert order(index) == digests(2, 3, 0, 1, 4)

    def test_m6_to_and_fro(self) -> None:
        """The order is that of the uses, whatever the clock says meanwhile."""
        chance = random.Random(4)
        index = Index()
        for number in range(8):
            index.add(row(number, NOW))
        expected = list(range(8))
        now = NOW
        for _ in range(300):
            now += chance.choice([0.01, 1.0, 70.0, YEAR, -70.0, -3600.0, -YEAR])
            number = chance.randrange(8)
            expected.remove(number)
            expected.append(number)
            index.touch(key_of(number).digest, now)
            now += 0.01
        assert order(index) == digests(*expected)

    def test_the_new_order_is_told_to_be_written_down(self) -> None:
        index = Index()
        index.add(row(1, NOW + YEAR))
        index.add(row(2, NOW + YEAR + 1))
        index.take_used()
        index.settle(NOW)
        assert {found.digest for found in index.take_used()} == set(digests(1, 2))
        index.settle(NOW)
        assert index.take_used() == []

    def test_a_file_from_the_future_is_settled_by_the_first_use(self) -> None:
        index = Index()
        index.reset([row(1, NOW + YEAR), row(2, NOW - 5), row(3, 1e300)])
        index.settle(NOW)
        assert order(index) == digests(2, 1, 3)
        assert all(found.last_used <= NOW for found in index.rows())

    def test_a_step_back_within_the_tolerance_moves_nothing(self) -> None:
        index = Index()
        index.add(row(1, NOW + 60))
        index.settle(NOW)
        assert index.take_used() == []

    def test_nothing_is_made_after_it_was_used(self) -> None:
        """Else it would be young for a year, and the least used for their age go first."""
        index = Index()
        index.add(row(1, NOW, created=NOW + YEAR))
        index.reset([*index.rows(), row(2, NOW, created=NOW + YEAR), row(3, NOW + YEAR)])
        index.settle(NOW)
        assert all(found.info.created <= found.last_used <= NOW + 1e-3 for found in index.rows())
        index.add(row(4, NOW, created=float("nan")))
        found = index.get(key_of(4).digest)
        assert found is not None and found.info.created == NOW

    @pytest.mark.parametrize("name", POLICIES)
    def test_m6_new_images_stay(self, name: str) -> None:
        """In a tier that is full of what was used while the clock was a year ahead."""
        small = record_of(0).nbytes
        tier = MemoryTier(10 * small + small // 2, POLICIES[name])
        for number in range(10):
            tier.put(record_of(number, created=NOW + YEAR), NOW + YEAR + number, never_held)
            tier.touch(key_of(number).digest, NOW + YEAR + number)
        for number in range(10, 40):
            now = NOW + 60 * number
            tier.put(record_of(number, created=now), now, never_held)
            for _ in range(3):
                tier.touch(key_of(number).digest, now)
        kept = {found.digest for found in tier.rows()}
        assert len(kept & set(digests(*range(31, 40)))) >= 8

    @given(
        st.lists(st.tuples(st.integers(0, 5), st.floats(-1e9, 1e9, allow_nan=False)), min_size=1, max_size=30)
    )
    def test_whatever_the_clock_says_the_last_used_is_the_last(self, uses: list[tuple[int, float]]) -> None:
        index = Index()
        for number in range(6):
            index.add(row(number))
        when = NOW
        for number, step in uses:
            when += step + (61.0 if step >= 0 else -61.0)
            index.touch(key_of(number).digest, when)
        assert order(index)[-1] == key_of(uses[-1][0]).digest


def test_many_threads_lose_no_use() -> None:
    index = Index()
    for number in range(4):
        index.add(row(number))

    def work(mine: int) -> None:
        for turn in range(200):
            index.touch(key_of(turn % 4).digest, NOW + turn + mine)
            index.rows()

    assert in_threads(4, work) == [None] * 4
    assert [found.hits for found in index.rows()] == [200] * 4


def test_a_worth_that_is_no_number_is_the_least() -> None:
    rows = [row(number, NOW + number) for number in range(3)]
    odd = replace(rows[1], last_used=float("nan"))
    chosen = choose([rows[0], odd, rows[2]], 100, lru, NOW)
    assert [found.digest for found in chosen] == digests(1)
