"""Event streams of running requests, fed from another thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from engine.messages import Event, Failed


class Streams:
    """One queue per request; `hand_over` may be called from any thread. Events of closed streams are dropped."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Queue[Event]]] = {}
        self._lock = threading.Lock()

    def open(self, request: str) -> asyncio.Queue[Event]:
        """To be called in the event loop that will read the queue."""
        events: asyncio.Queue[Event] = asyncio.Queue()
        with self._lock:
            self._open[request] = (asyncio.get_running_loop(), events)
        return events

    def close(self, request: str) -> None:
        with self._lock:
            self._open.pop(request, None)

    def hand_over(self, event: Event) -> None:
        with self._lock:
            stream = self._open.get(event.request_id)
        if stream is not None:
            # A loop that is closed has nobody left to tell.
            with suppress(RuntimeError):
                stream[0].call_soon_threadsafe(stream[1].put_nowait, event)

    def fail_all(self, code: str, message: str) -> None:
        """One terminal event for every open stream."""
        with self._lock:
            requests = list(self._open)
        for request in requests:
            self.hand_over(Failed(request, code, message))
