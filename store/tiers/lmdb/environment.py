"""One LMDB environment, opened late, safe to close and to fork around, with errors in the store's terms."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import lmdb

from store.errors import TierFull, TierUnavailable
from store.tiers.lmdb.file import BROKEN_MARK, DATA, fault_of, network_filesystem, quarantine

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 10.0
_MAX_READERS = 1024
_SHORT_OF_SPACE = 32 << 20
_BROKEN_ERRORS = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.VersionMismatchError,
    lmdb.PanicError,
)
_environments: weakref.WeakSet[Environment]


@dataclass(frozen=True, slots=True)
class Opened:
    """`alone`: no other process has the environment open. Databases by name, as items."""

    env: Any
    databases: Mapping[str, Any]
    alone: bool

    def __getitem__(self, name: str) -> Any:
        return self.databases[name]


class Environment:
    """`read` and `write` give transactions; the first use opens, in the process that uses it.

    `map_size` is set once: growing a map needs that nobody uses it, in any process.
    """

    def __init__(self, path: Path, databases: Sequence[str], map_size: int) -> None:
        self._path = path
        self._databases = tuple(databases)
        self._map_size = map_size
        self._condition = threading.Condition()
        self._opened: Opened | None = None
        self._active = 0
        self._refusal: tuple[float, TierUnavailable] | None = None
        self._closed = False
        self._mark: BinaryIO | None = None
        self.problems: tuple[str, ...] = ()
        self.opened_by: int | None = None
        _environments.add(self)

    def open(self) -> Opened:
        """Raises TierUnavailable; tries again only after a while, as each try costs a child process."""
        with self._condition:
            if self._closed:
                raise TierUnavailable("closed")
            if self._opened is None:
                if self._refusal is not None:
                    when, refusal = self._refusal
                    if time.monotonic() < when + _RETRY_SECONDS:
                        raise TierUnavailable(refusal.reason, refusal.detail)
                    self._refusal, self.problems = None, ()
                try:
                    self._opened = self._open()
                except TierUnavailable as error:
                    self._refusal = (time.monotonic(), error)
                    self.problems = (f"{self._path.name} cannot be opened: {error}",)
                    raise
            return self._opened

    @contextmanager
    def read(self) -> Iterator[tuple[Any, Opened]]:
        """A read transaction whose values are views, valid inside it only."""
        with self._using() as opened, self._translated(), self._begin_read(opened) as transaction:
            yield transaction, opened

    @contextmanager
    def write(self) -> Iterator[tuple[Any, Opened]]:
        with self._using() as opened, self._translated(), opened.env.begin(write=True) as transaction:
            yield transaction, opened

    def last_transaction(self) -> int:
        """Number of the newest commit by any process."""
        with self._using() as opened, self._translated():
            return int(opened.env.info()["last_txnid"])

    def check_readers(self) -> int:
        """Free the slots of readers that died; without it their snapshots pin pages for ever."""
        with self._using() as opened, self._translated():
            return int(opened.env.reader_check())

    def sync(self) -> None:
        with self._using() as opened, self._translated():
            opened.env.sync(True)

    def compact(self) -> int:
        """Put a compacted copy in the place of the file; bytes given back. No writer may be at work. Raises
        TierUnavailable("shared") if another process has it open, TierFull if there is no room for the
        copy."""
        opened = self.open()
        copy = self._path / "compact"
        before = self.physical_bytes()
        self._claim()
        try:
            with self._translated():
                shutil.rmtree(copy, ignore_errors=True)
                copy.mkdir(mode=0o700)
                opened.env.copy(str(copy), compact=True)
            with self._condition:
                self._condition.wait_for(lambda: self._active == 0)
                opened.env.close()
                self._opened = None
                (copy / DATA).replace(self._path / DATA)
        except OSError as error:
            raise TierUnavailable("failed", str(error)) from error
        finally:
            shutil.rmtree(copy, ignore_errors=True)
            self._share()
        self.open()
        return max(0, before - self.physical_bytes())

    def physical_bytes(self) -> int:
        """What the data file occupies on disk."""
        try:
            return (self._path / DATA).stat().st_blocks * 512
        except OSError:
            return 0

    def close(self) -> None:
        """Waits for transactions that run."""
        with self._condition:
            self._closed = True
            self._condition.wait_for(lambda: self._active == 0)
            self._release()

    def after_fork(self) -> None:
        """In the child: the parent's environment is not ours. Closing it here is harmless to the parent as
        long as no transaction was open (slots in the shared reader table belong to transactions, and we keep
        no spare ones); if one was, leave it alone and stay without this tier."""
        in_use = self._active > 0
        self._condition = threading.Condition()
        self._active = 0
        self.opened_by = None
        if in_use:
            self._closed = True
            self.problems = (f"{self._path.name} was in use at a fork",)
        else:
            self._release()

    def _release(self) -> None:
        if self._opened is not None:
            self._opened.env.close()
        if self._mark is not None:
            self._mark.close()
        self._opened = self._mark = None

    def _open(self) -> Opened:
        alone = self._take_mark()
        network = network_filesystem(self._path)
        if network is not None:
            self.problems = (
                f"{self._path.name} lies on a network file system ({network}), which LMDB cannot use safely",
            )
            _log.warning("%s", self.problems[0])
        fault = fault_of(self._path)
        if fault is not None:
            aside = quarantine(self._path, int(time.time()))
            self.problems += (f"{self._path.name} {fault}; started empty, the old files are in {aside.name}",)
            _log.error("store quarantined: %s", self.problems[-1])
        with self._translated():
            env = lmdb.open(
                str(self._path),
                map_size=self._map_size,
                max_dbs=len(self._databases),
                max_readers=_MAX_READERS,
                sync=False,
                metasync=False,
                writemap=False,
                max_spare_txns=0,
                mode=0o600,
            )
            env.reader_check()
            databases = {name: env.open_db(name.encode()) for name in self._databases}
        self.opened_by = os.getpid()
        return Opened(env, databases, alone)

    def _take_mark(self) -> bool:
        """Mark the directory as in use by this process; True if no other process has."""
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._mark is not None:
                self._mark.close()
            self._mark = (self._path / "in-use").open("ab")
            try:
                fcntl.flock(self._mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
                alone = True
            except BlockingIOError:
                alone = False
            fcntl.flock(self._mark, fcntl.LOCK_SH)
        except OSError as error:
            raise TierUnavailable("unreadable", str(error)) from error
        return alone

    def _claim(self) -> None:
        """Keep other processes from opening the directory. Raises TierUnavailable("shared") if one has it
        open."""
        assert self._mark is not None
        try:
            fcntl.flock(self._mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._share()
            raise TierUnavailable("shared", "another process has it open") from error

    def _share(self) -> None:
        assert self._mark is not None
        fcntl.flock(self._mark, fcntl.LOCK_SH)

    def _begin_read(self, opened: Opened) -> Any:
        try:
            return opened.env.begin(buffers=True)
        except lmdb.ReadersFullError:
            opened.env.reader_check()
            return opened.env.begin(buffers=True)

    @contextmanager
    def _using(self) -> Iterator[Opened]:
        opened = self._enter()
        try:
            yield opened
        finally:
            with self._condition:
                self._active -= 1
                self._condition.notify_all()

    def _enter(self) -> Opened:
        while True:
            opened = self.open()
            with self._condition:
                # Between the two lines above it may have been closed, or reopened by a compaction.
                if self._opened is opened:
                    self._active += 1
                    return opened

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except lmdb.MapFullError as error:
            raise TierFull("map_full") from error
        except lmdb.DiskError as error:
            raise TierFull("disk_full", str(error)) from error
        except lmdb.ReadersFullError as error:
            raise TierUnavailable("readers_full") from error
        except _BROKEN_ERRORS as error:
            self._mark_broken(error)
            raise TierUnavailable("broken", str(error)) from error
        except (lmdb.Error, OSError, MemoryError) as error:
            # LMDB reports a write that was cut short by a full disk as an input/output error.
            if self._free_bytes() < _SHORT_OF_SPACE:
                raise TierFull("disk_full", str(error)) from error
            raise TierUnavailable("failed", str(error)) from error

    def _free_bytes(self) -> int:
        try:
            return shutil.disk_usage(self._path).free
        except OSError:
            return 0

    def _mark_broken(self, error: lmdb.Error) -> None:
        """A damaged tree is dangerous to walk and to close over other readers: use it no more, have the next
        start put it aside."""
        _log.error("store broken: %s: %s", type(error).__name__, error)
        self.problems = (f"{self._path.name} is damaged ({type(error).__name__}); a restart puts it aside",)
        self._closed = True
        try:
            (self._path / BROKEN_MARK).touch()
        except OSError as failure:
            _log.error("store cannot be marked as broken: %s", failure)


def _after_fork() -> None:
    for environment in list(_environments):
        environment.after_fork()


_environments = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork)
