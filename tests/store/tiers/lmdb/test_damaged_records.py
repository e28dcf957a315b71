"""Records that are not what was written, in a sound file."""

from __future__ import annotations

import struct
from pathlib import Path

import lmdb
import pytest

from store.errors import Rejected
from store.open import assemble
from store.residency.eviction import never_held
from store.tiers.lmdb.file import DATA
from store.tiers.lmdb.tier import LmdbTier
from tests.store.faulty import FaultyTier
from tests.store.samples import BlobCodec, decoded_of, entry_of, key_of, read, record_of, unused
from tests.store.tiers.lmdb.files import MIB, NOW, editing, filled, pieces_in


def test_e7_zeroed_bytes_in_a_value_are_a_counted_miss(path: Path) -> None:
    filled(path)
    data = bytearray((path / DATA).read_bytes())
    # Records 2 and 3 consist of twos, as the test codec clears the lowest bit; the file holds them in
    # order.
    at = data.find(b"\2" * 4096)
    data[at + 100 : at + 164] = bytes(64)
    (path / DATA).write_bytes(data)
    tier = LmdbTier(path, 32 * MIB)
    store = assemble([tier], BlobCodec(), MIB)
    with store.entries.fetch(key_of(2), lambda: entry_of(2, 2 * MIB)) as fetched:
        assert fetched.outcome == "corrupt"
        assert bytes(fetched.entry.data) == decoded_of(2, 2 * MIB)
    store.entries.flush(10)
    assert tier.stats().rejected == {"corrupt": 1}
    with store.entries.fetch(key_of(4), unused) as fetched:
        assert bytes(fetched.entry.data) == decoded_of(4, 2 * MIB)
    store.entries.close()


def test_e7_a_damaged_manifest_is_removed_at_the_start(path: Path) -> None:
    filled(path, count=3)
    with lmdb.open(str(path), max_dbs=3, map_size=64 * MIB) as env:
        records = env.open_db(b"records")
        with env.begin(write=True) as transaction:
            head = bytearray(transaction.get(key_of(1).digest, db=records))
            head[-20] ^= 1
            transaction.put(key_of(1).digest, bytes(head), db=records)
    tier = LmdbTier(path, 32 * MIB)
    assert len(list(tier.rows())) == 2
    assert tier.stats().rejected == {"corrupt": 1}
    tier.close()
    assert pieces_in(path) == 2 * 3


def test_a_missing_piece_is_torn(path: Path) -> None:
    filled(path, count=1)
    with lmdb.open(str(path), max_dbs=3, map_size=64 * MIB) as env:
        pieces = env.open_db(b"pieces")
        with env.begin(write=True) as transaction:
            transaction.delete(key_of(0).digest + (1).to_bytes(4, "big"), db=pieces)
    tier = LmdbTier(path, 32 * MIB)
    with pytest.raises(Rejected) as caught:
        read(tier, key_of(0).digest)
    assert caught.value.reason == "torn"
    tier.close()


def test_pieces_without_a_manifest_are_removed_at_the_start(path: Path) -> None:
    filled(path, count=2)
    with lmdb.open(str(path), max_dbs=3, map_size=64 * MIB) as env:
        records = env.open_db(b"records")
        with env.begin(write=True) as transaction:
            transaction.delete(key_of(0).digest, db=records)
    tier = LmdbTier(path, 32 * MIB)
    assert [row.digest for row in tier.rows()] == [key_of(1).digest]
    tier.close()
    assert pieces_in(path) == 3


def cut_manifest(path: Path, number: int) -> None:
    with editing(path) as (transaction, databases):
        head = transaction.get(key_of(number).digest, db=databases["records"])
        transaction.put(key_of(number).digest, head[:-7], db=databases["records"])


def test_a_damaged_record_counts_once_however_often_it_is_met(path: Path) -> None:
    """By a request, by a listing, by both before the writer comes to remove it."""
    filled(path, count=2)
    for _ in range(2):
        cut_manifest(path, 1)
        tier = LmdbTier(path, 32 * MIB)
        for _ in range(2):
            with pytest.raises(Rejected):
                read(tier, key_of(1).digest)
        assert len(tier.rows()) == 1
        stats = tier.stats()
        assert stats.rejected == {"torn": 1} and stats.misses["torn"] == 3
        assert not tier.contains(key_of(1).digest)
        tier.put(record_of(1, 2 * MIB), NOW, never_held)
        assert read(tier, key_of(1).digest) is not None
        tier.close()


def test_a_record_that_is_damaged_again_counts_again(tier: LmdbTier) -> None:
    for times in (1, 2, 3):
        tier.put(record_of(1), NOW, never_held)
        with pytest.raises(Rejected):
            read(FaultyTier(tier, "flip"), key_of(1).digest)
        assert tier.stats().rejected == {"corrupt": times}
        tier.delete(key_of(1).digest)


def test_what_was_written_anew_is_not_removed_for_what_was_damaged(path: Path) -> None:
    filled(path, count=2)
    cut_manifest(path, 1)
    tier = LmdbTier(path, 32 * MIB)
    damaged = tier._table.load().damaged
    assert damaged == {key_of(1).digest: "torn"}
    tier.put(record_of(1, MIB), NOW, never_held)
    tier._table.delete_damaged(damaged)
    assert read(tier, key_of(1).digest) is not None and len(tier.rows()) == 2
    tier.close()


def test_a_write_in_the_place_of_a_damaged_record_leaves_none_of_its_pieces(path: Path) -> None:
    filled(path, count=1)
    tier = LmdbTier(path, 32 * MIB)
    tier.rows()
    with pytest.raises(Rejected):
        read(FaultyTier(tier, "flip"), key_of(0).digest)
    tier._table.index.remove(key_of(0).digest)
    tier.put(record_of(0, 100), NOW, never_held)
    tier.close()
    assert pieces_in(path) == 1


def test_a_record_under_the_wrong_key_is_corrupt(path: Path) -> None:
    filled(path, count=2)
    with editing(path) as (transaction, databases):
        head = transaction.get(key_of(1).digest, db=databases["records"])
        transaction.put(key_of(7).digest, head, db=databases["records"])
    tier = LmdbTier(path, 32 * MIB)
    assert {row.digest for row in tier.rows()} == {key_of(0).digest, key_of(1).digest}
    assert tier.stats().rejected == {"corrupt": 1}
    tier.close()


@pytest.mark.parametrize(
    "usage",
    [b"", b"short", bytes(17), struct.pack("<dQ", float("nan"), 3), struct.pack("<dQ", -1e300, 1 << 63)],
)
def test_usage_that_makes_no_sense_decides_nothing_but_the_order(path: Path, usage: bytes) -> None:
    filled(path, count=2)
    with editing(path) as (transaction, databases):
        transaction.put(key_of(1).digest, usage, db=databases["usage"])
    tier = LmdbTier(path, 6 * MIB)
    assert len(tier.rows()) == 2 and read(tier, key_of(1).digest) is not None
    tier.touch(key_of(0).digest, NOW + 9)
    for number in range(2, 4):
        tier.put(record_of(number, 2 * MIB), NOW + 10 + number, never_held)
    assert not tier.contains(key_of(1).digest) and tier.contains(key_of(3).digest)
    tier.close()
