"""Who is connected: how many may be, who makes room for the next one, and for how long anybody may keep us waiting."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from service.settings import Settings

_OWN_DESCRIPTORS: Final = 64
"""For what is no connection of a client: listeners, logs, the pipes and the start of a new worker."""
_FEWEST: Final = 8


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that a client has: to send the head of a request, and what it owes of a body that nobody reads any
    more (`head`); between two requests (`idle`); to take what was sent (`send`)."""

    head: float
    idle: float
    send: float


class Connection(Protocol):
    """One that may have to go."""

    def make_room(self) -> None:
        """Close at once."""


class Connections:
    """At most `most` at the same time. Where one more comes, the one goes that has kept us waiting longest: first of
    those that have asked nothing, then of those that owe a body. One whose request is worked on never goes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._open: set[Connection] = set()
        self._silent: dict[Connection, None] = {}
        self._owing: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def arrived(self, connection: Connection) -> bool:
        """False if there is no room for it."""
        if len(self._open) >= self.most:
            last = next(iter(self._silent), None) or next(iter(self._owing), None)
            if last is None:
                return False
            self.left(last)
            last.make_room()
        self._open.add(connection)
        self.is_silent(connection)
        return True

    def left(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._forget(connection)

    def is_silent(self, connection: Connection) -> None:
        """It has asked nothing, or nothing more. Asked again it keeps its turn."""
        self._owing.pop(connection, None)
        self._silent.setdefault(connection)

    def owes_a_body(self, connection: Connection) -> None:
        self._silent.pop(connection, None)
        self._owing.setdefault(connection)

    def waits_for_us(self, connection: Connection) -> None:
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        self._silent.pop(connection, None)
        self._owing.pop(connection, None)


class Alarm:
    """Calls once when its time has come, unless it is switched off before."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._handle: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """One that is set already stays as it is."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_later(seconds, self._ring)

    def off(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _ring(self) -> None:
        self._handle = None
        self._call()


def patience(settings: Settings) -> Patience:
    return Patience(settings.head_timeout, settings.idle_timeout, settings.send_timeout)


def most_connections(settings: Settings) -> int:
    """As many as are set, or as there are descriptors for beside our own. Asks the system for more of these where it
    would give them."""
    reserve = _OWN_DESCRIPTORS + 2 * settings.fetch_concurrency
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + reserve
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    room = settings.max_connections if soft == resource.RLIM_INFINITY else soft - reserve
    return max(_FEWEST, min(settings.max_connections, room))
