"""A file system without room."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from store.errors import TierFull
from store.residency.eviction import Hold, never_held
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import decoded_of, key_of, read, record_of
from tests.store.stand import MIB, Stand

NOW = 2000.0


class TestFullFileSystem:
    def test_a_file_system_that_stays_full_makes_the_tier_read_only_with_an_alarm(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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

        monkeypatch.setattr(tier, "_write", no_space)
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
