"""What operators do: pins, quotas, clear, verify, compact, persisting on second sight, a full file system."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest

from store.errors import TierFull, TierUnavailable
from store.records.keys import part_of
from store.residency.eviction import Hold, never_held
from store.residency.sightings import Sightings
from store.residency.wishes import Wishes, WishesNotSaved
from store.tiers.lmdb.file import DATA
from store.tiers.lmdb.tier import LmdbTier
from store.types import EntryFilter
from tests.store.faulty import FaultyTier
from tests.store.samples import decoded_of, entry_of, key_of, read, record_of, unused
from tests.store.stand import MIB, Stand, in_threads

NOW = 2000.0


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(tmp_path / "store")
    yield stand
    stand.close()


def listed(stand: Stand) -> set[str]:
    return {info.key for info in stand.store.entries(EntryFilter()).entries}


class TestPins:
    def test_a_hard_pin_outlives_eviction_and_restart(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.outcome(2)
        stand.store.flush(10)
        assert stand.store.pin(key_of(1).hex, None)
        stand.reopen()
        result = stand.store.evict(EntryFilter())
        assert (result.keys, result.skipped_pinned) == ((key_of(2).hex,), 1)
        info = stand.store.lookup(key_of(1))
        assert info is not None and info.pinned == "hard"
        assert stand.store.unpin(key_of(1).hex)
        assert not stand.store.unpin(key_of(1).hex)
        assert stand.store.evict(EntryFilter()).keys == (key_of(1).hex,)

    def test_a_soft_pin_ends(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.store.pin(key_of(1).hex, 60.0)
        info = stand.store.lookup(key_of(1))
        assert info is not None and info.pinned == "soft"
        assert stand.store.evict(EntryFilter()).skipped_pinned == 1
        stand.clock.now += 61
        assert stand.store.evict(EntryFilter()).keys == (key_of(1).hex,)

    def test_pins_decide_who_makes_room(self, tmp_path: Path) -> None:
        stand = Stand(tmp_path / "store", decoded=0, memory=2900)
        for number in range(3):
            stand.outcome(number)
            stand.clock.now += 1
        stand.store.flush(10)
        stand.store.pin(key_of(0).hex, None)
        stand.store.pin(key_of(1).hex, 1000.0)
        for number in (3, 4, 5):
            stand.outcome(number)
            stand.clock.now += 1
        stand.store.flush(10)
        assert stand.memory.contains(key_of(0).digest)
        assert stand.memory.contains(key_of(1).digest)
        assert not stand.memory.contains(key_of(2).digest)
        stand.close()

    def test_what_is_nowhere_cannot_be_pinned(self, stand: Stand) -> None:
        assert not stand.store.pin(key_of(1).hex, None)
        assert not stand.store.pin("nonsense", None)

    def test_delete_removes_what_is_pinned(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.store.pin(key_of(1).hex, None)
        assert stand.store.delete(key_of(1).hex)

    def test_unreadable_wishes_are_reported_and_do_not_stop_the_start(self, tmp_path: Path) -> None:
        (tmp_path / "store").mkdir()
        (tmp_path / "store" / "wishes.json").write_text('{"pins": [')
        stand = Stand(tmp_path / "store")
        assert stand.outcome(1) == ("miss", None)
        assert any("pins and quotas" in problem for problem in stand.store.stats().degraded)
        stand.close()

    def test_wishes_that_cannot_be_saved_say_so(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        wishes = Wishes(tmp_path / "file" / "wishes.json")
        with pytest.raises(WishesNotSaved):
            wishes.set_quota("acme", 5)
        assert wishes.quota("acme") == 5


class TestQuotas:
    def test_a_tenant_makes_room_for_itself_only(self, stand: Stand) -> None:
        for number in range(3):
            stand.outcome(number, tenant="rival")
        stand.store.flush(10)
        size = stand.disk.stats().bytes_logical // 3
        stand.store.set_quota("acme", 2 * size + size // 2)
        for number in range(5):
            stand.outcome(number)
            stand.clock.now += 1
        stand.store.flush(10)
        rows = list(stand.disk.rows())
        assert sum(row.info.tenant == "rival" for row in rows) == 3
        mine = {row.digest for row in rows if row.info.tenant == "acme"}
        assert mine == {key_of(3).digest, key_of(4).digest}
        assert stand.disk.stats().evictions == {"quota": 3}

    def test_parts_of_a_tenant_count_together(self, stand: Stand) -> None:
        stand.outcome(0)
        stand.store.flush(10)
        size = stand.disk.stats().bytes_logical
        stand.store.set_quota("acme", 2 * size + size // 2)
        for number, part in enumerate(("a", "b", "c"), start=1):
            stand.clock.now += 1
            stand.outcome(number, tenant=part_of("acme", part))
            stand.store.flush(10)
        assert {row.info.tenant for row in stand.disk.rows()} == {"acme+b", "acme+c"}
        (quota,) = stand.store.quotas()
        assert (quota.tenant, quota.held) == ("acme", stand.disk.stats().bytes_logical)
        assert set(stand.store.stats().bytes_by_tenant) == {"acme"}

    def test_a_quota_outlives_a_restart_and_can_be_lifted(self, stand: Stand) -> None:
        stand.store.set_quota("acme", 10)
        stand.reopen()
        assert [(quota.tenant, quota.bytes) for quota in stand.store.quotas()] == [("acme", 10)]
        stand.outcome(1)
        stand.store.flush(10)
        assert stand.store.stats().writes_dropped == {"quota": 2}
        stand.store.set_quota("acme", None)
        stand.outcome(2)
        stand.store.flush(10)
        assert stand.disk.contains(key_of(2).digest)
        assert stand.store.quotas() == ()

    def test_replacing_an_entry_takes_no_more_room(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.outcome(2)
        stand.store.flush(10)
        stand.store.set_quota("acme", stand.disk.stats().bytes_logical + 60)
        stand.outcome(1, "rewrite")
        stand.store.flush(10)
        assert {row.digest for row in stand.disk.rows()} == {key_of(1).digest, key_of(2).digest}
        assert stand.disk.stats().evictions == {}

    def test_what_is_held_does_not_make_room(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.store.flush(10)
        size = stand.disk.stats().bytes_logical
        stand.store.set_quota("acme", size + size // 2)
        with stand.fetch(1):
            stand.outcome(2)
            stand.store.flush(10)
            assert stand.store.stats().writes_dropped == {"quota": 2}
            assert stand.disk.contains(key_of(1).digest)


class TestClear:
    def test_a_tenant_is_cleared_with_all_parts_and_a_part_alone(self, stand: Stand) -> None:
        tenants = ("acme", part_of("acme", "a"), part_of("acme", "b"), "acmes")
        for number, tenant in enumerate(tenants):
            stand.outcome(number, tenant=tenant)
        stand.store.flush(10)
        assert len(stand.store.clear(tenants[1]).keys) == 1
        assert {row.info.tenant for row in stand.disk.rows()} == {tenants[0], *tenants[2:]}
        stand.store.clear("acme")
        assert {row.info.tenant for row in stand.disk.rows()} == {"acmes"}

    def test_removes_all_but_what_is_in_use_or_pinned(self, stand: Stand) -> None:
        for number in range(4):
            stand.outcome(number)
        stand.outcome(4, tenant="rival")
        stand.store.pin(key_of(0).hex, None)
        with stand.fetch(1):
            result = stand.store.clear("acme")
            assert set(result.keys) == {key_of(2).hex, key_of(3).hex}
            assert (result.skipped_leased, result.skipped_pinned) == (1, 1)
        assert len(listed(stand)) == 3
        assert set(stand.store.clear(include_pinned=True).keys) == {
            key_of(0).hex,
            key_of(1).hex,
            key_of(4, tenant="rival").hex,
        }
        assert listed(stand) == set()

    def test_c7_d11_clear_under_load_never_gives_a_wrong_answer(self, stand: Stand) -> None:
        def work(mine: int) -> None:
            for turn in range(30):
                if mine == 0:
                    stand.store.clear()
                else:
                    stand.outcome((mine + turn) % 4)

        assert in_threads(4, work) == [None] * 4
        stand.store.flush(10)
        assert stand.store.stats().leases == 0
        stand.store.clear()
        assert listed(stand) == set()
        assert stand.outcome(1) == ("miss", None)


class TestVerify:
    def test_finds_and_removes_what_is_damaged(self, stand: Stand) -> None:
        for number in range(4):
            stand.outcome(number)
        stand.store.flush(10)
        stand.memory.fault = "flip"
        before = stand.store.stats()
        reports = list(stand.store.verify())
        stand.memory.fault = None
        assert [report.checked for report in reports] == [1, 2, 3, 4, 5, 6, 7, 8, 8]
        last = reports[-1]
        assert (last.done, last.total, dict(last.removed), last.failed) == (True, 8, {"corrupt": 4}, ())
        assert stand.memory.stats().entries == 0 and stand.disk.stats().entries == 4
        after = stand.store.stats()
        assert [tier.hits for tier in after.tiers] == [tier.hits for tier in before.tiers]

    def test_reports_tiers_that_cannot_be_asked(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.store.flush(10)
        stand.disk.fault = "error"
        last = list(stand.store.verify())[-1]
        assert last.done and last.checked == 1 and "lmdb" in last.failed[0]


class TestCompact:
    def test_gives_space_back_and_keeps_every_entry(self, tmp_path: Path) -> None:
        tier = LmdbTier(tmp_path / "store", 32 * MIB)
        for number in range(12):
            tier.put(record_of(number, 2 * MIB), NOW + number, never_held)
        for number in range(9):
            tier.delete(key_of(number).digest)
        before = tier.stats()
        given = tier.compact()
        after = tier.stats()
        assert given >= 12 * MIB
        assert after.bytes_physical <= before.bytes_physical - given + MIB
        assert after.bytes_logical == before.bytes_logical
        for number in range(9, 12):
            found = read(tier, key_of(number).digest)
            assert found is not None and found.payload.tobytes() == decoded_of(number, 2 * MIB)
        tier.put(record_of(20, 2 * MIB), NOW, never_held)
        assert len(list(tier.rows())) == 4
        tier.close()

    def test_reads_and_writes_go_on(self, tmp_path: Path) -> None:
        tier = LmdbTier(tmp_path / "store", 32 * MIB)
        for number in range(6):
            tier.put(record_of(number, MIB), NOW, never_held)

        def work(mine: int) -> None:
            for turn in range(10):
                if mine == 0 and turn % 3 == 0:
                    tier.compact()
                elif mine == 1:
                    tier.put(record_of(10 + turn, MIB), NOW, never_held)
                else:
                    found = read(tier, key_of(turn % 6).digest)
                    assert found is not None and found.payload.tobytes() == decoded_of(turn % 6, MIB)

        assert in_threads(4, work) == [None] * 4
        assert len(list(tier.rows())) == 16
        tier.close()

    def test_not_while_another_process_has_the_store_open(self, tmp_path: Path) -> None:
        tier = LmdbTier(tmp_path / "store", 32 * MIB)
        tier.put(record_of(1, MIB), NOW, never_held)
        program = """
import sys
from pathlib import Path
from store.residency.sightings import Sightings
from store.tiers.lmdb.tier import LmdbTier
tier = LmdbTier(Path(sys.argv[1]), 32 << 20)
print(len(tier.rows()), flush=True)
sys.stdin.read()
tier.close()
"""
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "store")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert child.stdout is not None and child.stdout.readline() == b"1\n"
        with pytest.raises(TierUnavailable) as caught:
            tier.compact()
        assert caught.value.reason == "shared"
        child.communicate(b"")
        assert read(tier, key_of(1).digest) is not None
        assert tier.compact() >= 0
        tier.close()

    def test_no_room_for_the_copy_leaves_everything_as_it_was(self, tmp_path: Path) -> None:
        class NoRoom:
            def __init__(self, env: Any) -> None:
                self.env = env

            def __getattr__(self, name: str) -> Any:
                return getattr(self.env, name)

            def copy(self, *_: object, **__: object) -> None:
                raise lmdb.DiskError("no space")

        stand = Stand(tmp_path / "store")
        stand.outcome(1)
        stand.store.flush(10)
        tier = stand.disk.inner
        assert isinstance(tier, LmdbTier)
        opened = tier._environment.open()
        tier._environment._opened = replace(opened, env=NoRoom(opened.env))
        assert "disk_full" in str(stand.store.compact()["lmdb"])
        tier._environment._opened = opened
        stand.store.evict(EntryFilter(tier="decoded"))
        stand.store.evict(EntryFilter(tier="memory"))
        assert stand.outcome(1) == ("hit", "lmdb")
        assert not (tmp_path / "store" / "compact").exists()
        stand.close()

    def test_the_store_says_what_each_tier_gave(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.store.flush(10)
        given = stand.store.compact()
        assert given["memory"] == 0 and isinstance(given["lmdb"], int)
        assert stand.outcome(1) == ("hit", "decoded")


class TestSecondSight:
    @pytest.fixture
    def stand(self, tmp_path: Path) -> Iterator[Stand]:
        stand = Stand(tmp_path / "store", persist_on_second=True)
        yield stand
        stand.close()

    def test_what_is_seen_once_is_not_written(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.store.flush(10)
        assert not stand.disk.contains(key_of(1).digest)
        assert stand.outcome(1) == ("hit", "decoded")
        stand.store.flush(10)
        assert stand.disk.contains(key_of(1).digest)

    def test_the_second_sight_counts_after_the_entry_is_gone_too(self, stand: Stand) -> None:
        stand.outcome(1)
        stand.forget_decoded()
        assert stand.outcome(1) == ("miss", None)
        stand.store.flush(10)
        assert stand.disk.contains(key_of(1).digest)

    def test_rewrite_is_written_at_once(self, stand: Stand) -> None:
        stand.outcome(1, "rewrite")
        stand.store.flush(10)
        assert stand.disk.contains(key_of(1).digest)


def test_only_so_many_sights_are_remembered() -> None:
    sightings = Sightings(limit=2)
    digests = [key_of(number).digest for number in range(3)]
    assert [sightings.again(digest) for digest in digests] == [False] * 3
    assert [sightings.again(digest) for digest in reversed(digests)] == [True, True, False]


class TestFullFileSystem:
    def test_a_file_system_that_stays_full_makes_the_tier_read_only_with_an_alarm(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stand = Stand(tmp_path / "store", memory=0, decoded=0)
        stand.outcome(1)
        stand.store.flush(10)
        tier = stand.disk.inner
        assert isinstance(tier, LmdbTier)
        attempts = []

        def no_space(record: object, when: float) -> None:
            attempts.append(record)
            raise TierFull("disk_full")

        monkeypatch.setattr(tier, "_write", no_space)
        for number in (2, 3, 4):
            assert stand.outcome(number) == ("miss", None)
            stand.store.flush(10)
        assert len(attempts) == 2
        stats = stand.store.stats()
        assert stats.writes_dropped["disk_full"] == 1 and stats.writes_dropped["read_only"] == 2
        assert any("read-only" in problem for problem in stats.degraded)
        monkeypatch.undo()
        tier._read_only_until = 0.0
        stand.outcome(5)
        stand.store.flush(10)
        assert stand.disk.contains(key_of(5).digest)
        assert not stand.store.stats().degraded
        stand.close()

    @pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system takes root")
    def test_a_really_full_file_system_costs_old_entries_only(self, tmp_path: Path) -> None:
        mount = tmp_path / "small"
        mount.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(mount)], check=False)
        if made.returncode:
            pytest.skip("mounting is not permitted here")
        try:
            tier = LmdbTier(mount / "store", 256 * MIB)
            for number in range(12):
                tier.put(record_of(number, 4 * MIB), NOW + number, never_held)
            assert tier.stats().evictions["disk_full"] > 0
            kept = [number for number in range(12) if tier.contains(key_of(number).digest)]
            assert len(kept) >= 3 and kept[-1] == 11
            for number in kept:
                found = read(tier, key_of(number).digest)
                assert found is not None and found.payload.tobytes() == decoded_of(number, 4 * MIB)
            with pytest.raises(TierFull, match="disk_full"):
                tier.put(record_of(50, 40 * MIB), NOW + 50, lambda digest: Hold.HARD)
            assert tier.problems()
            tier.close()
            again = LmdbTier(mount / "store", 256 * MIB)
            assert {row.digest for row in again.rows()} == {key_of(number).digest for number in kept}
            again.close()
        finally:
            # Lazily: a failing test leaves the file open.
            subprocess.run(["umount", "-l", str(mount)], check=True)


def test_files_of_the_store(tmp_path: Path) -> None:
    """What lies in the directory, for backup and clean-up."""
    stand = Stand(tmp_path / "store")
    stand.outcome(1)
    stand.store.flush(10)
    stand.store.pin(key_of(1).hex, None)
    stand.close()
    assert {item.name for item in (tmp_path / "store").iterdir()} == {
        DATA,
        "lock.mdb",
        "in-use",
        "wishes.json",
    }


def test_a_fault_in_the_middle_of_a_listing_does_not_hide_the_rest(stand: Stand) -> None:
    stand.outcome(1)
    stand.forget_decoded()
    assert isinstance(stand.memory, FaultyTier)
    stand.memory.fault = "error"
    info = stand.store.lookup(key_of(1))
    assert info is not None and info.tiers == ("lmdb",)
    with stand.store.fetch(key_of(1), unused) as fetched:
        assert fetched.tier == "lmdb" and fetched.entry.nbytes == entry_of(1).nbytes
