"""Who has a directory open: the file `in-use`, locked."""

from __future__ import annotations

import fcntl
import os
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
    directory cannot be made or written, or somebody has it to himself."""

    def __init__(self, directory: Path) -> None:
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
        """Nobody else has the directory open, or opens it, until the block ends. Raises TierUnavailable("shared")."""
        if self._descriptor is None:
            raise TierUnavailable("closed")
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            # A lock that could not be changed is lost.
            self._share()
            raise TierUnavailable("shared", "another process has it open") from error
        try:
            yield
        finally:
            self._share()

    def close(self) -> None:
        """Idempotent, and safe while somebody has it alone."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _share(self) -> None:
        """Who has it alone has it for moments, but for a compaction."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while self._descriptor is not None:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise TierUnavailable("shared", "another process has it to itself") from error
            time.sleep(_PAUSE_SECONDS)
