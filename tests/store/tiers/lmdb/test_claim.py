"""Who has a directory open."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from store.errors import TierUnavailable
from store.tiers.lmdb import claim
from store.tiers.lmdb.claim import IN_USE, Claim


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "_PATIENCE_SECONDS", 0.05)


def test_many_may_have_it_and_one_of_them_alone_when_the_others_left(path: Path) -> None:
    ours, theirs = Claim(path), Claim(path)
    with pytest.raises(TierUnavailable) as caught, ours.alone():
        raise AssertionError("not alone")
    assert caught.value.reason == "shared"
    theirs.close()
    with ours.alone(), pytest.raises(TierUnavailable, match="shared"):
        Claim(path)
    Claim(path).close()
    ours.close()


def test_who_was_refused_still_has_it(path: Path) -> None:
    ours, theirs = Claim(path), Claim(path)
    with pytest.raises(TierUnavailable), ours.alone():
        pass
    theirs.close()
    third = Claim(path)
    with pytest.raises(TierUnavailable), third.alone():
        pass
    ours.close()
    with third.alone():
        pass
    third.close()


def test_a_moment_alone_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim, "_PATIENCE_SECONDS", 30.0)
    ours = Claim(path)
    waits: list[float] = []

    with ours.alone():

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            ours.close()

        monkeypatch.setattr(claim.time, "sleep", sleep)
        theirs = Claim(path)
    assert len(waits) == 1
    theirs.close()


def test_what_is_closed_meanwhile_touches_no_other_file(path: Path) -> None:
    """Its number may be somebody else's by then."""
    ours = Claim(path)
    with ours.alone():
        ours.close()
        other = os.open(path / "other", os.O_RDWR | os.O_CREAT)
    ours.close()
    os.fstat(other)
    os.close(other)
    with pytest.raises(TierUnavailable, match="closed"), ours.alone():
        pass


def test_it_is_not_closed_between_a_look_at_it_and_its_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Claim(path)
    closing = threading.Thread(target=ours.close)
    lock, locked = claim.fcntl.flock, []

    def slow(descriptor: int, kind: int) -> None:
        closing.start()
        closing.join(0.05)
        os.fstat(descriptor)
        locked.append(descriptor)
        lock(descriptor, kind)

    monkeypatch.setattr(claim.fcntl, "flock", slow)
    with ours.alone():
        closing.join()
    assert len(locked) == 1


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_lies_there_under_that_name_is_not_waited_for(path: Path, kind: str) -> None:
    path.mkdir()
    if kind == "folder":
        (path / IN_USE).mkdir()
        with pytest.raises(TierUnavailable, match="unreadable"):
            Claim(path)
    else:
        os.mkfifo(path / IN_USE)
        Claim(path).close()


def test_a_folder_that_is_made_is_private(path: Path) -> None:
    Claim(path / "in" / "between").close()
    assert (path / "in" / "between").stat().st_mode & 0o077 == 0
