"""Who has a directory open, and who has it to himself."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from store.errors import TierUnavailable
from store.tiers.lmdb.claim import Claim


def test_who_has_it_alone_for_a_moment_is_waited_for(path: Path) -> None:
    first = Claim(path)
    claims: list[Claim] = []
    second = threading.Thread(target=lambda: claims.append(Claim(path)))
    with first.alone():
        second.start()
        second.join(0.05)
        assert second.is_alive()
    second.join(30)
    for one in (first, claims[0]):  # and whoever asked in vain still has it open
        with pytest.raises(TierUnavailable, match="shared"), one.alone():
            pass
    claims[0].close()
    with first.alone():
        pass
    first.close()


def test_who_has_it_alone_for_long_is_not_and_nothing_is_left_open(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.tiers.lmdb.claim._PATIENCE_SECONDS", 0.0)
    first = Claim(path)
    before = os.listdir("/proc/self/fd")
    with first.alone(), pytest.raises(TierUnavailable, match="shared"):
        Claim(path)
    assert os.listdir("/proc/self/fd") == before
    first.close()
