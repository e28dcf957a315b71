"""A thread that runs work in turn, and a chore in between.

`concurrent.futures.ThreadPoolExecutor(1)` would do half of it. It has no timed wait for the chore; work that asks for
work would wait for itself; after `shutdown` it refuses what must still be done, and before the interpreter ends it
waits for work that hangs in a dead disk; in a forked child it does not come back.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from store.errors import TierUnavailable

T = TypeVar("T")
Work = Callable[[], object]
_log = logging.getLogger(__name__)


class SerialThread:
    """Starts with the first work, again in a forked child. `chore` runs about every `period` seconds from
    then on; what it raises is logged."""

    def __init__(self, name: str, chore: Work, period: float) -> None:
        self._name = name
        self._chore = chore
        self._period = period
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = False

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread (after `close`: here); its result or exception. Raises TierUnavailable if the system
        has no thread to give."""
        if threading.current_thread() is self._thread:
            return work()
        future: Future[T] = Future()

        def settle() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        if not self._submit(settle):
            return work()
        return future.result()

    def post(self, work: Work) -> bool:
        """Have `work` run in its turn and do not wait; what it raises is logged. False after `close`. Raises
        TierUnavailable like `run`."""

        def settle() -> None:
            _logged(work, self._name)

        return self._submit(settle)

    def start(self) -> None:
        """Have the chore done from now on."""
        try:
            self._submit(None)
        except TierUnavailable as error:
            _log.warning("%s: %s", self._name, error)

    def close(self, timeout: float | None = None) -> None:
        """End the thread after the work that is queued, waiting for it at most `timeout` seconds."""
        with self._lock:
            self._closed = True
            thread = self._thread if self._pid == os.getpid() else None
            if thread is not None:
                self._queue.put(None)
        if thread is not None:
            thread.join(timeout)

    def _submit(self, work: Work | None) -> bool:
        """False if there is no thread any more."""
        with self._lock:
            if self._closed:
                return False
            if self._thread is None or self._pid != os.getpid():
                self._begin()
            if work is not None:
                self._queue.put(work)
            return True

    def _begin(self) -> None:
        self._queue = queue.SimpleQueue()
        thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise TierUnavailable("no_thread", str(error)) from error
        self._thread, self._pid = thread, os.getpid()

    def _loop(self) -> None:
        due = time.monotonic() + self._period
        while True:
            try:
                work = self._queue.get(timeout=max(0.0, due - time.monotonic()))
                if work is None:
                    return
                work()
                del work  # and what it refers to, which may be large
            except queue.Empty:
                pass
            if time.monotonic() >= due:
                _logged(self._chore, self._name)
                due = time.monotonic() + self._period


def _logged(work: Work, name: str) -> None:
    try:
        work()
    except Exception:
        _log.exception("%s: work failed", name)
