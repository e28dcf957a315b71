"""How long a thread waits for a server. Every byte counts: a time-out of a socket alone bounds each wait, and a server
that sends a byte now and then is waited for without end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from redis.connection import Connection, ConnectionPool

T = TypeVar("T")


class Patience(threading.local):
    """Seconds that this thread will still wait. Waiting takes from it, and bytes that come or go give back what they
    would take at `rate` bytes a second, up to `seconds`: who is faster than that is waited for as long as it takes."""

    def __init__(self, seconds: float, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._rate = rate
        self._clock = clock
        self.left = seconds

    def renew(self) -> None:
        self.left = self._seconds

    def wait(self, work: Callable[[float], T], moved: Callable[[T], int] = lambda _: 0, ahead: int = 0) -> T:
        """`work` with the seconds it may take. `moved` is how many bytes it moved, `ahead` how many it is going to.
        Raises TimeoutError when there is no patience left."""
        left = self.left + ahead / self._rate
        if left <= 0:
            raise TimeoutError("no patience left")
        started = self._clock()
        self.left = left
        try:
            result = work(left)
            self.left += moved(result) / self._rate
            return result
        finally:
            self.left = min(self._seconds, self.left - (self._clock() - started))


class PatientSocket:
    """A connected socket whose waits are charged to the patience of the calling thread."""

    def __init__(self, sock: Any, patience: Patience) -> None:
        self._sock = sock
        self._patience = patience
        self._waits = True

    def settimeout(self, seconds: float | None) -> None:
        """0: do not wait at all. Any other time-out is ours."""
        self._waits = seconds != 0
        self._sock.settimeout(seconds)

    def recv(self, size: int) -> bytes:
        data: bytes = self._charged(lambda: self._sock.recv(size), len)
        return data

    def recv_into(self, buffer: Any, *arguments: int) -> int:
        count: int = self._charged(lambda: self._sock.recv_into(buffer, *arguments), lambda count: count)
        return count

    def sendall(self, data: Any) -> None:
        self._charged(lambda: self._sock.sendall(data), lambda _: 0, len(data))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def _charged(self, call: Callable[[], T], moved: Callable[[T], int], ahead: int = 0) -> T:
        if not self._waits:
            return call()

        def work(seconds: float) -> T:
            self._sock.settimeout(seconds)
            return call()

        return self._patience.wait(work, moved, ahead)


def pool_class(patience: Patience) -> type[ConnectionPool]:
    """A pool of connections, plain or TLS, that wait with `patience`."""

    class PatientPool(ConnectionPool):
        def __init__(self, connection_class: Any = Connection, **options: Any) -> None:
            super().__init__(connection_class=_patient(connection_class, patience), **options)

    return PatientPool


def _patient(kind: Any, patience: Patience) -> Any:
    class PatientConnection(kind):  # type: ignore[misc]
        def _connect(self) -> PatientSocket:
            connect = super()._connect
            return PatientSocket(patience.wait(lambda seconds: _within(seconds, connect)), patience)

    return PatientConnection


def _within(seconds: float, connect: Callable[[], Any]) -> Any:
    """A connected socket. Names are looked up by the C library, which heeds no time-out, so this happens in a thread
    that is left alone when it takes too long."""
    future: Future[Any] = Future()

    def run() -> None:
        sock: Any = None
        failure: Exception | None = None
        try:
            sock = connect()
        except Exception as error:
            failure = error
        if not future.set_running_or_notify_cancel():
            if sock is not None:
                sock.close()
        elif failure is not None:
            future.set_exception(failure)
        else:
            future.set_result(sock)

    threading.Thread(target=run, name="store-redis-connect", daemon=True).start()
    try:
        return future.result(seconds)
    except TimeoutError:
        if future.cancel():
            raise
        return future.result()
