"""Compacting the disk tier's file."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import lmdb
import pytest

from store.errors import TierUnavailable
from store.residency.eviction import never_held
from store.tiers.lmdb.file import DATA
from store.tiers.lmdb.tier import LmdbTier
from store.types import EntryFilter
from tests.store.samples import decoded_of, key_of, read, record_of
from tests.store.stand import MIB, Stand, in_threads

NOW = 2000.0


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
        stand.entries.flush(10)
        tier = stand.disk.inner
        assert isinstance(tier, LmdbTier)
        opened = tier._environment.open()
        tier._environment._opened = replace(opened, env=NoRoom(opened.env))
        assert "disk_full" in str(stand.admin.compact()["lmdb"])
        tier._environment._opened = opened
        stand.admin.evict(EntryFilter(tier="decoded"))
        stand.admin.evict(EntryFilter(tier="memory"))
        assert stand.outcome(1) == ("hit", "lmdb")
        assert not (tmp_path / "store" / "compact").exists()
        stand.close()


def test_files_of_the_store(tmp_path: Path) -> None:
    """What lies in the directory, for backup and clean-up."""
    stand = Stand(tmp_path / "store")
    stand.outcome(1)
    stand.entries.flush(10)
    stand.admin.pin(key_of(1).hex, None)
    stand.close()
    assert {item.name for item in (tmp_path / "store").iterdir()} == {
        DATA,
        "lock.mdb",
        "in-use",
        "wishes.json",
    }
