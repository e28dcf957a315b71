"""What the rehearsal sees, and what is made of how it ended."""

from __future__ import annotations

import random
import signal
import struct
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from store.errors import TierUnavailable
from store.tiers.lmdb import probe, rehearsal
from store.tiers.lmdb.file import DATA
from store.tiers.lmdb.probe import Damaged, check_pages
from store.tiers.lmdb.rehearsal import verdict
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import key_of
from tests.store.tiers.lmdb.files import MIB, filled
from tests.store.tiers.lmdb.pages import PAGE, flip, kinds
from tests.store.tiers.lmdb.worker import fill

# Offset in the meta page that is in force, what lies there, and what a failing disk makes of it.
META = {
    "magic": (16, "<I", 0),
    "version": (20, "<I", 3),
    "page size": (40, "<I", 1 << 31),
    "flags of the free list": (44, "<H", 0x0C),
    "depth of the free list": (46, "<H", 40),
    "root of the free list": (80, "<Q", 1 << 40),
    "flags of the table": (92, "<H", 0x04),
    "entries of the table": (120, "<Q", 7),
    "root of the table": (128, "<Q", 0),
    "last page, far out": (136, "<Q", 1 << 44),
    "last page, too near": (136, "<Q", 9),
    "transaction, of the other page": (144, "<Q", 7),
}


@pytest.fixture(scope="module")
def all_kinds(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file with pages of all kinds."""
    path = tmp_path_factory.mktemp("all") / "store"
    fill(path)
    found = kinds(path / DATA)
    assert set(found) == {"meta", "branch", "leaf", "overflow", "free"}
    return (path / DATA).read_bytes()


@pytest.mark.parametrize("field", META)
def test_no_field_of_the_meta_page_is_trusted(path: Path, all_kinds: bytes, field: str) -> None:
    path.mkdir()
    data = path / DATA
    data.write_bytes(all_kinds)
    check_pages(data)
    offset, form, value = META[field]
    page = max((0, 1), key=lambda page: struct.unpack_from("<Q", all_kinds, page * PAGE + 144)[0])
    if "transaction" in field:
        value += page
    with data.open("r+b") as stream:
        stream.seek(page * PAGE + offset)
        stream.write(struct.pack(form, value))
    with pytest.raises(Damaged):
        check_pages(data)


@pytest.mark.parametrize("kind", ["branch", "leaf", "free", "overflow"])
def test_the_header_of_a_page_is_what_was_written_to_the_bit(path: Path, all_kinds: bytes, kind: str) -> None:
    """Number, flags, and how many keys or pages. Two bytes in between mean nothing here, nor does the lowest bit of
    where the free space begins, and less free space in a page than there is does no harm."""
    path.mkdir()
    data = path / DATA
    data.write_bytes(all_kinds)
    chance = random.Random(1)
    for bit in chance.sample(
        [*range(64), *range(80, 96), *range(97, 128 if kind == "overflow" else 112)], 12
    ):
        page = chance.choice(kinds(data)[kind])
        flip(data, page, bit)
        with pytest.raises(Damaged):
            check_pages(data)
        flip(data, page, bit)
    check_pages(data)


@pytest.mark.parametrize("size", [0, 100, 4096, 4200])
def test_a_file_without_two_meta_pages_is_cut_short(path: Path, all_kinds: bytes, size: int) -> None:
    path.mkdir()
    (path / DATA).write_bytes(all_kinds[:size])
    with pytest.raises(Damaged, match=r"cut short|beyond the end"):
        check_pages(path / DATA)


def test_what_the_check_itself_stumbles_over_is_damage(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path, count=1)

    def stumble(_: str) -> list[str]:
        raise IndexError("odd")

    monkeypatch.setattr(probe, "verify", stumble)
    with pytest.raises(Damaged, match="IndexError: odd"):
        check_pages(path / DATA)


def test_a_file_that_cannot_be_read_is_not_called_damaged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(path, count=1)

    def refused(_: str) -> list[str]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(probe, "verify", refused)
    with pytest.raises(PermissionError):
        check_pages(path / DATA)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (OSError(5, "Input/output error"), probe.BROKEN),
        (OSError(13, "Permission denied"), probe.UNUSABLE),
        (OSError(28, "No space left on device"), probe.NO_ROOM),
        (OSError(122, "Disk quota exceeded"), probe.NO_ROOM),
        (MemoryError(), probe.UNUSABLE),
        (lmdb.CorruptedError("page"), probe.BROKEN),
        (lmdb.MemoryError("mdb_env_open"), probe.UNUSABLE),
        (Damaged("short"), probe.BROKEN),
    ],
    ids=str,
)
def test_how_a_rehearsal_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    path.mkdir()

    def rehearse(*_: object) -> None:
        raise error

    monkeypatch.setattr(probe, "rehearse", rehearse)
    assert probe.main(path, MIB, ["records"]) == status


def test_a_second_look_is_taken_before_a_verdict(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may have written meanwhile."""
    filled(path, count=1)
    looks = []

    def look(data: Path) -> None:
        looks.append(data)
        if len(looks) == 1:
            raise Damaged("a page of two commits")

    monkeypatch.setattr(probe, "check_pages", look)
    probe.check(path)
    assert len(looks) == 2


def test_the_second_look_does_not_hide_the_first(path: Path) -> None:
    path.mkdir()
    (path / DATA).write_bytes(b"garbage" * 5000)
    with pytest.raises(Damaged, match="no file of this store"):
        probe.check(path)


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE"])
def test_a_file_that_kills_is_damaged(name: str) -> None:
    assert verdict(-getattr(signal, name), "") == f"killed its reader ({name})"


@pytest.mark.parametrize("status", [-signal.SIGKILL, -signal.SIGINT, -signal.SIGTERM, 1, probe.UNUSABLE])
def test_a_rehearsal_that_was_cut_short_says_nothing_of_the_file(status: int) -> None:
    with pytest.raises(TierUnavailable) as caught:
        verdict(status, "said")
    assert (caught.value.reason, caught.value.detail) == ("unprobed", "said")


def test_the_other_verdicts() -> None:
    assert verdict(probe.SOUND, "") is None
    assert verdict(probe.BROKEN, "it is short") == "is damaged (it is short)"
    with pytest.raises(TierUnavailable, match="disk_full"):
        verdict(probe.NO_ROOM, "")


def test_a_rehearsal_that_takes_long_is_waited_for_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Then it goes on beside the requests, which do without the tier."""
    filled(path, count=2)
    go = tmp_path / "go"
    popen = subprocess.Popen

    def slow(command: list[str], **options: object) -> object:
        wait = f"import os, sys, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
        begin = f"os.execv(sys.executable, {command!r})"
        return popen([sys.executable, "-c", wait + begin], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(rehearsal.subprocess, "Popen", slow)
    monkeypatch.setattr("store.tiers.lmdb.opener._PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr("store.tiers.lmdb.environment._RETRY_SECONDS", 0.0)
    tier = LmdbTier(path, 32 * MIB)
    for _ in range(3):
        with pytest.raises(TierUnavailable) as caught:
            tier.contains(key_of(0).digest)
        assert caught.value.reason == "checking"
    assert "cannot be opened: checking" in tier.problems()[0]
    go.touch()
    for _ in range(600):
        if tier.stats().available:
            break
    assert tier.contains(key_of(0).digest) and tier.problems() == ()
    tier.close()


def test_closing_ends_a_rehearsal(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(path, count=1)
    children = []
    popen = subprocess.Popen

    def slow(_: list[str], **options: object) -> object:
        children.append(popen([sys.executable, "-c", "import time; time.sleep(60)"], **options))  # type: ignore[call-overload]
        return children[-1]

    monkeypatch.setattr(rehearsal.subprocess, "Popen", slow)
    monkeypatch.setattr("store.tiers.lmdb.opener._PATIENCE_SECONDS", 0.01)
    tier = LmdbTier(path, 32 * MIB)
    assert not tier.stats().available
    tier.close()
    assert [child.returncode for child in children] == [-signal.SIGKILL]


def test_no_process_to_be_had_costs_the_tier_only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(rehearsal.subprocess, "Popen", refused)
    tier = LmdbTier(path, 32 * MIB)
    assert not tier.stats().available
    assert "unprobed: no more processes" in tier.problems()[0]
    tier.close()
