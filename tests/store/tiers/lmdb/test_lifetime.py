"""What outlives what: refusals, openings, closings and forks."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import lmdb
import pytest

from store.errors import TierUnavailable
from store.residency.eviction import never_held
from store.tiers.lmdb.claim import Claim
from store.tiers.lmdb.environment import _begin_read
from store.tiers.lmdb.file import COMPACT
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import key_of, record_of
from tests.store.tiers.lmdb.files import MIB, NOW, editing, filled

# Newer Pythons warn of forking with threads about; that it works is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def test_a_refusal_is_forgotten_once_it_could_be_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(b"in the way")
    tier = LmdbTier(path, MIB)
    with pytest.raises(TierUnavailable):
        tier.rows()
    path.unlink()
    with monkeypatch.context() as patch:
        patch.setattr("store.tiers.lmdb.environment._RETRY_SECONDS", 0.0)
        assert tier.rows() == []
    shutil.rmtree(path)
    assert tier.rows() == [], "what was taken away is begun anew at once"
    tier.close()


def test_closing_waits_for_reads_that_run(tier: LmdbTier) -> None:
    tier.put(record_of(1), NOW, never_held)
    environment = tier._environment
    with environment.read() as (transaction, opened):
        closing = threading.Thread(target=environment.close)
        closing.start()
        closing.join(0.1)
        assert closing.is_alive()
        assert transaction.get(key_of(1).digest, db=opened["records"]) is not None
    closing.join(30)
    assert not closing.is_alive()
    with pytest.raises(TierUnavailable, match="closed"), environment.read():
        pass


def test_what_is_closed_is_nobody_s(tier: LmdbTier, path: Path) -> None:
    tier.put(record_of(1), NOW, never_held)
    tier.close()
    claim = Claim(path)
    with claim.alone():
        pass
    claim.close()


def test_a_child_neither_has_it_open_nor_keeps_others_from_having_it_alone(
    tier: LmdbTier, path: Path
) -> None:
    tier.put(record_of(1), NOW, never_held)
    go, gone = os.pipe()
    here, born = os.pipe()
    child = os.fork()
    if child == 0:
        owner = tier.opened_by
        os.close(gone)
        os.write(born, b"!")  # by now it has let go of what it inherited
        os.read(go, 1)
        os._exit(0 if owner is None else 1)
    assert os.read(here, 1) == b"!"
    os.close(here)
    os.close(born)
    tier.close()
    claim = Claim(path)
    with claim.alone():
        pass
    claim.close()
    os.close(gone)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(go)


def test_readers_that_died_are_looked_for_where_the_table_is_full() -> None:
    class Full:
        """Has room once the dead have been looked for."""

        checked = 0

        def begin(self, buffers: bool) -> str:
            if not self.checked:
                raise lmdb.ReadersFullError("mdb_txn_begin")
            return "a transaction"

        def reader_check(self) -> int:
            self.checked += 1
            return 1

    full: Any = Full()
    assert _begin_read(full) == "a transaction" and full.checked == 1


def test_a_copy_that_is_being_made_is_left_alone_and_one_that_was_cut_short_goes(path: Path) -> None:
    filled(path, count=1)
    (path / COMPACT).mkdir()
    other = Claim(path)
    tier = LmdbTier(path, MIB)
    assert len(tier.rows()) == 1
    assert (path / COMPACT).exists()
    tier.close()
    other.close()
    again = LmdbTier(path, MIB)
    assert len(again.rows()) == 1
    assert not (path / COMPACT).exists()
    again.close()


def test_uses_go_with_their_record(path: Path) -> None:
    filled(path, count=2)
    tier = LmdbTier(path, 32 * MIB)
    tier.delete(key_of(0).digest)
    tier.close()
    with editing(path) as (transaction, databases):
        left = [bytes(key) for key, _ in transaction.cursor(db=databases["usage"])]
    assert key_of(0).digest not in left and key_of(1).digest in left


def test_commits_are_written_to_disk_from_time_to_time(
    tier: LmdbTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier.put(record_of(1), NOW, never_held)
    synced: list[bool] = []
    monkeypatch.setattr(tier._environment, "sync", lambda: synced.append(True))
    tier._chore()
    assert synced == [True]


def test_a_small_budget_is_all_there_for_records(path: Path) -> None:
    tier = LmdbTier(path, MIB)
    for number in range(12):
        tier.put(record_of(number, MIB // 5), NOW + number, never_held)
    assert set(tier.stats().evictions) == {"budget"} and tier.stats().entries >= 4
    tier.close()
