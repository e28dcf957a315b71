"""What happens to a store while it is open."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb
import pytest

from store.errors import TierError, TierUnavailable
from store.open import assemble
from store.records.header import parse
from store.residency.eviction import never_held
from store.tiers.lmdb.file import ASIDE, BROKEN_MARK, DATA, LOCK
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import BlobCodec, decoded_of, entry_of, key_of, read, record_of
from tests.store.tiers.lmdb.files import MIB, NOW, aside, filled, run


def test_a_page_found_broken_in_use_is_put_aside_without_a_restart(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path, count=2)
    tier = LmdbTier(path, 32 * MIB)
    store = assemble([tier], BlobCodec(), 0)

    def broken(*_: object) -> None:
        raise lmdb.CorruptedError("page")

    monkeypatch.setattr("store.tiers.lmdb.records.push", broken)
    with store.entries.fetch(key_of(0), lambda: entry_of(0)) as fetched:
        assert (fetched.outcome, fetched.reason) == ("miss", "lmdb broken")
    monkeypatch.undo()
    with store.entries.fetch(key_of(1), lambda: entry_of(1)) as fetched:
        assert (fetched.outcome, fetched.reason) == ("miss", "lmdb broken")
    assert store.entries.flush(10)
    stats = store.admin.stats()
    assert not stats.tiers[0].available
    assert any("is damaged (CorruptedError) and will be put aside" in problem for problem in stats.degraded)
    monkeypatch.setattr("store.tiers.lmdb.environment._RETRY_SECONDS", 0.0)
    assert tier.rows() == []
    assert tier.problems() == (
        "store was found broken in use; started empty, the old files are beside the new ones, named *.aside",
    )
    assert aside(path) == {DATA + ASIDE, LOCK + ASIDE, BROKEN_MARK + ASIDE}
    with store.entries.fetch(key_of(1), lambda: entry_of(1)) as fetched:
        assert fetched.outcome == "miss"
    assert store.entries.flush(10) and store.admin.stats().tiers[0].available
    store.entries.close()
    again = LmdbTier(path, 32 * MIB)
    assert len(again.rows()) == 1 and again.problems() == ()
    again.close()


def test_a_directory_that_can_be_used_again_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"in the way")
    tier = LmdbTier(path, MIB)
    for _ in range(2):
        with pytest.raises(TierUnavailable):
            tier.rows()
    path.unlink()
    with pytest.raises(TierUnavailable):
        tier.rows()
    monkeypatch.setattr("store.tiers.lmdb.environment._RETRY_SECONDS", 0.0)
    assert tier.rows() == [] and tier.problems() == ()
    tier.close()


def test_an_unusable_directory_costs_the_tier_only(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    store = assemble([LmdbTier(blocked / "store", MIB)], BlobCodec(), MIB)
    with store.entries.fetch(key_of(1), lambda: entry_of(1)) as fetched:
        assert (fetched.outcome, fetched.reason) == ("miss", "lmdb unreadable")
    stats = store.admin.stats()
    assert stats.degraded and not stats.tiers[0].available
    store.entries.close()


def test_l_a_folder_that_is_deleted_in_use_is_named_and_begun_anew(path: Path) -> None:
    filled(path, count=2)
    store = assemble([tier := LmdbTier(path, 32 * MIB)], BlobCodec(), 0)
    with store.entries.fetch(key_of(1), unused_big) as fetched:
        assert fetched.tier == "lmdb"
    shutil.rmtree(path)
    assert any("was removed or replaced while in use" in problem for problem in store.admin.stats().degraded)
    for number in (1, 2):
        with store.entries.fetch(key_of(number), lambda number=number: entry_of(number)) as fetched:
            assert fetched.outcome == "miss"
    assert store.entries.flush(10)
    assert {row.digest for row in tier.rows()} == {key_of(1).digest, key_of(2).digest}
    assert store.admin.stats().tiers[0].available
    store.entries.close()
    again = LmdbTier(path, 32 * MIB)
    assert len(again.rows()) == 2 and again.problems() == ()
    again.close()


def unused_big() -> Any:
    raise AssertionError("compiled although it was stored")


def test_a_file_put_in_the_place_of_another_is_the_store_from_then_on(path: Path, tmp_path: Path) -> None:
    filled(path, count=2)
    filled(tmp_path / "other", count=5)
    tier = LmdbTier(path, 32 * MIB)
    assert len(tier.rows()) == 2
    for name in (DATA, LOCK):
        (tmp_path / "other" / name).replace(path / name)
    assert len(tier.rows()) == 5
    assert read(tier, key_of(4).digest) is not None
    assert tier.problems() == ("store was removed or replaced while in use; what lies there now is used",)
    tier.close()


def test_what_is_put_in_the_place_is_rehearsed_too(path: Path) -> None:
    filled(path, count=2)
    tier = LmdbTier(path, 32 * MIB)
    assert len(tier.rows()) == 2
    (path / "new").write_bytes(b"garbage" * 5000)
    (path / "new").replace(path / DATA)
    assert tier.rows() == [] and "no file of this store" in tier.problems()[0]
    tier.close()


def test_reads_that_run_end_before_the_file_is_let_go(path: Path) -> None:
    filled(path)
    tier = LmdbTier(path, 32 * MIB)
    assert read(tier, key_of(3).digest) is not None
    with tier._environment.read() as (transaction, opened):
        head = transaction.get(key_of(3).digest, db=opened["records"])
        shutil.rmtree(path)
        waiting = threading.Thread(target=tier.stats)
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive()
        assert parse(head).digest == key_of(3).digest
    waiting.join(30)
    assert not waiting.is_alive() and tier.rows() == []
    tier.close()


def test_a_map_that_another_process_outgrew_is_opened_anew(path: Path) -> None:
    tier = LmdbTier(path, 4 * MIB, map_size=4 * MIB)
    tier.put(record_of(1), NOW, never_held)
    program = """
import sys
from pathlib import Path
from store.residency.eviction import never_held
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import record_of
tier = LmdbTier(Path(sys.argv[1]), 32 << 20)
tier.put(record_of(2, 16 << 20), 3000.0, never_held)
tier.close()
"""
    assert run(program, path).returncode == 0
    with suppress(TierError):
        read(tier, key_of(2).digest)
    found = read(tier, key_of(2).digest)
    assert found is not None and found.payload.tobytes() == decoded_of(2, 16 * MIB)
    tier.close()


NO_WAY_IN = """
import os, sys
from pathlib import Path
from store.open import assemble
from store.residency.eviction import never_held
from store.residency.wishes import Wishes
from store.tiers.lmdb import environment
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import BlobCodec, entry_of, key_of, unused
environment._RETRY_SECONDS = 0.0
path = Path(sys.argv[1])

def opened():
    return assemble([LmdbTier(path, 32 << 20)], BlobCodec(), 0, wishes=Wishes(path / "wishes.json"))

def ask(store, number, tier):
    with store.entries.fetch(key_of(number), lambda: entry_of(number)) as fetched:
        assert fetched.tier == tier, fetched
    assert store.entries.flush(10)

first = opened()
ask(first, 1, None)
path.chmod(0)
ask(first, 1, "lmdb")
ask(first, 2, None)
ask(first, 2, "lmdb")
assert any("cannot be looked at: Permission denied" in what for what in first.admin.stats().degraded)
second = opened()
ask(second, 1, None)
degraded = second.admin.stats().degraded
assert any("store cannot be opened" in what for what in degraded), degraded
first.entries.close()
path.chmod(0o700)
ask(second, 2, "lmdb")
degraded = second.admin.stats().degraded
assert degraded == (), degraded
second.entries.close()
print("ended well")
"""


def test_h4_a_folder_without_permissions_stops_neither_who_is_in_nor_who_comes(path: Path) -> None:
    command = [sys.executable, "-c", NO_WAY_IN, str(path)]
    if os.geteuid() == 0:
        # Permissions mean nothing to root, unless it gives up those privileges.
        setpriv, lost = shutil.which("setpriv"), "-dac_override,-dac_read_search"
        if setpriv is None:
            pytest.skip("root can be kept out with setpriv only (Debian's package util-linux)")
        command = [setpriv, f"--bounding-set={lost}", f"--inh-caps={lost}", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "ended well\n", done.stderr
