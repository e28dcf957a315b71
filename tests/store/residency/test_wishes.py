"""Pins and quotas."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from store.errors import TierFull
from store.records.keys import part_of
from store.residency.eviction import lru, never_held
from store.residency.wishes_file import Saved, WishesFile
from store.tiers.memory import MemoryTier
from store.tiers.quota import make_room
from store.types import EntryFilter
from tests.service.serving import eventually
from tests.store.samples import key_of, record_of
from tests.store.stand import Stand


class TestPins:
    def test_a_hard_pin_outlives_eviction_and_restart(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.outcome(2)
        stand.entries.flush(10)
        assert stand.admin.pin(key_of(1).hex, None)
        stand.reopen()
        result = stand.admin.evict(EntryFilter())
        assert (result.keys, result.skipped_pinned) == ((key_of(2).hex,), 1)
        info = stand.admin.entry(key_of(1).hex)
        assert info is not None and info.pinned == "hard"
        assert stand.admin.unpin(key_of(1).hex)
        assert not stand.admin.unpin(key_of(1).hex)
        assert stand.admin.evict(EntryFilter()).keys == (key_of(1).hex,)

    def test_a_soft_pin_ends(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.admin.pin(key_of(1).hex, 60.0)
        info = stand.admin.entry(key_of(1).hex)
        assert info is not None and info.pinned == "soft"
        assert stand.admin.evict(EntryFilter()).skipped_pinned == 1
        stand.clock.now += 61
        assert stand.admin.evict(EntryFilter()).keys == (key_of(1).hex,)

    def test_pins_decide_who_makes_room(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "store", decoded=0, memory=2900)
        for number in range(3):
            stand.outcome(number)
            stand.clock.now += 1
        stand.entries.flush(10)
        stand.admin.pin(key_of(0).hex, None)
        stand.admin.pin(key_of(1).hex, 1000.0)
        for number in (3, 4, 5):
            stand.outcome(number)
            stand.clock.now += 1
        stand.entries.flush(10)
        assert stand.memory.contains(key_of(0).digest)
        assert stand.memory.contains(key_of(1).digest)
        assert not stand.memory.contains(key_of(2).digest)
        stand.close()

    def test_what_is_nowhere_cannot_be_pinned(self, stand: Stand) -> None:
        assert not stand.admin.pin(key_of(1).hex, None)
        assert not stand.admin.pin("nonsense", None)

    def test_delete_removes_what_is_pinned(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.admin.pin(key_of(1).hex, None)
        assert stand.admin.delete(key_of(1).hex)

    def test_a_request_s_pin_waits_for_no_disk(self, stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is in force at once, and written by the writer's thread."""
        writers: list[str] = []
        write = WishesFile.write

        def watched(file: WishesFile, saved: Saved) -> None:
            write(file, saved)
            writers.append(threading.current_thread().name)

        monkeypatch.setattr(WishesFile, "write", watched)
        stand.outcome(1)
        assert stand.admin.pin(key_of(1).hex, 60.0)
        assert stand.admin.evict(EntryFilter()).skipped_pinned == 1
        eventually(lambda: bool(writers), "the pin is written")
        assert writers == ["store-write-behind"]
        (saved,) = json.loads((stand.path / "wishes.json").read_text())["pins"]
        assert saved == key_of(1).hex

    def test_a_request_that_pins_what_it_has_asks_no_tier(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.entries.flush(10)
        stand.memory.fault = stand.disk.fault = "error"
        assert stand.admin.pin(key_of(1).hex, 60.0)
        assert not stand.admin.pin(key_of(2).hex, 60.0)
        assert len(stand.admin.stats().degraded) == 2

    def test_what_waits_to_be_written_can_be_pinned(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "store", decoded=0)
        stand.memory.write_gate.clear()
        stand.outcome(1)
        assert stand.admin.pin(key_of(1).hex, 60.0)
        stand.close()

    def test_what_only_the_last_tier_has_can_be_pinned(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.forget_decoded()
        stand.memory.inner.delete(key_of(1).digest)
        assert stand.admin.pin(key_of(1).hex, None)

    def test_what_an_operator_asks_for_is_written_when_it_is_answered(self, stand: Stand) -> None:
        stand.outcome(1)
        file = stand.path / "wishes.json"
        stand.admin.pin(key_of(1).hex, None)
        assert json.loads(file.read_text())["pins"] == {key_of(1).hex: None}
        stand.admin.set_quota("acme", 77)
        assert json.loads(file.read_text())["quotas"] == {"acme": 77}
        stand.admin.unpin(key_of(1).hex)
        assert json.loads(file.read_text())["pins"] == {}

    def test_a_pin_outlives_a_store_that_is_closed_at_once(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.admin.pin(key_of(1).hex, 60.0)
        stand.reopen()
        assert stand.admin.evict(EntryFilter()).skipped_pinned == 1


class TestQuotas:
    def test_a_tenant_makes_room_for_itself_only(self, stand: Stand) -> None:
        for number in range(3):
            stand.outcome(number, tenant="rival")
        stand.entries.flush(10)
        size = stand.disk.stats().bytes_logical // 3
        stand.admin.set_quota("acme", 2 * size + size // 2)
        for number in range(5):
            stand.outcome(number)
            stand.clock.now += 1
        stand.entries.flush(10)
        rows = list(stand.disk.rows())
        assert sum(row.info.tenant == "rival" for row in rows) == 3
        mine = {row.digest for row in rows if row.info.tenant == "acme"}
        assert mine == {key_of(3).digest, key_of(4).digest}
        assert stand.disk.stats().evictions == {"quota": 3}

    def test_parts_of_a_tenant_count_together(self, stand: Stand) -> None:
        stand.outcome(0)
        stand.entries.flush(10)
        size = stand.disk.stats().bytes_logical
        stand.admin.set_quota("acme", 2 * size + size // 2)
        for number, part in enumerate(("a", "b", "c"), start=1):
            stand.clock.now += 1
            stand.outcome(number, tenant=part_of("acme", part))
            stand.entries.flush(10)
        assert {row.info.tenant for row in stand.disk.rows()} == {"acme+b", "acme+c"}
        (quota,) = stand.admin.quotas()
        assert (quota.tenant, quota.held) == ("acme", stand.disk.stats().bytes_logical)
        assert set(stand.admin.stats().bytes_by_tenant) == {"acme"}

    def test_a_quota_outlives_a_restart_and_can_be_lifted(self, stand: Stand) -> None:
        stand.admin.set_quota("acme", 10)
        stand.reopen()
        assert [(quota.tenant, quota.bytes) for quota in stand.admin.quotas()] == [("acme", 10)]
        stand.outcome(1)
        stand.entries.flush(10)
        assert stand.admin.stats().writes_dropped == {"quota": 2}
        stand.admin.set_quota("acme", None)
        stand.outcome(2)
        stand.entries.flush(10)
        assert stand.disk.contains(key_of(2).digest)
        assert stand.admin.quotas() == ()

    def test_a_record_as_large_as_the_quota_fits(self) -> None:
        tier, record = MemoryTier(1 << 20), record_of(2)
        tier.put(record_of(1), 1000.0, never_held)
        make_room(tier, record, record.nbytes, 1000.0, lru, never_held)
        assert tier.rows() == [] and tier.stats().evictions == {"quota": 1}
        with pytest.raises(TierFull, match="quota"):
            make_room(tier, record, record.nbytes - 1, 1000.0, lru, never_held)

    def test_quotas_are_listed_by_name(self, stand: Stand) -> None:
        for tenant in ("b", "a", "c"):
            stand.admin.set_quota(tenant, 7)
        assert [quota.tenant for quota in stand.admin.quotas()] == ["a", "b", "c"]

    def test_replacing_an_entry_takes_no_more_room(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.outcome(2)
        stand.entries.flush(10)
        stand.admin.set_quota("acme", stand.disk.stats().bytes_logical + 60)
        stand.outcome(1, "rewrite")
        stand.entries.flush(10)
        assert {row.digest for row in stand.disk.rows()} == {key_of(1).digest, key_of(2).digest}
        assert stand.disk.stats().evictions == {}

    def test_what_is_held_does_not_make_room(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.entries.flush(10)
        size = stand.disk.stats().bytes_logical
        stand.admin.set_quota("acme", size + size // 2)
        with stand.fetch(1):
            stand.outcome(2)
            stand.entries.flush(10)
            assert stand.admin.stats().writes_dropped == {"quota": 2}
            assert stand.disk.contains(key_of(1).digest)
