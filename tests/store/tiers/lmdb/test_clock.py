"""A clock that was wrong once, and a restart since."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.residency.eviction import POLICIES, never_held
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import key_of, record_of
from tests.store.tiers.lmdb.files import MIB

NOW = 1_700_000_000.0
YEAR = 365 * 86400.0


def order(tier: LmdbTier) -> list[bytes]:
    return [row.digest for row in sorted(tier.rows(), key=lambda row: row.last_used)]


def digests(*numbers: int) -> list[bytes]:
    return [key_of(number).digest for number in numbers]


@pytest.mark.parametrize(
    "restart", ["while it is wrong", "when it is right again", "when something was used"]
)
@pytest.mark.parametrize("wrong", [YEAR, -YEAR])
def test_m6_the_order_of_uses_outlives_both(path: Path, restart: str, wrong: float) -> None:
    tier = LmdbTier(path, 32 * MIB)
    for number in range(3):
        tier.put(record_of(number), NOW + number, never_held)
    tier.touch(key_of(0).digest, NOW + wrong)
    tier.put(record_of(3), NOW + wrong + 1, never_held)
    if restart == "while it is wrong":
        tier.close()
        tier = LmdbTier(path, 32 * MIB)
        assert order(tier) == digests(1, 2, 0, 3)
    tier.put(record_of(4), NOW + 10, never_held)
    tier.touch(key_of(1).digest, NOW + 11)
    if restart != "while it is wrong":
        tier.close()
        tier = LmdbTier(path, 32 * MIB)
    if restart == "when something was used":
        tier.touch(key_of(2).digest, NOW + 20)
        tier.flush()
        assert order(tier) == digests(0, 3, 4, 1, 2)
    else:
        assert order(tier) == digests(2, 0, 3, 4, 1)
    assert all(row.last_used < NOW + 60 for row in tier.rows())
    tier.close()


@pytest.mark.parametrize("name", POLICIES)
def test_m6_new_images_stay(path: Path, name: str) -> None:
    """In a tier that was filled while the clock was a year ahead."""
    tier = LmdbTier(path, 4 * MIB, POLICIES[name])
    for number in range(8):
        tier.put(record_of(number, MIB // 2, created=NOW + YEAR), NOW + YEAR + number, never_held)
    tier.close()
    tier = LmdbTier(path, 4 * MIB, POLICIES[name])
    for number in range(8, 20):
        now = NOW + 60 * number
        tier.put(record_of(number, MIB // 2, created=now), now, never_held)
        tier.touch(key_of(number).digest, now)
        assert tier.contains(key_of(number).digest)
    kept = {row.digest for row in tier.rows()}
    assert len(kept & set(digests(*range(14, 20)))) >= 5
    tier.close()
