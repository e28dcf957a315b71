"""What lies in the file, and when."""

from __future__ import annotations

import os
from pathlib import Path

import lmdb

from store.open import assemble
from store.records.header import PIECE_BYTES
from store.residency.eviction import never_held
from store.tiers.lmdb.file import DATA
from store.tiers.lmdb.tier import LmdbTier
from store.types import EntryFilter
from tests.store.samples import BlobCodec, entry_of, key_of, read, record_of
from tests.store.tiers.lmdb.files import MIB, NOW, filled


def test_pieces_fill_whole_pages(tier: LmdbTier, path: Path) -> None:
    record = record_of(1, 3 * PIECE_BYTES)
    tier.put(record, NOW, never_held)
    tier.close()
    with lmdb.open(str(path), max_dbs=3, readonly=True) as env, env.begin() as transaction:
        pieces = env.open_db(b"pieces", txn=transaction, create=False)
        lengths = [len(value) for _, value in transaction.cursor(db=pieces)]
        pages = transaction.stat(pieces)["overflow_pages"]
        page = env.stat()["psize"]
    assert lengths == [PIECE_BYTES] * 3
    assert pages * page == 3 * MIB


def test_the_map_is_not_the_file(tier: LmdbTier, path: Path) -> None:
    tier.put(record_of(1), NOW, never_held)
    assert (path / DATA).stat().st_size < MIB


def test_files_are_private(tier: LmdbTier, path: Path) -> None:
    tier.put(record_of(1), NOW, never_held)
    assert path.stat().st_mode & 0o077 == 0
    assert (path / DATA).stat().st_mode & 0o077 == 0


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9 [*] \n") / "a:b"
    tier = LmdbTier(path, MIB)
    tier.put(record_of(1), NOW, never_held)
    assert tier.compact() >= 0 and tier.contains(key_of(1).digest)
    tier.close()
    (path / DATA).write_bytes(b"garbage" * 5000)
    again = LmdbTier(path, MIB)
    assert again.rows() == [] and "no file of this store" in again.problems()[0]
    again.close()


def test_a_use_counts_before_anything_else_was_asked(path: Path) -> None:
    """After a restart, that is; and a tier that cannot be opened fails no use."""
    filled(path, count=2)
    tier = LmdbTier(path, 32 * MIB)
    assert read(tier, key_of(0).digest) is not None
    tier.touch(key_of(0).digest, NOW + 9)
    tier.flush()
    used = tier.row(key_of(0).digest)
    assert used is not None and (used.last_used, used.hits) == (NOW + 9, 1)
    tier.close()
    again = LmdbTier(path, 32 * MIB)
    assert again.row(key_of(0).digest) == used
    again.close()
    shut = LmdbTier(path / DATA / "no folder", MIB)
    shut.touch(key_of(0).digest, NOW)
    shut.close()


def test_nothing_is_opened_before_the_first_use(path: Path) -> None:
    tier = LmdbTier(path, MIB)
    assert tier.opened_by is None and not path.exists()
    tier.close()
    assert not path.exists()


def test_listing_by_tier_names_the_disk(tier: LmdbTier) -> None:
    store = assemble([tier], BlobCodec(), 0)
    store.entries.fetch(key_of(1), lambda: entry_of(1)).release()
    store.entries.flush(10)
    assert [info.tiers for info in store.admin.entries(EntryFilter()).entries] == [("lmdb",)]
