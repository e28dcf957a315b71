"""Admin calls on their way: each waits for the reply of its number."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future
from typing import Any

from engine.errors import EngineStopped
from engine.transport.wire import Reply


class PendingCalls:
    """Thread-safe. Replies to calls that nobody waits for any more are dropped."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()

    def open(self) -> tuple[int, Future[Any]]:
        """The number of a new call, and what its reply will be."""
        future: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = future
        return number, future

    def replied(self, reply: Reply) -> None:
        with self._lock:
            future = self._waiting.pop(reply.number, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if reply.error is None:
            future.set_result(reply.value)
        else:
            future.set_exception(reply.error)

    def fail_all(self, message: str) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineStopped(message))
