"""The C heap of a long-lived CPU worker."""

from __future__ import annotations

import ctypes
import sys

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
LARGE = 4 << 20


def keep_large_blocks_apart() -> None:
    """Make glibc serve blocks of 4 MiB and more by mmap, and keep that threshold fixed.

    By default the threshold adapts upwards to 32 MiB, tensors of ever new sizes then fragment the heap, and resident
    memory grows without bound while live tensors stay small (a long evaluation reached 23 GB that way). With another C
    library this does nothing.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE)
        mallopt(M_TRIM_THRESHOLD, 4 * LARGE)
