"""A map without room."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.errors import TierFull
from store.residency.eviction import never_held
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import content, key_of, read, record_of
from tests.store.tiers.lmdb.files import MIB, NOW


def test_e1_fill_a_64_mib_map_with_8_mib_values_and_go_on(path: Path) -> None:
    tier = LmdbTier(path, 60 * MIB, map_size=64 * MIB)
    refused = 0
    for number in range(14):
        record = record_of(number, 8 * MIB)
        try:
            tier.put(record, NOW + number, never_held)
        except TierFull as error:
            assert error.reason == "map_full"
            refused += 1
            assert not tier.contains(record.digest)
        else:
            found = read(tier, record.digest)
            assert found is not None and content(found) == content(record)
    assert refused <= 2
    assert tier.stats().entries >= 4
    tier.close()


def test_e1_room_is_made_before_it_is_needed(tier: LmdbTier) -> None:
    for number in range(40):
        tier.put(record_of(number, 4 * MIB), NOW + number, never_held)
    stats = tier.stats()
    assert set(stats.evictions) == {"budget"}
    assert stats.bytes_logical <= 32 * MIB
    assert stats.bytes_physical <= 32 * MIB + 16 * MIB


def test_a_write_that_fails_twice_leaves_nothing(path: Path) -> None:
    tier = LmdbTier(path, 60 * MIB, map_size=4 * MIB)
    with pytest.raises(TierFull, match="map_full"):
        tier.put(record_of(1, 8 * MIB), NOW, never_held)
    assert not tier.contains(key_of(1).digest)
    tier.put(record_of(2, 64), NOW, never_held)
    assert read(tier, key_of(2).digest) is not None
    tier.close()
