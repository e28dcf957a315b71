"""Host memory for payloads, used again and again.

Filling fresh memory costs a page fault per 4 KiB, which makes a read several times slower than the copy
itself, and many tensors of many sizes fragment the C heap. So payloads live in anonymous maps that a pool
keeps.
"""

from __future__ import annotations

import mmap
import sys
import threading

_GRANULE = 1 << 18


def _pool_only() -> int:
    """Reference count of an object that only a list holds, as seen by `sys.getrefcount` on a list item."""
    held = [bytearray()]
    return sys.getrefcount(held[0])


def _map(nbytes: int) -> mmap.mmap:
    try:
        return mmap.mmap(-1, nbytes)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{nbytes} bytes") from error


class BufferPool:
    """Hands out writable page-aligned buffers. Nobody gives one back: it is free again as soon as nothing but
    the pool refers to it, which tensors and memoryviews over it prevent for as long as they live. A buffer
    can therefore never be reused under somebody's feet, whatever they forgot to release.

    `idle_bytes` bounds what the pool keeps beyond the buffers in use.
    """

    def __init__(self, idle_bytes: int) -> None:
        self._idle_bytes = idle_bytes
        self._buffers: list[mmap.mmap] = []
        self._lock = threading.Lock()
        self._free_count = _pool_only()

    def take(self, nbytes: int) -> memoryview:
        """A writable view of exactly `nbytes` bytes with arbitrary content. Raises MemoryError."""
        size = max(_GRANULE, -(-nbytes // _GRANULE) * _GRANULE)
        with self._lock:
            idle = self._idle()
            fitting = [i for i in idle if size <= len(self._buffers[i]) <= size + size // 4]
            if fitting:
                buffer = self._buffers[min(fitting, key=lambda i: len(self._buffers[i]))]
            else:
                self._drop(idle, size)
                buffer = _map(size)
                self._buffers.append(buffer)
            return memoryview(buffer)[:nbytes]

    def trim(self) -> None:
        """Give memory beyond `idle_bytes` back to the system."""
        with self._lock:
            self._drop(self._idle(), 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, in use or idle."""
        with self._lock:
            return sum(len(buffer) for buffer in self._buffers)

    @property
    def idle_bytes(self) -> int:
        with self._lock:
            return sum(len(self._buffers[i]) for i in self._idle())

    def _idle(self) -> list[int]:
        buffers = self._buffers
        return [i for i in range(len(buffers)) if sys.getrefcount(buffers[i]) == self._free_count]

    def _drop(self, idle: list[int], incoming: int) -> None:
        """Drop idle buffers, oldest first, until they and `incoming` fit the bound."""
        excess = sum(len(self._buffers[i]) for i in idle) + incoming - self._idle_bytes
        dropped = set()
        for i in idle:
            if excess <= 0:
                break
            excess -= len(self._buffers[i])
            dropped.add(i)
        if dropped:
            self._buffers = [buffer for i, buffer in enumerate(self._buffers) if i not in dropped]
