"""A record takes several commits. What is left of one that was not finished goes, and counts until then."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest

from store.errors import TierUnavailable
from store.residency.eviction import never_held
from store.tiers.lmdb import table
from store.tiers.lmdb.environment import Environment
from store.tiers.lmdb.native import Opened
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import key_of, read, record_of
from tests.store.tiers.lmdb.files import MIB, NOW, filled, pieces_in, run


class Disk:
    """Fails commits once `left` more have worked: as many as there are `failures`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1 << 30
        self.failures = 0
        write = Environment.write

        @contextmanager
        def failing(environment: Environment) -> Iterator[tuple[Any, Opened]]:
            with write(environment) as (transaction, opened):
                yield transaction, opened
                self.left -= 1
                if self.left < 0 < self.failures:
                    self.failures -= 1
                    error = lmdb.Error("mdb_txn_commit: Input/output error")
                    error.code = 5
                    raise error

        monkeypatch.setattr(Environment, "write", failing)

    def fail(self, after: int, times: int) -> None:
        self.left, self.failures = after, times


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A record of 3 MiB, which has 4 pieces, takes two commits and one for the manifest."""
    monkeypatch.setattr(table, "_BATCH", 2)
    return Disk(monkeypatch)


def pieces(tier: LmdbTier) -> int:
    with tier._environment.read() as (transaction, opened):
        return int(transaction.stat(opened["pieces"])["entries"])


@pytest.mark.parametrize("after", [0, 1, 2])
def test_f6_a_put_that_fails_in_between_leaves_nothing(tier: LmdbTier, disk: Disk, after: int) -> None:
    tier.put(record_of(1, MIB), NOW, never_held)
    kept = pieces(tier)
    for number in range(2, 5):
        disk.fail(after, times=1)
        with pytest.raises(TierUnavailable, match="failed"):
            tier.put(record_of(number, 3 * MIB), NOW, never_held)
        assert pieces(tier) == kept
        assert not tier.contains(key_of(number).digest)
    assert tier.stats().bytes_logical == record_of(1, MIB).nbytes
    tier.put(record_of(5, 3 * MIB), NOW, never_held)
    assert read(tier, key_of(5).digest) is not None and read(tier, key_of(1).digest) is not None
    assert tier.stats().evictions == {}


def test_f6_what_cannot_be_removed_counts_and_goes_later(tier: LmdbTier, disk: Disk) -> None:
    tier.put(record_of(1, MIB), NOW, never_held)
    disk.fail(1, times=2)
    with pytest.raises(TierUnavailable):
        tier.put(record_of(2, 3 * MIB), NOW, never_held)
    assert pieces(tier) == 2 + 2
    assert tier._table.held == record_of(1, MIB).nbytes + record_of(2, 3 * MIB).nbytes
    tier._chore()
    assert pieces(tier) == 2
    assert tier._table.held == record_of(1, MIB).nbytes


def test_f6_the_next_write_removes_it_first(tier: LmdbTier, disk: Disk) -> None:
    for _ in range(10):
        disk.fail(1, times=2)
        with pytest.raises(TierUnavailable):
            tier.put(record_of(2, 3 * MIB), NOW, never_held)
        assert pieces(tier) <= 2
    tier.put(record_of(3, 3 * MIB), NOW, never_held)
    assert pieces(tier) == 4
    assert tier.stats().bytes_physical <= 8 * MIB


def test_f6_a_disk_that_only_fails_fills_nothing(tier: LmdbTier, disk: Disk) -> None:
    """Good entries are not evicted for what cannot be written."""
    tier.put(record_of(1, 8 * MIB), NOW, never_held)
    disk.fail(1, times=1000)
    for number in range(2, 12):
        with pytest.raises(TierUnavailable):
            tier.put(record_of(number, 3 * MIB), NOW, never_held)
    disk.fail(1 << 30, times=0)
    assert read(tier, key_of(1).digest) is not None
    assert tier.stats().bytes_physical <= 16 * MIB


def test_a_removal_that_fails_is_not_taken_for_one(tier: LmdbTier, disk: Disk) -> None:
    tier.put(record_of(1, MIB), NOW, never_held)
    disk.fail(0, times=1)
    with pytest.raises(TierUnavailable):
        tier.delete(key_of(1).digest)
    assert tier.row(key_of(1).digest) is not None
    assert tier.stats().bytes_logical == record_of(1, MIB).nbytes
    assert read(tier, key_of(1).digest) is not None


def test_uses_that_cannot_be_written_fail_nothing_else(tier: LmdbTier, disk: Disk) -> None:
    tier.put(record_of(1), NOW, never_held)
    tier.touch(key_of(1).digest, NOW + 5)
    disk.fail(0, times=1)
    tier._chore()
    assert tier.row(key_of(1).digest) is not None


DYING = """
import os, signal, sys
from pathlib import Path
from store.residency.eviction import never_held
from store.tiers.lmdb import table
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import record_of
tier = LmdbTier(Path(sys.argv[1]), 32 << 20)
tier.rows()
commit = table.Table._commit
def dying(self, change, settle=None):
    commit(self, change, settle)
    os.kill(os.getpid(), signal.SIGKILL)
table.Table._commit = dying
tier.put(record_of(9, 20 << 20), 2000.0, never_held)
"""


def test_f6_what_a_killed_process_left_goes_at_the_next_start(path: Path) -> None:
    filled(path, count=1)
    assert run(DYING, path).returncode == -signal.SIGKILL
    assert pieces_in(path) == 3 + 16
    tier = LmdbTier(path, 32 * MIB)
    assert len(tier.rows()) == 1 and pieces(tier) == 3
    tier.close()


def test_f6_or_as_soon_as_no_other_process_may_be_writing(path: Path) -> None:
    filled(path, count=1)
    program = """
import sys
from pathlib import Path
from store.tiers.lmdb.tier import LmdbTier
tier = LmdbTier(Path(sys.argv[1]), 32 << 20)
print(len(tier.rows()), flush=True)
sys.stdin.read()
tier.close()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert other.stdout is not None and other.stdout.readline() == b"1\n"
    assert run(DYING, path).returncode == -signal.SIGKILL
    tier = LmdbTier(path, 32 * MIB)
    assert len(tier.rows()) == 1
    tier._chore()
    assert pieces(tier) == 3 + 16
    other.communicate(b"")
    tier._chore()
    assert pieces(tier) == 3
    tier.close()


def test_pieces_that_are_being_written_are_no_orphans(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that comes in between leaves them alone."""
    tier = LmdbTier(path, 32 * MIB)
    tier.rows()
    commit = tier._table._commit
    program = """
import sys
from pathlib import Path
from store.tiers.lmdb.tier import LmdbTier
tier = LmdbTier(Path(sys.argv[1]), 32 << 20)
print(len(tier.rows()))
tier.close()
"""
    visits: list[str] = []

    def visited(change: Callable[..., Any], settle: Callable[[], None] | None = None) -> Any:
        result = commit(change, settle)
        if not visits:
            visits.append(run(program, path).stdout)
        return result

    monkeypatch.setattr(tier._table, "_commit", visited)
    tier.put(record_of(1, 20 * MIB), NOW, never_held)
    assert visits == ["0\n"]
    assert read(tier, key_of(1).digest) is not None
    tier.close()
