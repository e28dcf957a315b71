"""A file system without room."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from store.errors import TierFull
from store.open import assemble
from store.residency.eviction import Hold, never_held
from store.tiers.lmdb.file import ASIDE, DATA, LOCK
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import BlobCodec, decoded_of, entry_of, key_of, read, record_of, unused
from tests.store.stand import MIB, Stand
from tests.store.tiers.lmdb.files import aside, fill, filled, pieces_in, run, small_file_system

NOW = 2000.0


def test_a_file_system_that_stays_full_makes_the_tier_read_only_with_an_alarm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand = Stand(tmp_path / "store", memory=0, decoded=0)
    stand.outcome(1)
    stand.entries.flush(10)
    tier = stand.disk.inner
    assert isinstance(tier, LmdbTier)
    attempts = []

    def no_space(record: object, when: float) -> None:
        attempts.append(record)
        raise TierFull("disk_full")

    monkeypatch.setattr(tier._table, "write", no_space)
    for number in (2, 3, 4):
        assert stand.outcome(number) == ("miss", None)
        stand.entries.flush(10)
    assert len(attempts) == 2
    stats = stand.admin.stats()
    assert stats.writes_dropped["disk_full"] == 1 and stats.writes_dropped["read_only"] == 2
    assert any("read-only" in problem for problem in stats.degraded)
    monkeypatch.undo()
    tier._read_only_until = 0.0
    stand.outcome(5)
    stand.entries.flush(10)
    assert stand.disk.contains(key_of(5).digest)
    assert not stand.admin.stats().degraded
    stand.close()


def test_a_really_full_file_system_costs_old_entries_only(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", 24 << 10) as mount:
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


@pytest.mark.parametrize("kib_left", [0, 4, 64, 72, 80, 88])
def test_f2_the_first_start_without_room_costs_the_tier_until_there_is(
    tmp_path: Path, kib_left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever LMDB maps and touches first, a byte short of it does not kill this process."""
    with small_file_system(tmp_path / "small", 4 << 10) as mount:
        filler = fill(mount)
        os.truncate(filler, filler.stat().st_size - (kib_left << 10))
        store = assemble([LmdbTier(mount / "store", 32 * MIB)], BlobCodec(), 0)
        with store.entries.fetch(key_of(1), lambda: entry_of(1, MIB)) as fetched:
            assert fetched.outcome == "miss"
        assert store.entries.flush(10)
        problems = " ".join(store.admin.stats().degraded)
        assert "disk_full" in problems or "short of space" in problems
        filler.unlink()
        monkeypatch.setattr("store.tiers.lmdb.environment._RETRY_SECONDS", 0.0)
        monkeypatch.setattr("store.tiers.lmdb.tier._READ_ONLY_SECONDS", 0.0)
        for _ in range(2):
            with store.entries.fetch(key_of(1), lambda: entry_of(1, MIB)):
                pass
            assert store.entries.flush(10)
        store.entries.close()
        again = assemble([LmdbTier(mount / "store", 32 * MIB)], BlobCodec(), 0)
        with again.entries.fetch(key_of(1), unused) as fetched:
            assert fetched.tier == "lmdb"
        assert again.admin.stats().degraded == ()
        again.entries.close()


def test_f2_a_store_is_read_where_there_is_no_room_for_a_commit(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", 8 << 10) as mount:
        tier = LmdbTier(mount / "store", 32 * MIB)
        tier.put(record_of(1, MIB), NOW, never_held)
        tier.close()
        fill(mount)
        again = LmdbTier(mount / "store", 32 * MIB)
        assert read(again, key_of(1).digest) is not None
        assert again.problems() == ()
        again.close()


def test_f2_an_empty_store_of_which_a_part_was_written_is_begun_anew(path: Path) -> None:
    """As a full file system leaves it."""
    path.mkdir()
    (path / DATA).write_bytes(b"")
    tier = LmdbTier(path, MIB)
    assert tier.rows() == [] and tier.problems() == ()
    tier.close()


def test_f2_room_for_all_of_the_lock_file_is_reserved(path: Path) -> None:
    tier = LmdbTier(path, MIB)
    assert tier.rows() == []
    status = (path / LOCK).stat()
    assert status.st_blocks * 512 >= status.st_size >= 64 * 1024
    tier.close()


def test_a_file_that_may_not_grow_is_a_full_one(path: Path) -> None:
    """A limit on the size of files, as service managers set it."""
    program = """
import resource, sys
from pathlib import Path
from store.errors import TierError
from store.residency.eviction import never_held
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import key_of, read, record_of
tier = LmdbTier(Path(sys.argv[1]), 64 << 20)
tier.rows()
resource.setrlimit(resource.RLIMIT_FSIZE, (12 << 20, 12 << 20))
reasons = set()
for number in range(12):
    try:
        tier.put(record_of(number, 3 << 20), 2000.0 + number, never_held)
    except TierError as error:
        reasons.add(error.reason)
        tier._read_only_until = 0.0
assert reasons <= {"disk_full", "failed"}, reasons
kept = [number for number in range(12) if tier.contains(key_of(number).digest)]
assert kept, kept
assert all(read(tier, key_of(number).digest) is not None for number in kept)
tier.close()
print("ended well")
"""
    done = run(program, path)
    assert done.stdout == "ended well\n", done.stderr
    assert pieces_in(path) % 3 == 0


def test_what_was_put_aside_gives_way_to_new_entries(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", 24 << 10) as mount:
        filled(mount / "store", count=6)
        with (mount / "store" / DATA).open("r+b") as stream:
            stream.write(bytes(8192))
        tier = LmdbTier(mount / "store", 32 * MIB)
        tier.put(record_of(1, 4 * MIB), NOW, never_held)
        assert DATA + ASIDE in aside(mount / "store")
        tier.put(record_of(2, 8 * MIB), NOW, never_held)
        assert aside(mount / "store") == set()
        assert tier.contains(key_of(1).digest) and tier.contains(key_of(2).digest)
        assert tier.stats().evictions == {}
        tier.close()


def test_what_was_put_aside_gives_way_to_an_empty_store(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "small", 4 << 10) as mount:
        (mount / "store").mkdir()
        (mount / "store" / DATA).write_bytes(b"garbage" * 50_000)
        fill(mount)
        tier = LmdbTier(mount / "store", 32 * MIB)
        assert tier.rows() == []
        assert aside(mount / "store") == set() and "started empty" in tier.problems()[0]
        tier.close()
