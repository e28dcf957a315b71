"""Evicting, deleting and clearing by hand."""

from __future__ import annotations

import threading
from pathlib import Path

from store.records.keys import part_of
from store.types import EntryFilter
from tests.store.samples import (
    Blob,
    entry_of,
    key_of,
)
from tests.store.stand import Stand, in_threads


def listed(stand: Stand) -> set[str]:
    return {info.key for info in stand.admin.entries(EntryFilter()).entries}


class TestRemove:
    def test_evict_frees_the_least_recent_until_enough(self, stand: Stand) -> None:
        for number in range(4):
            stand.outcome(number)
            stand.clock.now += 1
        stand.entries.flush(10)
        stand.outcome(0)
        first = stand.admin.entry(key_of(1).hex)
        assert first is not None
        trial = stand.admin.evict(EntryFilter(), max_bytes=first.bytes + 1, dry_run=True)
        assert trial.keys == (key_of(1).hex, key_of(2).hex) and trial.dry_run
        assert len(stand.admin.entries(EntryFilter()).entries) == 4
        result = stand.admin.evict(EntryFilter(), max_bytes=first.bytes + 1)
        assert result.keys == trial.keys and result.bytes == trial.bytes > first.bytes
        assert {info.key for info in stand.admin.entries(EntryFilter()).entries} == {
            key_of(3).hex,
            key_of(0).hex,
        }
        assert stand.disk.stats().evictions == {"admin": 2}

    def test_what_is_deleted_by_name_is_no_eviction(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.entries.flush(10)
        assert stand.admin.delete(key_of(1).hex)
        assert [tier.evictions for tier in stand.admin.stats().tiers] == [{}, {}]
        assert stand.admin.stats().decoded.evictions == {}

    def test_nothing_is_evicted_for_no_bytes(self, stand: Stand) -> None:
        stand.outcome(1)
        assert stand.admin.evict(EntryFilter(), max_bytes=0).keys == ()
        assert listed(stand) == {key_of(1).hex}

    def test_evict_passes_over_what_is_in_use_and_takes_what_is_pinned_if_it_is_told_to(
        self, stand: Stand
    ) -> None:
        for number in range(3):
            stand.outcome(number)
        stand.admin.pin(key_of(1).hex, 60.0)
        with stand.fetch(0):
            left = stand.admin.evict(EntryFilter())
            assert (left.keys, left.skipped_leased, left.skipped_pinned) == ((key_of(2).hex,), 1, 1)
            assert stand.admin.evict(EntryFilter(), include_pinned=True).keys == (key_of(1).hex,)
        assert listed(stand) == {key_of(0).hex}

    def test_what_waits_to_be_written_is_listed_and_no_tier_s(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "store", decoded=0)
        stand.memory.write_gate.clear()
        stand.outcome(1)
        stand.outcome(2)
        (*_, info) = stand.admin.entries(EntryFilter(tier="queued")).entries
        assert info.tiers == ("queued",) and len(listed(stand)) == 2
        assert stand.admin.evict(EntryFilter(tier="memory")).keys == ()
        assert len(listed(stand)) == 2
        stand.close()

    def test_a_tier_gives_up_what_it_holds_and_not_what_is_about_to_be_written_to_it(
        self, stand: Stand
    ) -> None:
        stand.outcome(1)
        stand.entries.flush(10)
        stand.memory.write_gate.clear()
        stand.outcome(1, "rewrite")
        assert stand.admin.evict(EntryFilter(tier="memory")).keys == (key_of(1).hex,)
        info = stand.admin.entry(key_of(1).hex)
        assert info is not None and info.tiers == ("decoded", "queued", "lmdb")

    def test_evict_from_one_tier(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.entries.flush(10)
        stand.admin.evict(EntryFilter(tier="memory"))
        info = stand.admin.entry(key_of(1).hex)
        assert info is not None and info.tiers == ("decoded", "lmdb")

    def test_delete_wins_over_a_compile_and_a_write_under_way(self, stand: Stand) -> None:
        gate, entered = threading.Event(), threading.Event()

        def slow() -> Blob:
            entered.set()
            gate.wait()
            return entry_of(1)

        stand.memory.write_gate.clear()
        stand.outcome(2)
        stand.outcome(3)
        leader = threading.Thread(target=lambda: stand.fetch(1, compile=slow).release())
        leader.start()
        entered.wait()
        assert not stand.admin.delete(key_of(1).hex)
        assert stand.admin.delete(key_of(3).hex)
        gate.set()
        leader.join()
        stand.memory.write_gate.set()
        stand.entries.flush(10)
        assert [info.key for info in stand.admin.entries(EntryFilter()).entries] == [key_of(2).hex]

    def test_delete_waits_for_a_write_that_has_begun(self, stand: Stand) -> None:
        stand.disk.write_gate.clear()
        stand.outcome(1)
        pause = threading.Event()
        while not stand.disk.writes:
            pause.wait(0.002)
        done = threading.Event()
        deleter = threading.Thread(target=lambda: (stand.admin.delete(key_of(1).hex), done.set()))
        deleter.start()
        assert not done.wait(0.05)
        stand.disk.write_gate.set()
        deleter.join()
        assert stand.admin.entry(key_of(1).hex) is None
        assert not stand.disk.contains(key_of(1).digest)


class TestClear:
    def test_what_is_being_compiled_is_used_and_not_kept(self, stand: Stand) -> None:
        gate, entered = threading.Event(), threading.Event()

        def slow() -> Blob:
            entered.set()
            gate.wait()
            return entry_of(1)

        leader = threading.Thread(target=lambda: stand.fetch(1, compile=slow).release())
        leader.start()
        entered.wait()
        assert stand.admin.clear().keys == ()
        gate.set()
        leader.join()
        stand.entries.flush(10)
        assert listed(stand) == set()

    def test_a_tenant_is_cleared_with_all_parts_and_a_part_alone(self, stand: Stand) -> None:
        tenants = ("acme", part_of("acme", "a"), part_of("acme", "b"), "acmes")
        for number, tenant in enumerate(tenants):
            stand.outcome(number, tenant=tenant)
        stand.entries.flush(10)
        assert len(stand.admin.clear(tenants[1]).keys) == 1
        assert {row.info.tenant for row in stand.disk.rows()} == {tenants[0], *tenants[2:]}
        stand.admin.clear("acme")
        assert {row.info.tenant for row in stand.disk.rows()} == {"acmes"}

    def test_removes_all_but_what_is_in_use_or_pinned(self, stand: Stand) -> None:
        for number in range(4):
            stand.outcome(number)
        stand.outcome(4, tenant="rival")
        stand.admin.pin(key_of(0).hex, None)
        with stand.fetch(1):
            result = stand.admin.clear("acme")
            assert set(result.keys) == {key_of(2).hex, key_of(3).hex}
            assert (result.skipped_leased, result.skipped_pinned) == (1, 1)
        assert len(listed(stand)) == 3
        assert set(stand.admin.clear(include_pinned=True).keys) == {
            key_of(0).hex,
            key_of(1).hex,
            key_of(4, tenant="rival").hex,
        }
        assert listed(stand) == set()

    def test_c7_d11_clear_under_load_never_gives_a_wrong_answer(self, stand: Stand) -> None:
        def work(mine: int) -> None:
            for turn in range(30):
                if mine == 0:
                    stand.admin.clear()
                else:
                    stand.outcome((mine + turn) % 4)

        assert in_threads(4, work) == [None] * 4
        stand.entries.flush(10)
        assert stand.admin.stats().leases == 0
        stand.admin.clear()
        assert listed(stand) == set()
        assert stand.outcome(1) == ("miss", None)
