"""From a directory to an open environment: claimed, rehearsed, and put aside first where it is damaged."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from store.errors import TierUnavailable
from store.tiers.lmdb import crashes
from store.tiers.lmdb.claim import Claim
from store.tiers.lmdb.file import (
    COMPACT,
    DATA,
    clear,
    discard,
    discard_aside,
    fault_on_sight,
    identity,
    network_filesystem,
    put_aside,
)
from store.tiers.lmdb.native import FOREIGN_ERRORS, Opened, connect, translated
from store.tiers.lmdb.rehearsal import Rehearsal

_log = logging.getLogger(__name__)

# How long a request may wait for the rehearsal of a large store; it goes on meanwhile.
_PATIENCE_SECONDS = 20.0
_GLANCE_SECONDS = 0.1


class Opener:
    """Holds what outlives a single opening: the claim on the directory, and a rehearsal that is not over yet. Not
    thread-safe."""

    def __init__(self, path: Path, databases: Sequence[str], map_size: int) -> None:
        self._path = path
        self._databases = tuple(databases)
        self._map_size = map_size
        self._claim: Claim | None = None
        self._crashes: BinaryIO | None = None
        self._rehearsal: Rehearsal | None = None
        # Whether there was nothing in it when the rehearsal began.
        self._empty = False
        self._network = ""
        self.event = ""

    @property
    def notes(self) -> tuple[str, ...]:
        """What an operator should know of the directory, without its name."""
        return tuple(note for note in (self._network, self.event) if note)

    def open(self) -> Opened:
        """Raises TierUnavailable: "checking" if the rehearsal takes long, then it may be asked again."""
        if self._rehearsal is None:
            self._begin()
        fault = self._fault()
        if fault is not None and not self._empty:
            put_aside(self._path)
            self.event = f"{fault}; started empty, the old files are beside the new ones, named *.aside"
            _log.error("%s %s", self._path, self.event)
            fault = self._fault()
        if fault is not None:
            clear(self._path)
            raise TierUnavailable("unusable", f"an empty store {fault}")
        self._crashes = self._crashes or crashes.watch(self._path)
        try:
            opened = connect(self._path, self._databases, self._map_size)
            return replace(opened, identity=identity(self._path))
        except FOREIGN_ERRORS as error:
            failure = translated(error, free_bytes(self._path))
            raise TierUnavailable(failure.reason, failure.detail) from error

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process has the directory open, or opens it, until the block ends. Raises
        TierUnavailable("shared") if one has."""
        if self._claim is None:
            raise TierUnavailable("closed")
        with self._claim.alone():
            yield

    def close(self) -> None:
        if self._rehearsal is not None:
            self._rehearsal.cancel()
        self._release()

    def after_fork(self) -> None:
        """In the child: the rehearsal is the parent's."""
        self._rehearsal = None
        if self._claim is not None:
            self._claim.after_fork()
        self._release()

    def _begin(self) -> None:
        self._release()
        self._claim = Claim(self._path)
        with suppress(TierUnavailable, OSError), self._claim.alone():
            discard(self._path / COMPACT)  # what a compaction left that was cut short
        network = network_filesystem(self._path)
        if network is not None:
            self._network = f"lies on a network file system ({network}), which LMDB cannot use safely"
            _log.warning("%s %s", self._path, self._network)

    def _fault(self) -> str | None:
        """Why the files must not be opened. Raises TierUnavailable if that is not known yet, and if the cause is not in
        the files."""
        patience = _GLANCE_SECONDS
        if self._rehearsal is None:
            self._empty = not (self._path / DATA).exists()
            fault = fault_on_sight(self._path)
            if fault is not None:
                self._empty = False
                return fault
            self._rehearsal = Rehearsal(self._path, self._databases, self._map_size)
            patience = _PATIENCE_SECONDS
        rehearsal, self._rehearsal = self._rehearsal, None
        try:
            return rehearsal.fault(patience)
        except TierUnavailable as error:
            if error.reason == "checking":
                self._rehearsal = rehearsal
            elif error.reason == "disk_full" and discard_aside(self._path):
                return self._fault()
            raise

    def _release(self) -> None:
        if self._claim is not None:
            self._claim.close()
        if self._crashes is not None:
            crashes.unwatch(self._crashes)
        self._claim = self._crashes = None


def free_bytes(directory: Path) -> int:
    """0 if it cannot be told."""
    try:
        return shutil.disk_usage(directory).free
    except OSError:
        return 0
