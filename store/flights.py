"""One load or compile per key at a time; the rest wait for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

R = TypeVar("R")


class Flight(Generic[R]):
    """A load under way. Followers `wait`; None means that it failed and somebody else must try."""

    def __init__(self, digest: bytes) -> None:
        self.digest = digest
        self.forgotten = False
        self._ended = threading.Event()
        self._result: R | None = None

    def land(self, result: R) -> None:
        self._result = result

    def end(self) -> None:
        self._ended.set()

    def wait(self) -> R | None:
        self._ended.wait()
        return self._result


class Flights(Generic[R]):
    def __init__(self) -> None:
        self._flights: dict[bytes, Flight[R]] = {}
        self._lock = threading.Lock()
        self.joined = 0

    def join(self, digest: bytes) -> tuple[Flight[R], bool]:
        """The flight for `digest`, and whether the caller leads it and must `leave` it, whatever happens."""
        with self._lock:
            flight = self._flights.get(digest)
            if flight is not None:
                self.joined += 1
                return flight, False
            flight = self._flights[digest] = Flight(digest)
            return flight, True

    def leave(self, flight: Flight[R]) -> None:
        with self._lock:
            self._flights.pop(flight.digest, None)
        flight.end()

    def keep_unless_forgotten(self, flight: Flight[R], keep: Callable[[], None]) -> None:
        """Run `keep` (quick) unless the entry was deleted since the flight began."""
        with self._lock:
            if not flight.forgotten:
                keep()

    def forget_all(self) -> None:
        with self._lock:
            for flight in self._flights.values():
                flight.forgotten = True

    def forget(self, digest: bytes) -> None:
        """What is being loaded or compiled now must not be kept."""
        with self._lock:
            flight = self._flights.get(digest)
            if flight is not None:
                flight.forgotten = True
