"""One LMDB environment, opened late, safe to close and to fork around, with errors in the store's terms."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb

from store.errors import TierError, TierUnavailable
from store.tiers.lmdb.file import BROKEN_MARK, COMPACT, DATA, discard, discard_aside, identity
from store.tiers.lmdb.native import FOREIGN_ERRORS, Opened, translated
from store.tiers.lmdb.opener import Opener, free_bytes

_log = logging.getLogger(__name__)

_RETRY_SECONDS = 10.0
_environments: weakref.WeakSet[Environment]


class Environment:
    """`read` and `write` give transactions; the first use opens, in the process that uses it. What is found damaged is
    put aside, what was taken away is begun anew.

    `map_size` is set once: growing a map needs that nobody uses it, in any process.
    """

    def __init__(self, path: Path, databases: Sequence[str], map_size: int) -> None:
        self._path = path.absolute()
        self._opener = Opener(self._path, databases, map_size)
        self._condition = threading.Condition()
        self._opened: Opened | None = None
        self._spoilt = False
        self._exchanging = False
        self._active = 0
        self._refusal: tuple[float, TierUnavailable] | None = None
        self._closed = False
        self._trouble = ""
        self.opened_by: int | None = None
        _environments.add(self)

    @property
    def problems(self) -> tuple[str, ...]:
        """What happened to the directory, and what is wrong with it now."""
        trouble = (self._trouble,) if self._trouble else ()
        return tuple(f"{self._path.name} {what}" for what in (*self._opener.notes, *trouble))

    def open(self) -> Opened:
        """Raises TierUnavailable; tries again only after a while, as each try costs a child process."""
        with self._condition:
            self._condition.wait_for(lambda: not self._exchanging)
            while not self._closed and self._opened is not None and self._stale(self._opened):
                self._let_go(self._opened)
            if self._closed:
                raise TierUnavailable("closed")
            if self._opened is None:
                self._opened = self._attempt()
            return self._opened

    @contextmanager
    def read(self) -> Iterator[tuple[Any, Opened]]:
        """A read transaction whose values are views, valid inside it only."""
        with self._using() as opened, _begin_read(opened.env) as transaction:
            yield transaction, opened

    @contextmanager
    def write(self) -> Iterator[tuple[Any, Opened]]:
        with self._using() as opened, opened.env.begin(write=True) as transaction:
            yield transaction, opened

    def last_transaction(self) -> int:
        """Number of the newest commit by any process."""
        with self._using() as opened:
            return int(opened.env.info()["last_txnid"])

    def check_readers(self) -> int:
        """Free the slots of readers that died; without it their snapshots pin pages for ever."""
        with self._using() as opened:
            return int(opened.env.reader_check())

    def sync(self) -> None:
        with self._using() as opened:
            opened.env.sync(True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """No other process has the environment open, or opens it, until the block ends. Raises
        TierUnavailable("shared") if one has."""
        self.open()
        with self._opener.alone():
            yield

    def compact(self) -> int:
        """Put a compacted copy in the place of the file; bytes given back. No writer may be at work. Raises
        TierUnavailable("shared") if another process has it open, TierFull if there is no room for the
        copy."""
        before = self.physical_bytes()
        copy = self._path / COMPACT
        with self.alone():
            try:
                with self._using() as opened:
                    discard(copy)
                    copy.mkdir(mode=0o700)
                    opened.env.copy(os.fsencode(copy), compact=True)
                self._exchange(opened, copy / DATA)
            finally:
                shutil.rmtree(copy, ignore_errors=True)
        self.open()
        return max(0, before - self.physical_bytes())

    def physical_bytes(self) -> int:
        """What the data file occupies on disk."""
        try:
            return (self._path / DATA).stat().st_blocks * 512
        except OSError:
            return 0

    def discard_aside(self) -> bool:
        """Give up what was put aside, for the room that it takes; False if there was nothing."""
        return discard_aside(self._path)

    def close(self) -> None:
        """Waits for transactions that run."""
        with self._condition:
            self._closed = True
            self._condition.wait_for(lambda: self._active == 0)
            if self._opened is not None:
                self._opened.env.close()
            self._opened = None
            self._opener.close()

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
            self._trouble = "was in use at a fork"
        elif self._opened is not None:
            self._opened.env.close()
            self._opened = None
        self._opener.after_fork()

    def _attempt(self) -> Opened:
        if self._refusal is not None:
            when, refusal = self._refusal
            if time.monotonic() < when + _RETRY_SECONDS:
                raise TierUnavailable(refusal.reason, refusal.detail)
        try:
            opened = self._opener.open()
        except TierUnavailable as error:
            self._refuse(error, f"cannot be opened: {error}")
            raise
        self._refusal, self._trouble, self._spoilt = None, "", False
        self.opened_by = os.getpid()
        return opened

    def _refuse(self, error: TierUnavailable, trouble: str) -> None:
        self._refusal, self._trouble = (time.monotonic(), error), trouble

    def _stale(self, opened: Opened) -> bool:
        """Whether what is open must be let go: it is damaged, or not what lies in the directory."""
        if self._spoilt:
            return True
        try:
            there: tuple[int, int] | None = identity(self._path)
        except (FileNotFoundError, NotADirectoryError):
            there = None
        except OSError as error:
            self._trouble = f"cannot be looked at: {error.strerror}"
            return False  # what is open goes on working
        if there == opened.identity:
            self._trouble = ""
            return False
        self._opener.event = "was removed or replaced while in use; what lies there now is used"
        _log.error("%s %s", self._path, self._opener.event)
        return True

    def _let_go(self, opened: Opened) -> None:
        """Close it when nobody is inside any more; another thread may have done so by then."""
        self._spoilt = True
        self._condition.wait_for(lambda: self._active == 0 or self._opened is not opened)
        if self._opened is opened:
            opened.env.close()
            self._opened = None

    def _exchange(self, opened: Opened, copy: Path) -> None:
        """Have `copy` in the place of the file; who comes meanwhile waits and opens it."""
        with self._condition:
            self._exchanging = True
            try:
                self._let_go(opened)
                copy.replace(self._path / DATA)
            except OSError as error:
                raise TierUnavailable("failed", str(error)) from error
            finally:
                self._exchanging = False
                self._condition.notify_all()

    @contextmanager
    def _using(self) -> Iterator[Opened]:
        with self._condition:
            opened = self.open()
            self._active += 1
        try:
            yield opened
        except FOREIGN_ERRORS as error:
            raise self._met(error) from error
        finally:
            with self._condition:
                self._active -= 1
                self._condition.notify_all()

    def _met(self, error: BaseException) -> TierError:
        failure = translated(error, free_bytes(self._path))
        if failure.reason == "broken":
            self._mark_broken(error)
        elif isinstance(error, lmdb.MapResizedError):
            # By a process with a larger budget, or by damage: opening again tells.
            self._spoilt = True
        return failure

    def _mark_broken(self, error: BaseException) -> None:
        """A damaged tree is dangerous to walk: use it no more, have the next opening put it aside."""
        _log.error("store broken: %s: %s", type(error).__name__, error)
        with self._condition:
            self._spoilt = True
            refusal = TierUnavailable("broken", str(error))
            self._refuse(refusal, f"is damaged ({type(error).__name__}) and will be put aside")
        try:
            (self._path / BROKEN_MARK).touch()
        except OSError as failure:
            _log.error("store cannot be marked as broken: %s", failure)


def _begin_read(env: Any) -> Any:
    try:
        return env.begin(buffers=True)
    except lmdb.ReadersFullError:
        env.reader_check()
        return env.begin(buffers=True)


def _after_fork() -> None:
    for environment in list(_environments):
        environment.after_fork()


_environments = weakref.WeakSet()
os.register_at_fork(after_in_child=_after_fork)
