"""Write-behind: work on records that no request waits for."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from store.errors import TierUnavailable
from store.tiers.serial import SerialThread, Work

S = TypeVar("S")
_log = logging.getLogger(__name__)

_CHORE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Job(Generic[S]):
    """`nbytes` of memory are held until `run` has run. `slot`: what the job will have written, so that it can
    be read until then. A job that answers for its own failures; what it raises all the same is logged."""

    digest: bytes
    nbytes: int
    run: Callable[[], None]
    slot: S | None = None


class WriteBehind(Generic[S]):
    """A queue bounded by bytes and one thread, which also does `chore` about every second. Offering never blocks."""

    def __init__(self, budget: int, chore: Work = lambda: None) -> None:
        self._budget = budget
        self._jobs: deque[Job[S]] = deque()
        self._running: Job[S] | None = None
        self._bytes = 0
        self._condition = threading.Condition()
        self._serial = SerialThread("store-write-behind", chore, _CHORE_SECONDS)
        self._closed = False

    def start(self) -> None:
        """Have the chore done from now on."""
        self._serial.start()

    def offer(self, job: Job[S]) -> bool:
        """Queue it; False if the queue is full or closed, or the system has no thread to give. A job alone in the queue
        is always taken."""
        with self._condition:
            full = self._bytes > 0 and self._bytes + job.nbytes > self._budget
            if self._closed or full or not self._posted():
                return False
            self._jobs.append(job)
            self._bytes += job.nbytes
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
    def crowded(self) -> bool:
        """Whether half of what may wait does."""
        return 2 * self._bytes > self._budget

    @property
    def depth(self) -> tuple[int, int]:
        """Jobs and bytes that wait or are being written."""
        with self._condition:
            return len(self._jobs) + (self._running is not None), self._bytes

    def close(self, timeout: float) -> None:
        """Take no more, write what is queued for at most `timeout` seconds and drop the rest."""
        with self._condition:
            self._closed = True
        ended = self.flush(timeout)
        with self._condition:
            if self._jobs:
                _log.warning("%d queued records were not written", len(self._jobs))
            self._jobs.clear()
            self._condition.notify_all()
        # Who has not come to an end by now is left behind.
        self._serial.close(None if ended else 1.0)

    def _posted(self) -> bool:
        try:
            return self._serial.post(self._run_next)
        except TierUnavailable as error:
            _log.error("nothing can be written: %s", error)
            return False

    def _run_next(self) -> None:
        """One job; none where it was cancelled, as each job offered has a turn."""
        with self._condition:
            if not self._jobs:
                return
            job = self._running = self._jobs.popleft()
        try:
            job.run()
        finally:
            with self._condition:
                self._running = None
                self._bytes -= job.nbytes
                self._condition.notify_all()
