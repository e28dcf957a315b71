"""The index from file bytes to images."""

from __future__ import annotations

import hashlib
from pathlib import Path

import lmdb
import pytest

from store.aliases import AliasIndex, ImageName, alias_of
from store.errors import InvalidKey

FILE = hashlib.sha256(b"a png").digest()
NAME = ImageName(hashlib.sha256(b"pixels").digest(), 640, 480)
ALIAS = alias_of("acme", "rgb white", FILE)


def test_a_file_is_known_again_after_a_restart(tmp_path: Path) -> None:
    index = AliasIndex(tmp_path / "aliases")
    assert index.find(ALIAS) is None
    index.add(ALIAS, NAME)
    assert index.find(ALIAS) == NAME
    index.close()
    again = AliasIndex(tmp_path / "aliases")
    assert again.find(ALIAS) == NAME
    again.close()


def test_a4_d6_tenant_and_decoding_are_part_of_the_name() -> None:
    aliases = {
        alias_of(tenant, decoding, digest)
        for tenant in ("acme", "rival")
        for decoding in ("rgb white", "rgb black")
        for digest in (FILE, bytes(32))
    }
    assert len(aliases) == 8
    assert alias_of("ab", "c", FILE) != alias_of("a", "bc", FILE)


def test_a_digest_that_is_cut_is_refused() -> None:
    with pytest.raises(InvalidKey):
        alias_of("acme", "rgb", FILE[:16])


def test_a_damaged_alias_is_not_believed(tmp_path: Path) -> None:
    index = AliasIndex(tmp_path / "aliases")
    index.add(ALIAS, NAME)
    index.close()
    with lmdb.open(str(tmp_path / "aliases"), max_dbs=1, map_size=1 << 24) as env:
        database = env.open_db(b"aliases")
        with env.begin(write=True) as transaction:
            value = bytearray(transaction.get(ALIAS, db=database))
            value[3] ^= 1
            transaction.put(ALIAS, bytes(value), db=database)
    again = AliasIndex(tmp_path / "aliases")
    assert again.find(ALIAS) is None
    again.close()


def test_memory_alone_will_do() -> None:
    index = AliasIndex(None, limit=2)
    aliases = [alias_of("acme", "rgb", bytes([n]) * 32) for n in range(3)]
    for alias in aliases:
        index.add(alias, NAME)
    assert [index.find(alias) for alias in aliases] == [None, NAME, NAME]
    assert index.problems() == ()
    index.close()


def test_the_file_stays_within_its_limit(tmp_path: Path) -> None:
    index = AliasIndex(tmp_path / "aliases", limit=5)
    for number in range(23):
        index.add(alias_of("acme", "rgb", bytes([number]) * 32), NAME)
    index.close()
    with lmdb.open(str(tmp_path / "aliases"), max_dbs=1, readonly=True) as env, env.begin() as transaction:
        assert 0 < transaction.stat(env.open_db(b"aliases", txn=transaction, create=False))["entries"] <= 5


def test_a_disk_that_fails_costs_the_alias_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    index = AliasIndex(tmp_path / "file" / "aliases")
    index.add(ALIAS, NAME)
    assert index.find(ALIAS) == NAME
    assert index.find(alias_of("acme", "other", FILE)) is None
    assert index.problems()
    index.close()
