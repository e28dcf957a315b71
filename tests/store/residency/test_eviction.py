"""The pure choosers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.records.header import RecordInfo
from store.residency.eviction import POLICIES, Hold, choose, cost, lfu, lru
from store.residency.index import Row
from tests.store.samples import key_of

NOW = 1000.0


def row(
    number: int,
    *,
    size: int = 100,
    used: float = 0.0,
    hits: int = 0,
    created: float = 0.0,
    seconds: float = 1.0,
) -> Row:
    info = RecordInfo.of(key_of(number), 3, created, seconds)
    return Row(number.to_bytes(32, "big"), info, size, used, hits)


ROWS = st.lists(
    st.tuples(st.integers(1, 500), st.floats(0, NOW), st.integers(0, 9), st.floats(0, NOW), st.floats(0, 9)),
    max_size=12,
).map(
    lambda drawn: [
        row(n, size=size, used=used, hits=hits, created=created, seconds=seconds)
        for n, (size, used, hits, created, seconds) in enumerate(drawn)
    ]
)


def numbers(rows: list[Row]) -> list[int]:
    return [int.from_bytes(row.digest, "big") for row in rows]


def test_lru_takes_the_least_recent() -> None:
    rows = [row(0, used=30), row(1, used=10), row(2, used=20)]
    assert numbers(choose(rows, 150, lru, NOW)) == [1, 2]


def test_lfu_takes_the_least_used_for_its_age() -> None:
    rows = [row(0, hits=50, created=0), row(1, hits=3, created=0), row(2, hits=1, created=995)]
    assert numbers(choose(rows, 1000, lfu, NOW)) == [1, 0, 2]


def test_cost_keeps_what_is_dear_per_byte() -> None:
    rows = [row(0, size=100, seconds=1), row(1, size=1000, seconds=1), row(2, size=100, seconds=9)]
    assert numbers(choose(rows, 5000, cost, NOW)) == [1, 0, 2]


def test_soft_holds_go_last_and_hard_ones_never() -> None:
    rows = [row(0, used=1), row(1, used=2), row(2, used=3)]
    holds = {rows[0].digest: Hold.HARD, rows[1].digest: Hold.SOFT}
    assert numbers(choose(rows, 1000, lru, NOW, lambda digest: holds.get(digest, Hold.FREE))) == [2, 1]


@pytest.mark.parametrize("name", POLICIES)
@given(rows=ROWS, need=st.integers(0, 3000))
def test_frees_enough_with_no_victim_too_many(name: str, rows: list[Row], need: int) -> None:
    policy = POLICIES[name]
    victims = choose(rows, need, policy, NOW)
    freed = sum(victim.bytes for victim in victims)
    assert len(set(numbers(victims))) == len(victims)
    if freed < need:
        assert len(victims) == len(rows)
    elif victims:
        assert freed - victims[-1].bytes < need
    worths = [policy(victim, NOW) for victim in victims]
    assert all(a <= b for a, b in itertools.pairwise(worths))
    spared = [policy(kept, NOW) for kept in rows if kept not in victims]
    assert not worths or not spared or max(worths) <= min(spared)
