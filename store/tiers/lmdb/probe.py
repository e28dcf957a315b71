"""Rehearses what the service will do with an LMDB directory, in a process that may die of it:
`python -m store.tiers.lmdb.probe DIRECTORY MAP_SIZE DATABASE...`.

A file cut short kills its reader with SIGBUS, a damaged page list makes LMDB abort or overwrite pages that are in
use, a lock file without room behind it kills whoever touches it. No exception handler survives that. So this
process reserves, checks, opens, reads, writes and commits first; what it has done, the service may do.

Exit status 0: sound, 3: damaged (how on stdout), 4: no room for an empty store, 5: cannot be used for another
reason; a fatal signal: damaged.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import lmdb
from lmdb.verify import verify

from store.tiers.lmdb.file import DATA, LOCK
from store.tiers.lmdb.native import (
    BROKEN_ERRORS,
    FOREIGN_ERRORS,
    MAX_READERS,
    Opened,
    code_of,
    connect,
    no_room,
)

SOUND, BROKEN, NO_ROOM, UNUSABLE = 0, 3, 4, 5

# LMDB's lock file: a cache line for each reader, and a header of a few lines.
_LOCK_BYTES = 64 * (MAX_READERS + 16)
# What a file system says that knows no reservations; the touch itself is rehearsed all the same.
_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.EINVAL)
# mdb.c of LMDB 0.9: in each of the two meta pages the version, the page size and flags of the free list, and the
# flags of the table of databases.
_META = struct.Struct("<20xI16xIH46xH")
_META_VERSION = 1
_LEAST_BYTES = 2 * 4096
_FLAGS = (0x08, 0x00)
_KEY = b"rehearsal"
_VALUE = bytes(3 * 4096)


class Damaged(Exception):
    """What was found cannot be what was written."""


def reserve(lock: Path) -> None:
    """Have room on disk behind all of the lock file, which LMDB maps and writes to. Raises OSError."""
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, _LOCK_BYTES)
    except OSError as error:
        if error.errno not in _CANNOT_RESERVE:
            raise
    finally:
        os.close(descriptor)


def check(directory: Path) -> None:
    """Look at all that LMDB trusts without opening it. Raises Damaged, and OSError."""
    try:
        check_pages(directory / DATA)
    except (Damaged, OSError) as found:
        # Perhaps another process has written meanwhile. A reader keeps the pages of a state for a second look; where
        # the file is damaged indeed, this process may die of that.
        try:
            with lmdb.open(os.fsencode(directory), max_readers=MAX_READERS, create=False) as env, env.begin():
                check_pages(directory / DATA)
        except (Damaged, *FOREIGN_ERRORS):
            raise found from None


def check_pages(data: Path) -> None:
    with data.open("rb") as stream:
        _, page, *_ = _META.unpack(_read(stream.fileno(), 0))
        for start in (0, page):
            version, _, *flags = _META.unpack(_read(stream.fileno(), start))
            if version != _META_VERSION or tuple(flags) != _FLAGS:
                raise Damaged("it is no file of this store")
    try:
        problems = verify(str(data))
    except OSError:
        raise
    except Exception as error:  # VerifyError, and whatever else the check itself stumbles over
        raise Damaged(f"{type(error).__name__}: {error}") from error
    if problems:
        raise Damaged(problems[0])


def _read(descriptor: int, start: int) -> bytes:
    found = os.pread(descriptor, _META.size, start)
    if len(found) < _META.size:
        raise Damaged("it is cut short")
    return found


def walk(opened: Opened) -> None:
    """Visit every key of every database, and look it up from the root. Raises Damaged, and lmdb.Error."""
    with opened.env.begin(buffers=True) as transaction:
        for name, database in opened.databases.items():
            if any(database.flags(transaction).values()):
                raise Damaged(f"database {name} has flags")
            for key in transaction.cursor(db=database).iternext(keys=True, values=False):
                if transaction.get(key, db=database) is None:
                    raise Damaged(f"a key of {name} cannot be found")


def write(opened: Opened) -> None:
    """Write to every database what takes pages of its own, commit, remove it, commit."""
    databases = opened.databases.values()
    with opened.env.begin(write=True) as transaction:
        for database in databases:
            transaction.put(_KEY, _VALUE, db=database)
    with opened.env.begin(write=True) as transaction:
        for database in databases:
            transaction.delete(_KEY, db=database)


def rehearse(directory: Path, names: Sequence[str], map_size: int) -> None:
    """Raises Damaged, OSError and lmdb.Error."""
    data = directory / DATA
    if data.exists() and data.stat().st_size:
        check(directory)
    reserve(directory / LOCK)
    try:
        opened = connect(directory, names, map_size)
    except lmdb.Error:
        # An empty store of which only a part could be written is no store.
        if data.stat().st_size < _LEAST_BYTES:
            data.unlink()
        raise
    with opened.env:
        walk(opened)
        try:
            write(opened)
        except BROKEN_ERRORS:
            raise
        except FOREIGN_ERRORS:
            pass  # no room, say: what is there can still be read


def _full(error: BaseException, directory: Path) -> bool:
    return no_room(error, shutil.disk_usage(directory).free)


def main(directory: Path, map_size: int, names: Sequence[str]) -> int:
    try:
        rehearse(directory, names, map_size)
    except Damaged as error:
        print(error)
        return BROKEN
    except BROKEN_ERRORS as error:
        print(f"{type(error).__name__}: {error}")
        return BROKEN
    except FOREIGN_ERRORS as error:
        print(f"{type(error).__name__}: {error}")
        if _full(error, directory):
            return NO_ROOM
        return BROKEN if code_of(error) == errno.EIO else UNUSABLE
    return SOUND


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]))
