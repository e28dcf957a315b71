"""Event streams of running requests, fed from another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextlib import suppress

from engine.messages import Event, Failed

Events = asyncio.Queue[Event]


class Streams:
    """One queue per request; `hand_over` may be called from any thread. Events of closed streams are dropped."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[asyncio.AbstractEventLoop, Events]] = {}
        self._lock = threading.Lock()

    def open(self, request: str) -> Events:
        """To be called in the event loop that will read the queue."""
        events: Events = asyncio.Queue()
        with self._lock:
            self._open[request] = (asyncio.get_running_loop(), events)
        return events

    def close(self, request: str) -> None:
        with self._lock:
            self._open.pop(request, None)

    def hand_over(self, happened: Sequence[Event]) -> None:
        """Each event to its stream; a loop is woken once for all of them."""
        by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Events, Event]]] = {}
        with self._lock:
            for event in happened:
                if (stream := self._open.get(event.request_id)) is not None:
                    loop, events = stream
                    by_loop.setdefault(loop, []).append((events, event))
        for loop, arrived in by_loop.items():
            # A loop that is closed has nobody left to tell.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(_deliver, arrived)

    def fail_all(self, code: str, message: str) -> None:
        """One terminal event for every open stream."""
        with self._lock:
            requests = list(self._open)
        self.hand_over([Failed(request, code, message) for request in requests])


def _deliver(arrived: Sequence[tuple[Events, Event]]) -> None:
    for events, event in arrived:
        events.put_nowait(event)
