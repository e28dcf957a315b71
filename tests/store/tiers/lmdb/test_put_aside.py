"""Files that LMDB must not be let near."""

from __future__ import annotations

import os
import random
import shutil
import struct
import threading
from pathlib import Path

import lmdb
import pytest

from store.errors import Rejected, TierUnavailable
from store.open import assemble
from store.residency.eviction import never_held
from store.tiers.lmdb.file import ASIDE, DATA, LOCK
from store.tiers.lmdb.records import DATABASES
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import BlobCodec, decoded_of, entry_of, key_of, read, record_of
from tests.store.tiers.lmdb.files import MIB, NOW, aside, filled
from tests.store.tiers.lmdb.pages import flip, kinds


@pytest.mark.parametrize("cut", ["half", "tail", "meta", "one page"])
def test_e8_a_truncated_file_is_put_aside_before_it_can_kill(path: Path, cut: str) -> None:
    filled(path)
    size = (path / DATA).stat().st_size
    left = {"half": size // 2, "tail": size - 2 * MIB, "meta": 4096, "one page": 100}[cut]
    os.truncate(path / DATA, left)
    tier = LmdbTier(path, 32 * MIB)
    store = assemble([tier], BlobCodec(), MIB)
    with store.entries.fetch(key_of(1), lambda: entry_of(1, 2 * MIB)) as fetched:
        assert fetched.outcome == "miss"
    assert store.entries.flush(10)
    assert any("started empty" in problem for problem in store.admin.stats().degraded)
    assert (path / (DATA + ASIDE)).stat().st_size == left
    assert tier.contains(key_of(1).digest)
    store.entries.close()


def test_e8_a_file_is_short_without_harm_where_only_free_pages_are_missing(path: Path) -> None:
    tier = LmdbTier(path, 32 * MIB)
    tier.put(record_of(1, 2 * MIB), NOW, never_held)
    tier.put(record_of(2, 4 * MIB), NOW, never_held)
    tier.delete(key_of(2).digest)
    tier.close()
    with lmdb.open(str(path), max_dbs=3) as env:
        pages = env.info()["last_pgno"] + 1
    os.truncate(path / DATA, (pages - 100) * 4096)
    again = LmdbTier(path, 32 * MIB)
    assert [row.digest for row in again.rows()] == [key_of(1).digest]
    assert again.problems() == ()
    again.put(record_of(2, 4 * MIB), NOW, never_held)
    assert read(again, key_of(2).digest) is not None
    again.close()
    last = LmdbTier(path, 32 * MIB)
    assert len(last.rows()) == 2 and last.problems() == ()
    last.close()


@pytest.mark.parametrize("content", [b"garbage" * 5000, b"\0" * 65536, b"SQLite format 3\0" * 600])
def test_e8_a_foreign_file_is_put_aside(path: Path, content: bytes) -> None:
    path.mkdir()
    (path / DATA).write_bytes(content)
    tier = LmdbTier(path, 32 * MIB)
    tier.put(record_of(1), NOW, never_held)
    assert read(tier, key_of(1).digest) is not None
    assert "no file of this store" in tier.problems()[0]
    tier.close()


def test_e8_a_damaged_tree_is_put_aside(path: Path) -> None:
    filled(path)
    with (path / DATA).open("r+b") as stream:
        size = (path / DATA).stat().st_size
        noise = random.Random(1)
        for page in range(2, size // 4096):
            stream.seek(page * 4096)
            if stream.read(16)[10] in (1, 2):
                stream.seek(page * 4096 + 8)
                stream.write(noise.randbytes(4000))
    tier = LmdbTier(path, 32 * MIB)
    assert list(tier.rows()) == []
    assert tier.problems()
    tier.close()


def test_a_damaged_meta_page_is_put_aside_not_tried_for_ever(path: Path) -> None:
    """A last page beyond all memory: LMDB cannot map the file, today or ever."""
    filled(path, count=2)
    with (path / DATA).open("r+b") as stream:
        for page in (0, 1):
            stream.seek(page * 4096 + 136)
            stream.write(struct.pack("<Q", 1 << 44))
    tier = LmdbTier(path, 32 * MIB)
    tier.put(record_of(7), NOW, never_held)
    assert read(tier, key_of(7).digest) is not None
    assert "far beyond" in tier.problems()[0]
    tier.close()


def test_h2_a_page_that_is_free_and_in_use_is_found_before_it_is_written_over(path: Path) -> None:
    """One bit of the free list names a page of a record instead."""
    filled(path, count=4)
    tier = LmdbTier(path, 32 * MIB)
    tier.delete(key_of(0).digest)
    tier.delete(key_of(2).digest)
    tier.close()
    used = set(kinds(path / DATA)["overflow"])
    page, at, bit = next(
        (page, at, bit)
        for page in kinds(path / DATA)["free"]
        for at, number in numbers(path / DATA, page)
        for bit in range(12)
        if number ^ 1 << bit in used
    )
    flip(path / DATA, page, at * 8 + bit)
    again = LmdbTier(path, 32 * MIB)
    assert again.rows() == []
    assert "both reachable and in the freeDB" in again.problems()[0]
    again.close()


def numbers(data: Path, page: int) -> list[tuple[int, int]]:
    """Offset and value of what may be a page number in a page of the free list."""
    raw = data.read_bytes()[page * 4096 : (page + 1) * 4096]
    found = [(at, struct.unpack_from("<Q", raw, at)[0]) for at in range(16, 4089, 2)]
    return [(at, number) for at, number in found if 2 <= number < data.stat().st_size // 4096]


def test_databases_of_another_kind_are_put_aside(path: Path) -> None:
    """All is well with the pages, and LMDB would write past them."""
    with lmdb.open(str(path), max_dbs=3) as env:
        for name in DATABASES:
            env.open_db(name.encode(), dupsort=name == "usage")
    tier = LmdbTier(path, 32 * MIB)
    tier.put(record_of(1), NOW, never_held)
    assert "database usage has flags" in tier.problems()[0]
    tier.close()


def test_a_branch_that_leads_astray_is_put_aside(path: Path) -> None:
    """Keys in order, in the wrong place: looked up from the root they are not there."""
    tier = LmdbTier(path, 32 * MIB)
    for number in range(120):
        tier.put(record_of(number), NOW, never_held)
    tier.close()
    data = path / DATA
    raw = bytearray(data.read_bytes())
    (branch, *_) = kinds(data)["branch"]
    second = struct.unpack_from("<H", raw, branch * 4096 + 18)[0] + 8
    raw[branch * 4096 + second : branch * 4096 + second + 2] = b"\0\0"
    data.write_bytes(raw)
    again = LmdbTier(path, 32 * MIB)
    assert again.rows() == []
    assert "cannot be found" in again.problems()[0]
    again.close()


@pytest.mark.parametrize(
    ("name", "kind"), [(DATA, "folder"), (DATA, "pipe"), (LOCK, "folder"), (LOCK, "pipe")]
)
def test_what_is_no_file_is_put_aside(path: Path, name: str, kind: str) -> None:
    path.mkdir()
    if kind == "pipe":
        os.mkfifo(path / name)
    else:
        (path / name).mkdir()
        (path / name / "something").write_bytes(b"x")
        (path / (name + ASIDE)).write_bytes(b"an older copy")
    tier = LmdbTier(path, 32 * MIB)
    tier.put(record_of(1), NOW, never_held)
    assert read(tier, key_of(1).digest) is not None
    assert f"has a {name} that is no file" in tier.problems()[0]
    tier.close()


@pytest.mark.parametrize("left", [b"", b"garbage" * 100, bytes(1 << 17)])
def test_a_damaged_lock_file_costs_nothing(path: Path, left: bytes) -> None:
    """It holds nothing that outlives its users."""
    filled(path, count=2)
    (path / LOCK).write_bytes(left)
    tier = LmdbTier(path, 32 * MIB)
    assert len(tier.rows()) == 2 and tier.problems() == ()
    tier.close()


def test_what_cannot_be_put_aside_costs_the_tier_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.mkdir()
    (path / DATA).write_bytes(b"garbage" * 5000)

    def refused(*_: object) -> None:
        raise PermissionError("no")

    monkeypatch.setattr(Path, "rename", refused)
    tier = LmdbTier(path, 32 * MIB)
    with pytest.raises(TierUnavailable) as caught:
        tier.rows()
    assert caught.value.reason == "unmovable"
    monkeypatch.undo()
    monkeypatch.setattr("store.tiers.lmdb.environment._RETRY_SECONDS", 0.0)
    assert tier.rows() == [] and len(tier.problems()) == 1
    tier.close()


def test_an_empty_store_that_is_found_damaged_too_is_not_tried_again_and_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then it is not the file; and the first copy is the one to keep."""
    path.mkdir()
    (path / DATA).write_bytes(b"garbage" * 5000)
    monkeypatch.setattr("store.tiers.lmdb.rehearsal.verdict", lambda *_: "is damaged")
    monkeypatch.setattr("store.tiers.lmdb.environment._RETRY_SECONDS", 0.0)
    tier = LmdbTier(path, 32 * MIB)
    for _ in range(3):
        with pytest.raises(TierUnavailable) as caught:
            tier.rows()
        assert caught.value.reason == "unusable"
        assert (path / (DATA + ASIDE)).read_bytes() == b"garbage" * 5000
    monkeypatch.undo()
    monkeypatch.setattr("store.tiers.lmdb.environment._RETRY_SECONDS", 0.0)
    assert tier.rows() == [] and "started empty" in tier.problems()[0]
    tier.close()


def test_only_the_newest_copy_put_aside_is_kept(path: Path) -> None:
    for _ in range(3):
        path.mkdir(exist_ok=True)
        (path / DATA).write_bytes(b"garbage" * 5000)
        tier = LmdbTier(path, 32 * MIB)
        tier.rows()
        tier.close()
    assert aside(path) == {DATA + ASIDE, LOCK + ASIDE}


def test_a_sound_file_is_not_put_aside(path: Path) -> None:
    for turn in range(4):
        tier = LmdbTier(path, 32 * MIB)
        for number in range(turn * 5, turn * 5 + 5):
            tier.put(record_of(number, number * 100_000), NOW + number, never_held)
        tier.delete(key_of(turn * 5).digest)
        assert tier.problems() == ()
        tier.close()
    assert aside(path) == set()


def test_e10_a_copy_taken_in_mid_write_gives_no_wrong_data(path: Path, tmp_path: Path) -> None:
    tier = LmdbTier(path, 32 * MIB)
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            tier.put(record_of(number % 12, 2 * MIB), NOW + number, never_held, replace=True)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    served = 0
    for turn in range(3):
        copy = tmp_path / f"copy{turn}"
        copy.mkdir()
        if (path / DATA).exists():
            shutil.copyfile(path / DATA, copy / DATA)
        served += served_right(copy)
    stop.set()
    writer.join()
    tier.close()
    last = tmp_path / "last"
    last.mkdir()
    shutil.copyfile(path / DATA, last / DATA)
    assert served_right(last) > 0 and served >= 0


def served_right(path: Path) -> int:
    """Records that a store on `path` serves; each must be right."""
    tier = LmdbTier(path, 32 * MIB)
    served = 0
    for number in range(12):
        try:
            found = read(tier, key_of(number).digest)
        except Rejected:
            continue
        if found is not None:
            assert found.payload.tobytes() == decoded_of(number, 2 * MIB)
            served += 1
    tier.close()
    return served
