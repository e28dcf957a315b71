"""What is LMDB's own: how an environment is opened, and what its errors mean to the store."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb

from store.errors import TierError, TierFull, TierUnavailable

MAX_READERS = 1024
# The errors of a sound program on a damaged file.
BROKEN_ERRORS = (
    lmdb.BadTxnError,
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
FOREIGN_ERRORS = (lmdb.Error, OSError, MemoryError)
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SHORT_OF_SPACE = 32 << 20


@dataclass(frozen=True, slots=True)
class Opened:
    """An open environment and its databases by name, as items. `identity` tells its data file from another at the
    same path."""

    env: Any
    databases: Mapping[str, Any]
    identity: tuple[int, int] = (0, 0)

    def __getitem__(self, name: str) -> Any:
        return self.databases[name]


def connect(directory: Path, names: Sequence[str], map_size: int) -> Opened:
    """Open or create an environment with the databases `names`. Raises lmdb.Error."""
    env = lmdb.open(
        os.fsencode(directory),
        map_size=map_size,
        max_dbs=len(names),
        max_readers=MAX_READERS,
        sync=False,
        metasync=False,
        writemap=False,
        max_spare_txns=0,
        mode=0o600,
    )
    try:
        env.reader_check()
        return Opened(env, {name: env.open_db(name.encode()) for name in names})
    except lmdb.Error:
        env.close()
        raise


def code_of(error: BaseException) -> int | None:
    """The system's or LMDB's number of an error."""
    code = error.errno if isinstance(error, OSError) else getattr(error, "code", None)
    return code if isinstance(code, int) else None


def no_room(error: BaseException, free_bytes: int) -> bool:
    """Whether the file system has no room for more. LMDB reports a write that was cut short as an input/output
    error."""
    code = code_of(error)
    return (
        isinstance(error, lmdb.DiskError)
        or code in _NO_ROOM
        or (code == errno.EIO and free_bytes < _SHORT_OF_SPACE)
    )


def translated(error: BaseException, free_bytes: int) -> TierError:
    """One of `FOREIGN_ERRORS` in the store's terms; with `free_bytes` left on the file system."""
    if isinstance(error, lmdb.MapFullError):
        return TierFull("map_full")
    if isinstance(error, MemoryError):
        return TierFull("no_memory")
    if isinstance(error, lmdb.ReadersFullError):
        return TierUnavailable("readers_full")
    if isinstance(error, BROKEN_ERRORS):
        return TierUnavailable("broken", str(error))
    if no_room(error, free_bytes):
        return TierFull("disk_full", str(error))
    return TierUnavailable("failed", str(error))
