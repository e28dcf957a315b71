"""A clock that was wrong once, on this machine or on another."""

from __future__ import annotations

import pytest

from store.residency.eviction import never_held
from store.tiers.redis.index import USED
from store.tiers.redis.tier import RedisTier
from tests.store.redis_server import Server
from tests.store.samples import key_of, record_of

NOW = 1_700_000_000.0
YEAR = 365 * 86400.0


def order(tier: RedisTier) -> list[bytes]:
    return [row.digest for row in sorted(tier.rows(), key=lambda row: row.last_used)]


@pytest.mark.parametrize("by", ["put", "touch"])
def test_m6_the_order_of_uses_outlives_a_clock_that_was_ahead(
    tier: RedisTier, server: Server, by: str
) -> None:
    tier.put(record_of(1), NOW, never_held)
    if by == "put":
        tier.put(record_of(2), NOW + YEAR, never_held)
    else:
        tier.put(record_of(2), NOW + 1, never_held)
        tier.touch(key_of(2).digest, NOW + YEAR)
        tier.flush()
    tier.put(record_of(3), NOW + 10, never_held)
    tier.flush()
    tier.touch(key_of(1).digest, NOW + 20)
    tier.flush()
    expected = [key_of(number).digest for number in (2, 3, 1)]
    assert order(tier) == expected
    other = RedisTier(server.url, timeout=5.0)
    assert order(other) == expected
    assert all(row.last_used < NOW + 30 for row in other.rows())
    other.close()


def test_a_use_by_another_machine_is_not_taken_back(tier: RedisTier, server: Server) -> None:
    other = RedisTier(server.url, timeout=5.0)
    tier.put(record_of(1), NOW, never_held)
    other.rows()
    tier.touch(key_of(1).digest, NOW + 5)
    other.touch(key_of(1).digest, NOW + 9)
    other.flush()
    tier.flush()
    third = RedisTier(server.url, timeout=5.0)
    (row,) = third.rows()
    assert (row.last_used, row.hits) == (NOW + 9, 2)
    other.close()
    third.close()


def test_m6_uses_from_the_future_are_settled_by_whoever_knows_better(server: Server, tier: RedisTier) -> None:
    """Another machine's clock was a year ahead."""
    ahead = NOW + YEAR
    for number in (2, 0, 1):
        tier.put(record_of(number), ahead, never_held)
        ahead += 1
    fresh = RedisTier(server.url, 4 * record_of(0).nbytes, timeout=5.0)
    fresh.put(record_of(3), NOW, never_held)
    fresh.flush()
    order = [key_of(number).digest for number in (2, 0, 1, 3)]
    scores = [server.client.zscore(USED, digest) for digest in order]
    assert scores == sorted(scores) and scores[-1] == NOW and NOW - 1 < scores[0] < scores[2] < NOW
    fresh.put(record_of(4), NOW + 1, never_held)
    assert [fresh.contains(digest) for digest in order] == [False, True, True, True]
    assert [tier.row(digest) for digest in order[:1]] != [None]  # what it knew before it looked
    assert {row.digest for row in tier.rows()} == {*order[1:], key_of(4).digest}
    fresh.close()
