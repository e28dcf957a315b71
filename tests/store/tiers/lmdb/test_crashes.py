"""A process that dies inside LMDB leaves a mark; the second time the file is put aside."""

from __future__ import annotations

import faulthandler
import os
import signal
from pathlib import Path

import pytest

from store.tiers.lmdb import crashes
from store.tiers.lmdb.crashes import CRASHES, deaths
from store.tiers.lmdb.file import ASIDE, DATA, LOCK
from store.tiers.lmdb.tier import LmdbTier
from tests.store.tiers.lmdb.files import MIB, aside, filled, run

PROGRAM = """
import os, signal, sys
from pathlib import Path
from store.tiers.lmdb.tier import LmdbTier
from tests.store.samples import key_of, read

class Dying:
    def manifest(self, raw):
        os.kill(os.getpid(), getattr(signal, sys.argv[3]))

tier = LmdbTier(Path(sys.argv[1]), 32 << 20)
assert len(tier.rows()) == 6
match sys.argv[2]:
    case "inside":
        tier.get(key_of(2).digest, Dying())
    case "page gone":
        os.truncate(Path(sys.argv[1]) / "data.mdb", 3 * 4096)
        read(tier, key_of(2).digest)
    case "outside":
        Dying().manifest(b"")
"""


def die(path: Path, where: str, of: str) -> None:
    """Let a process that has the store open die."""
    done = run(PROGRAM, path, where, of)
    assert done.returncode == -getattr(signal, of), done.stderr


@pytest.mark.parametrize("of", ["SIGSEGV", "SIGABRT"])
def test_h2_who_dies_inside_twice_has_the_file_put_aside(path: Path, of: str) -> None:
    filled(path)
    for times in (1, 2):
        die(path, "inside", of)
        assert deaths(path) == times
    tier = LmdbTier(path, 32 * MIB)
    assert tier.rows() == []
    assert "was being used when the process died, 2 times" in tier.problems()[0]
    assert aside(path) == {DATA + ASIDE, LOCK + ASIDE, CRASHES + ASIDE}
    tier.close()
    assert deaths(path) == 0
    again = LmdbTier(path, 32 * MIB)
    assert again.rows() == [] and again.problems() == ()
    again.close()


def test_h2_a_page_that_cannot_be_read_kills_no_third_process(path: Path) -> None:
    """Nothing that a rehearsal finds: it reads no pages of values."""
    filled(path)
    whole = (path / DATA).read_bytes()
    for _ in range(2):
        die(path, "page gone", "SIGBUS")
        (path / DATA).write_bytes(whole)
    tier = LmdbTier(path, 32 * MIB)
    assert tier.rows() == [] and tier.problems()
    tier.close()


def test_one_death_inside_is_forgiven(path: Path) -> None:
    filled(path)
    die(path, "inside", "SIGSEGV")
    tier = LmdbTier(path, 32 * MIB)
    assert len(tier.rows()) == 6 and tier.problems() == ()
    tier.close()


@pytest.mark.parametrize(("where", "of"), [("inside", "SIGKILL"), ("outside", "SIGSEGV")])
def test_the_store_is_not_blamed_for_other_deaths(path: Path, where: str, of: str) -> None:
    filled(path)
    for _ in range(2):
        die(path, where, of)
    tier = LmdbTier(path, 32 * MIB)
    assert len(tier.rows()) == 6 and tier.problems() == ()
    tier.close()


def test_the_last_words_go_to_the_log_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(path)
    die(path, "outside", "SIGSEGV")
    for expected in (1, 0):
        caplog.clear()
        assert deaths(path) == 0
        assert caplog.text.count("Segmentation fault") == expected


def test_a_report_that_somebody_else_wants_is_left_to_him(path: Path) -> None:
    """The test runner has faulthandler on, as PYTHONFAULTHANDLER does."""
    assert faulthandler.is_enabled()
    path.mkdir()
    assert crashes.watch(path) is None
    assert faulthandler.is_enabled() and not (path / CRASHES).exists()


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_no_report_costs_no_store(path: Path, kind: str) -> None:
    filled(path)
    if kind == "folder":
        (path / CRASHES).mkdir()
    else:
        os.mkfifo(path / CRASHES)
    done = run(PROGRAM, path, "nowhere", "SIGKILL")
    assert done.returncode == 0, done.stderr


def test_closing_ends_the_watch(path: Path) -> None:
    program = """
import faulthandler, sys
from pathlib import Path
from store.tiers.lmdb.tier import LmdbTier
tier = LmdbTier(Path(sys.argv[1]), 1 << 20)
assert not faulthandler.is_enabled()
tier.rows()
assert faulthandler.is_enabled()
tier.close()
assert not faulthandler.is_enabled()
print("ended well")
"""
    assert run(program, path).stdout == "ended well\n"
