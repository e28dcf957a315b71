"""LMDB's errors, and the system's, in the store's terms."""

from __future__ import annotations

import errno

import lmdb
import pytest

from store.errors import TierFull, TierUnavailable
from store.tiers.lmdb.native import translated

PLENTY = 1 << 40


def of(error: lmdb.Error, code: int) -> lmdb.Error:
    error.code = code
    return error


@pytest.mark.parametrize(
    ("error", "free", "kind", "reason"),
    [
        (lmdb.MapFullError("put"), PLENTY, TierFull, "map_full"),
        (MemoryError(), PLENTY, TierFull, "no_memory"),
        (lmdb.ReadersFullError("begin"), PLENTY, TierUnavailable, "readers_full"),
        (lmdb.CorruptedError("page"), PLENTY, TierUnavailable, "broken"),
        (lmdb.DiskError("commit"), PLENTY, TierFull, "disk_full"),
        (OSError(errno.ENOSPC, "no space"), PLENTY, TierFull, "disk_full"),
        (OSError(errno.EDQUOT, "quota"), PLENTY, TierFull, "disk_full"),
        (OSError(errno.EIO, "input/output"), PLENTY, TierUnavailable, "failed"),
        (OSError(errno.EIO, "input/output"), 0, TierFull, "disk_full"),
        (of(lmdb.Error("commit"), errno.EIO), PLENTY, TierUnavailable, "failed"),
        (of(lmdb.Error("commit"), errno.EIO), 0, TierFull, "disk_full"),
        (OSError(errno.EACCES, "denied"), 0, TierUnavailable, "failed"),
    ],
    ids=str,
)
def test_an_error_says_whether_there_is_room_and_whether_the_file_is_to_blame(
    error: BaseException, free: int, kind: type, reason: str
) -> None:
    """A write that was cut short looks like a failing disk: what is free tells them apart."""
    found = translated(error, free)
    assert (type(found), found.reason) == (kind, reason)
