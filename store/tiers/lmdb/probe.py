"""Opens an LMDB directory in a process that may die of it: `python probe.py PATH shallow|deep`.

A truncated file kills its reader with SIGBUS and a damaged tree can do worse, which no exception handler
survives. So the store has a child walk the tree first. Exit status 0: sound, 3: not (the reason on stdout),
4: cannot be read for another reason; a signal: not sound either.
"""

from __future__ import annotations

import sys

import lmdb

SOUND, BROKEN, UNREADABLE = 0, 3, 4
_BROKEN_ERRORS = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    lmdb.IncompatibleError,
    lmdb.PanicError,
)
_PAGE = 4096


def walk(path: str, deep: bool) -> None:
    """Visit every key of every database; deep: touch every page of every value too."""
    environment = lmdb.open(path, readonly=True, max_dbs=16, max_readers=1024, create=False)
    with environment, environment.begin(buffers=True) as transaction:
        names = [bytes(name) for name, _ in transaction.cursor()]
        for name in names:
            database = environment.open_db(name, txn=transaction, create=False)
            for _, value in transaction.cursor(db=database).iternext(keys=True, values=True):
                if deep:
                    sum(value[::_PAGE])


def main(path: str, depth: str) -> int:
    try:
        walk(path, depth == "deep")
    except _BROKEN_ERRORS as error:
        print(type(error).__name__)
        return BROKEN
    except (lmdb.Error, OSError, MemoryError) as error:
        print(f"{type(error).__name__}: {error}")
        return UNREADABLE
    return SOUND


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
