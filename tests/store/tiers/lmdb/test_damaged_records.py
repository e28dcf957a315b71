"""Records that are not what was written, in a sound file."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from store.errors import Rejected
from store.open import assemble
from store.tiers.lmdb.file import DATA
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import BlobCodec, decoded_of, entry_of, key_of, read, unused
from tests.store.tiers.lmdb.files import MIB, filled, pieces_in


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
