"""Write-behind: work on records that no request waits for."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Job(Generic[S]):
    """`nbytes` of memory are held until `run` has run. `slot`: what the job will have written, so that it can
    be read until then. A job that answers for its own failures; what it raises all the same is logged."""

    digest: bytes
    nbytes: int
    run: Callable[[], None]
    slot: S | None = None


class WriteBehind(Generic[S]):
    """A queue bounded by bytes and one thread. Offering never blocks."""

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._jobs: deque[Job[S]] = deque()
        self._running: Job[S] | None = None
        self._bytes = 0
        self._condition = threading.Condition()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._closed = False

    def offer(self, job: Job[S]) -> bool:
        """Queue it; False if the queue is full or closed. A job alone in the queue is always taken."""
        with self._condition:
            full = self._bytes > 0 and self._bytes + job.nbytes > self._budget
            if self._closed or full:
                return False
            self._jobs.append(job)
            self._bytes += job.nbytes
            self._start()
            self._condition.notify_all()
            return True

    def pending(self, digest: bytes) -> S | None:
        """What is about to be written under `digest`, the newest."""
        with self._condition:
            for job in reversed((self._running, *self._jobs)):
                if job is not None and job.digest == digest and job.slot is not None:
                    return job.slot
            return None

    def all_pending(self) -> list[S]:
        """What is about to be written, oldest first; of one digest the newest."""
        with self._condition:
            jobs = [job for job in (self._running, *self._jobs) if job is not None]
            return list({job.digest: job.slot for job in jobs if job.slot is not None}.values())

    def cancel(self, digest: bytes) -> bool:
        """Drop the jobs of `digest`, having waited for one that runs; True if something to be written was
        dropped."""
        with self._condition:
            mine = [job for job in self._jobs if job.digest == digest]
            for job in mine:
                self._jobs.remove(job)
                self._bytes -= job.nbytes
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._running is None or self._running.digest != digest)
            return any(job.slot is not None for job in mine)

    def flush(self, timeout: float | None) -> bool:
        """Wait until all is written; False if `timeout` seconds did not suffice."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._jobs and self._running is None, timeout)

    @property
    def depth(self) -> tuple[int, int]:
        """Jobs and bytes that wait or are being written."""
        with self._condition:
            return len(self._jobs) + (self._running is not None), self._bytes

    def close(self, timeout: float) -> None:
        """Take no more, write what is queued for at most `timeout` seconds and drop the rest."""
        deadline = time.monotonic() + timeout
        with self._condition:
            self._closed = True
        self.flush(timeout)
        with self._condition:
            if self._jobs:
                _log.warning("%d queued records were not written", len(self._jobs))
            self._jobs.clear()
            self._condition.notify_all()
            thread = self._thread if self._pid == os.getpid() else None
        if thread is not None:
            thread.join(max(1.0, deadline - time.monotonic()))

    def _start(self) -> None:
        if self._thread is None or self._pid != os.getpid():
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._loop, name="store-write-behind", daemon=True)
            self._thread.start()

    def _loop(self) -> None:
        while (job := self._next()) is not None:
            try:
                job.run()
            except Exception:
                _log.exception("write-behind failed")
            finally:
                with self._condition:
                    self._running = None
                    self._bytes -= job.nbytes
                    self._condition.notify_all()
            del job

    def _next(self) -> Job[S] | None:
        with self._condition:
            self._condition.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return None
            self._running = self._jobs.popleft()
            return self._running
