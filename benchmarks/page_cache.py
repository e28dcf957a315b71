"""Asking the system to forget a file, and looking whether it did."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

_PAGE = mmap.PAGESIZE


def drop(path: Path) -> float:
    """Write the file out and drop it from the page cache; the share that is still there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return resident_share(path)


def resident_share(path: Path) -> float:
    """Share of the file's pages that are in the page cache. Raises OSError."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY) as pages:
        count = -(-len(pages) // _PAGE)
        states = (ctypes.c_ubyte * count)()
        base = ctypes.c_char.from_buffer(pages)
        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.mincore(ctypes.c_void_p(ctypes.addressof(base)), ctypes.c_size_t(len(pages)), states)
        del base
        if failed:
            raise OSError(ctypes.get_errno(), "mincore")
        return sum(state & 1 for state in states) / count
