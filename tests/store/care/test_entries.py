"""What an operator sees of entries."""

from __future__ import annotations

from typing import Any

import pytest

from store.types import EntryFilter
from tests.store.faulty import FaultyTier
from tests.store.samples import (
    entry_of,
    key_of,
    unused,
)
from tests.store.stand import Stand


class TestEntries:
    def test_entries_come_in_pages(self, stand: Stand) -> None:
        for number in range(7):
            stand.outcome(number)
        stand.entries.flush(10)
        keys: list[str] = []
        cursor, pages = None, 0
        while pages == 0 or cursor:
            page = stand.admin.entries(EntryFilter(), cursor, 3)
            keys += [info.key for info in page.entries]
            cursor, pages = page.cursor, pages + 1
        assert keys == sorted(key_of(number).hex for number in range(7))
        assert pages == 3

    def test_filters(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.clock.now += 100
        with stand.entries.fetch(key_of(2, tenant="rival", model_id="other"), lambda: entry_of(2, 4000)):
            pass
        stand.entries.flush(10)

        def found(**select: Any) -> list[str]:
            return [info.tenant for info in stand.admin.entries(EntryFilter(**select)).entries]

        assert found(tenant="acme") == ["acme"]
        assert found(model="other") == ["rival"]
        assert found(older_than=50) == ["acme"]
        assert found(min_bytes=2000) == ["rival"]
        assert sorted(found(tier="lmdb")) == ["acme", "rival"]
        assert found(tier="redis") == []

    def test_limits_of_age_and_size_are_inclusive(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.entries.flush(10)
        (info,) = stand.admin.entries(EntryFilter()).entries
        stand.clock.now += 50

        def found(**select: Any) -> bool:
            return bool(stand.admin.entries(EntryFilter(**select)).entries)

        assert found(older_than=50) and not found(older_than=50.5)
        assert found(min_bytes=info.bytes) and not found(min_bytes=info.bytes + 1)
        stand.outcome(1)
        assert not found(older_than=1), "counted from the last use, in whatever tier"

    def test_uses_are_those_of_the_tier_that_knows_most(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.entries.flush(10)
        stand.clock.now += 5
        stand.memory.touch(key_of(1).digest, stand.clock.now)
        stand.memory.touch(key_of(1).digest, stand.clock.now)
        info = stand.admin.entry(key_of(1).hex)
        assert info is not None and (info.hits, info.last_used) == (2, stand.clock.now)

    def test_an_entry_tells_its_story(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.clock.now += 5
        stand.outcome(1)
        stand.entries.flush(10)
        info = stand.admin.entry(key_of(1).hex)
        assert info is not None
        assert (info.tenant, info.namespace, info.model, info.codec) == ("acme", "default", "tiny", "blob")
        assert (info.width, info.height, info.tokens) == (2, 1, 32)
        assert (info.created, info.last_used, info.hits) == (1000.0, 1005.0, 1)
        assert info.bytes == stand.disk.stats().bytes_logical

    def test_a_look_is_no_use(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.entries.flush(10)
        before = stand.admin.entry(key_of(1).hex)
        stand.clock.now += 50
        stand.admin.entries(EntryFilter())
        stand.admin.entry(key_of(1).hex)
        assert stand.admin.entry(key_of(1).hex) == before

    def test_a_use_counts_in_every_tier(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.entries.flush(10)
        stand.clock.now += 50
        assert stand.outcome(1) == ("hit", "decoded")
        for tier in (stand.memory, stand.disk):
            row = tier.row(key_of(1).digest)
            assert row is not None and row.last_used == 1050.0

    @pytest.mark.parametrize("key", ["", "zz", "ab", "0" * 63, "0" * 66, "A" * 64, " " + "0" * 64])
    def test_what_is_no_key_is_not_found(self, stand: Stand, key: str) -> None:
        assert not stand.admin.delete(key)
        assert stand.admin.entry(key) is None

    def test_totals(self, stand: Stand) -> None:
        stand.outcome(1)
        with stand.entries.fetch(key_of(2, tenant="rival"), lambda: entry_of(2)):
            pass
        stand.entries.flush(10)
        stats = stand.admin.stats()
        assert [tier.name for tier in stats.tiers] == ["memory", "lmdb"]
        assert stats.decoded.entries == 2
        assert sum(stats.bytes_by_tenant.values()) == stats.tiers[1].bytes_logical
        assert set(stats.bytes_by_tenant) == {"acme", "rival"}
        assert stats.bytes_by_model == {"tiny": stats.tiers[1].bytes_logical}


def test_a_fault_in_the_middle_of_a_listing_does_not_hide_the_rest(stand: Stand) -> None:
    stand.outcome(1)
    stand.forget_decoded()
    assert isinstance(stand.memory, FaultyTier)
    stand.memory.fault = "error"
    info = stand.admin.entry(key_of(1).hex)
    assert info is not None and info.tiers == ("lmdb",)
    with stand.entries.fetch(key_of(1), unused) as fetched:
        assert fetched.tier == "lmdb" and fetched.entry.nbytes == entry_of(1).nbytes
