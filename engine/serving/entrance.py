"""The way in: requests are laid out on threads of their own and arrive at the worker's thread as messages."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from engine.errors import EngineError, EngineStopped, InternalError
from engine.messages import GenerateRequest
from engine.serving.outbox import Emit, fail
from engine.serving.prepared import Prepared, prepare
from engine.serving.runtime import Runtime

log = logging.getLogger(__name__)

# Threads that lay prompts out (rendering and tokenising), so that a long text never holds up a running stream.
PREPARING_THREADS = 2


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request that was laid out."""

    prepared: Prepared
    emit: Emit


@dataclass(frozen=True, slots=True)
class Abort:
    request: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Says nothing; whoever waits for messages looks up."""


Message = Arrived | Abort | Wake
# Why a request is not even looked at, given how many are on the way in; None where it may enter.
Refusal = Callable[[str, int], EngineError | None]


class Entrance:
    """Any thread may `enter` and `abort`; one thread reads `messages` and lets each arrived request `leave`."""

    def __init__(self, runtime: Runtime, refusal: Refusal) -> None:
        self._runtime = runtime
        self._refusal = refusal
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._preparing = ThreadPoolExecutor(PREPARING_THREADS, thread_name_prefix="prepare")
        # Guards what `enter` and `close` must agree on: who is on the way, and whether anybody still listens.
        self._door = threading.Lock()
        self._entering: dict[str, Emit] = {}
        self._aborted: set[str] = set()
        self._closed = False

    @property
    def empty(self) -> bool:
        """Nobody is on the way in."""
        return not self._entering

    def enter(self, request: GenerateRequest, emit: Emit) -> None:
        """Lay the request out and announce it, or refuse it with one event."""
        submitted = time.monotonic()
        with self._door:
            refused = self._why_not(request.id) or self._let_in(request, emit, submitted)
        if refused is not None:
            fail(emit, request.id, refused)

    def abort(self, request: str) -> None:
        """Whether a request is unknown, or has left long ago, is for the reader to say."""
        with self._door:
            if request in self._entering:
                self._aborted.add(request)
        self._inbox.put(Abort(request))

    def wake(self) -> None:
        self._inbox.put(Wake())

    def messages(self, wait_seconds: float) -> Iterator[Message]:
        """All that there is; waits for the first one where there is none."""
        try:
            yield self._inbox.get(timeout=wait_seconds) if wait_seconds else self._inbox.get_nowait()
            while True:
                yield self._inbox.get_nowait()
        except queue.Empty:
            return

    def leave(self, request: str) -> bool:
        """The request is no longer on the way in; True if it was aborted meanwhile."""
        with self._door:
            self._entering.pop(request, None)
            aborted = request in self._aborted
            self._aborted.discard(request)
            return aborted

    def close(self) -> None:
        """From here on nobody enters; who was on the way or has not been read gets a terminal event."""
        with self._door:
            self._closed = True
        self._preparing.shutdown(cancel_futures=True)
        while not self._inbox.empty():
            self._inbox.get_nowait()
        with self._door:
            left, self._entering = self._entering, {}
        for request, emit in left.items():
            fail(emit, request, stopping())

    def _let_in(self, request: GenerateRequest, emit: Emit, submitted: float) -> EngineError | None:
        try:
            self._preparing.submit(self._prepare, request, emit, submitted)
        except RuntimeError:  # no memory for another thread
            log.exception("request %s could not be taken up", request.id)
            return InternalError("the request could not be taken up")
        self._entering[request.id] = emit
        return None

    def _why_not(self, request: str) -> EngineError | None:
        if self._closed:
            return stopping()
        if request in self._entering:
            return taken(request)
        return self._refusal(request, len(self._entering))

    def _prepare(self, request: GenerateRequest, emit: Emit, submitted: float) -> None:
        """On a preparing thread: lay out, and hand over or fail. No variable here holds an error: its traceback refers
        to this frame, and with it to the pixels."""
        try:
            prepared = prepare(self._runtime, request, submitted)
        except EngineError as error:
            self._turn_away(request.id, emit, error)
        except Exception:
            log.exception("request %s could not be prepared", request.id)
            self._turn_away(request.id, emit, InternalError("the request could not be prepared"))
        else:
            self._hand_in(Arrived(prepared, emit))

    def _hand_in(self, arrived: Arrived) -> None:
        with self._door:
            if not self._closed:
                self._inbox.put(arrived)
                return
        self._turn_away(arrived.prepared.request.id, arrived.emit, stopping())

    def _turn_away(self, request: str, emit: Emit, error: EngineError) -> None:
        self.leave(request)
        fail(emit, request, error)


def stopping() -> EngineStopped:
    return EngineStopped("the service is stopping")


def taken(request: str) -> InternalError:
    return InternalError(f"there is a request {request} already")
