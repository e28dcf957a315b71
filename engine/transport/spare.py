"""Descriptors kept back for the start of a worker, whatever else takes all others meanwhile."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class SpareDescriptors:
    """Holds `count` descriptors open. Not thread-safe."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._held: list[int] = []
        self._hold()

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Inside, so many descriptors are free (unless another thread is quicker)."""
        self.close()
        try:
            yield
        finally:
            self._hold()

    def close(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def _hold(self) -> None:
        """Fewer where there are none now; the next loan makes up for it."""
        with suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
