"""Evicting, deleting and clearing by hand."""

from __future__ import annotations

import threading

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
