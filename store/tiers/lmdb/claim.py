"""Who has a directory open: the file `in-use`, locked."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from store.errors import TierUnavailable

IN_USE = "in-use"
_PATIENCE_SECONDS = 1.0
_PAUSE_SECONDS = 0.02


class Claim:
    """A shared lock on the directory as long as it is not closed. Raises TierUnavailable if there can be none: the
    directory cannot be made or written, or somebody has it to himself. Thread-safe: it may be closed while another
    thread has it alone."""

    def __init__(self, directory: Path) -> None:
        # Once closed, the number of its file may be that of another one.
        self._guard = threading.Lock()
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Not to wait for anybody, whatever lies there under that name.
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
            self._descriptor: int | None = os.open(directory / IN_USE, flags, 0o600)
        except OSError as error:
            raise TierUnavailable("unreadable", str(error)) from error
        try:
            self._share()
        except TierUnavailable:
            self.close()
            raise

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else has the directory open, or opens it, until the block ends. Raises TierUnavailable("shared"), or
        "closed" if it is."""
        try:
            if not self._lock(fcntl.LOCK_EX):
                raise TierUnavailable("closed")
        except OSError as error:
            # A lock that could not be changed is lost.
            self._share()
            raise TierUnavailable("shared", "another process has it open") from error
        try:
            yield
        finally:
            self._share()

    def close(self) -> None:
        """Idempotent."""
        with self._guard:
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def after_fork(self) -> None:
        """In the child: the parent keeps it, whatever its threads were at."""
        self._guard = threading.Lock()
        self.close()

    def _share(self) -> None:
        """Who has it alone has it for moments, but for a compaction."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                self._lock(fcntl.LOCK_SH)
                return
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise TierUnavailable("shared", "another process has it to itself") from error
            time.sleep(_PAUSE_SECONDS)

    def _lock(self, kind: int) -> bool:
        """False if it is closed. Raises OSError if somebody else's lock stands against it."""
        with self._guard:
            if self._descriptor is not None:
                fcntl.flock(self._descriptor, kind | fcntl.LOCK_NB)
            return self._descriptor is not None
