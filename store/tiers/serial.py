"""A thread that runs work in turn, and a chore in between."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
_log = logging.getLogger(__name__)


class SerialThread:
    """Starts with the first work, again in a forked child. `chore` runs about every `period` seconds from
    then on; what it raises is logged."""

    def __init__(self, name: str, chore: Callable[[], None], period: float) -> None:
        self._name = name
        self._chore = chore
        self._period = period
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = False

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` on the thread (after `close`: here); its result or exception."""
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

    def start(self) -> None:
        """Have the chore done from now on."""
        self._submit(None)

    def close(self) -> None:
        """End the thread after the work that is queued."""
        with self._lock:
            self._closed = True
            thread = self._thread if self._pid == os.getpid() else None
            if thread is not None:
                self._queue.put(None)
        if thread is not None:
            thread.join()

    def _submit(self, work: Callable[[], None] | None) -> bool:
        """False if there is no thread any more."""
        with self._lock:
            if self._closed:
                return False
            if self._thread is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._queue = queue.SimpleQueue()
                self._thread = threading.Thread(target=self._loop, name=self._name, daemon=True)
                self._thread.start()
            if work is not None:
                self._queue.put(work)
            return True

    def _loop(self) -> None:
        due = time.monotonic() + self._period
        while True:
            try:
                work = self._queue.get(timeout=max(0.0, due - time.monotonic()))
                if work is None:
                    return
                work()
            except queue.Empty:
                pass
            if time.monotonic() >= due:
                self._attempt_chore()
                due = time.monotonic() + self._period

    def _attempt_chore(self) -> None:
        try:
            self._chore()
        except Exception:
            _log.exception("chore of %s failed", self._name)
