"""A worker in a process of its own, supervised: a crash or a stall ends its requests with one error each, and a new
worker takes over. Torch-free on this side."""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from engine.client import CacheAdmin
from engine.errors import EngineStopped, InternalError
from engine.messages import WORKER_DOWN, EngineInfo, EngineStatus, Event, Failed, Finished, GenerateRequest
from engine.tracing import current_traceparent
from engine.transport.admin import AdminProxy
from engine.transport.pictures import SentPictures
from engine.transport.streams import Streams
from engine.transport.wire import (
    Abort,
    Call,
    CannotStart,
    Forget,
    FromWorker,
    Happened,
    Heartbeat,
    Launch,
    Ready,
    Reply,
    Stop,
    Submit,
    ToWorker,
)

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.25
# Heartbeats come every 0.5 s; a worker silent for this long is not counted as ready.
SILENCE_SECONDS = 3.0
LONGEST_BACKOFF_SECONDS = 30.0
# Beyond the drain: the store then writes what is queued, for at most 30 s.
LEAVE_SECONDS = 40.0


class _Child:
    """One worker process and its pipe."""

    def __init__(self, command: Sequence[str], launch: Launch, owner: ProcessClient) -> None:
        ours, theirs = Pipe()
        self._pipe: Connection = ours
        self.process = subprocess.Popen([*command, str(theirs.fileno())], pass_fds=[theirs.fileno()])
        theirs.close()
        self._owner = owner
        self._outbox: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self._pictures = SentPictures(owner.picture_bytes)
        self.heard = time.monotonic()
        self.status: EngineStatus | None = None
        self.started: Future[EngineInfo] = Future()
        self.send(launch)
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._send, self._receive)]
        for thread in self._threads:
            thread.start()

    def send(self, message: ToWorker) -> None:
        """Queue a message; a thread pickles and writes it, so that a large image never blocks the event loop."""
        self._outbox.put(message)

    def ailment(self, stall_after: float) -> str | None:
        """Why this worker must be replaced, None while it is well."""
        if self.process.poll() is not None:
            return f"the worker ended with status {self.process.returncode}"
        if not self.started.done():
            return None  # still loading
        if self.status is None:
            return "the worker never came up" if self.silent > stall_after else None
        if WORKER_DOWN in self.status.reasons:
            return WORKER_DOWN
        busy = self.status.running > 0 or self.status.waiting > 0
        quiet = self.silent + (self.status.progress_seconds if busy else 0.0)
        return "the worker is stalled" if quiet > stall_after else None

    @property
    def silent(self) -> float:
        """Seconds since anything came from it."""
        return time.monotonic() - self.heard

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._outbox.put(None)
        # The pipe ends with the process, and with it both threads; closed under them, its number could be reused.
        for thread in self._threads:
            thread.join()
        self._pipe.close()
        if not self.started.done():
            self.started.set_exception(EngineStopped("the worker ended while it was starting"))

    def _send(self) -> None:
        while (message := self._outbox.get()) is not None:
            try:
                if isinstance(message, Submit):
                    self._submit(message.request)
                else:
                    self._pipe.send(message)
            except OSError:
                return  # the supervisor sees the same end
            except Exception:
                log.exception("a message to the worker could not be sent")
                if isinstance(message, Submit):
                    lost = Failed(message.request.id, InternalError.code, "the request could not be sent")
                    self._owner.streams.hand_over([lost])

    def _submit(self, request: GenerateRequest) -> None:
        self._pipe.send(Submit(self._pictures.packed(request)))
        if surplus := self._pictures.sent(request):
            self._pipe.send(Forget(surplus))

    def _receive(self) -> None:
        while True:
            try:
                message: FromWorker = self._pipe.recv()
            except (EOFError, OSError):
                return
            self.heard = time.monotonic()
            match message:
                case Ready(info):
                    self.started.set_result(info)
                case CannotStart(text):
                    self.started.set_exception(EngineStopped(text))
                case Heartbeat(status):
                    self.status = status
                case Happened(events):
                    self._owner.streams.hand_over(events)
                case Reply():
                    self._owner.replied(message)


class ProcessClient:
    """`EngineClient` over a supervised worker process. `start` blocks until the model is loaded.

    `command` starts a process that calls `engine.transport.child.serve_parent` with its last argument. A worker that
    has work and makes no progress, or sends nothing at all, for `stall_after` seconds is killed and replaced. It keeps
    up to `picture_bytes` of pixels, which then need not be sent again.
    """

    def __init__(
        self, command: Sequence[str], launch: Launch, stall_after: float, picture_bytes: int
    ) -> None:
        self._command = command
        self.picture_bytes = picture_bytes
        self._launch = launch
        self._stall_after = stall_after
        self._info: EngineInfo | None = None
        self._child: _Child | None = None
        self._trouble: str | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._calls: dict[int, Future[Any]] = {}
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self.streams = Streams()
        self._cache = AdminProxy(self._call)

    def start(self) -> None:
        """Raises `EngineStopped` with the worker's own words where it cannot start."""
        self._child = _Child(self._command, self._launch, self)
        try:
            self._info = self._wait_until_loaded(self._child)
        except BaseException:
            self._child.kill()
            raise
        self._supervisor.start()

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "start() comes first"
        return self._info

    @property
    def cache(self) -> CacheAdmin:
        return self._cache

    def status(self) -> EngineStatus:
        child, trouble = self._child, self._trouble
        if child is None or trouble is not None:
            # The supervisor is at work on it, which is progress: liveness must not end this process for it.
            return EngineStatus(False, (trouble or WORKER_DOWN,), 0.0, 0, 0)
        status = child.status
        if status is None:
            return EngineStatus(True, (), 0.0, 0, 0)
        reasons = (
            status.reasons if child.silent < SILENCE_SECONDS else (*status.reasons, "the worker is silent")
        )
        progress = status.progress_seconds + child.silent
        return replace(status, ready=not reasons, reasons=reasons, progress_seconds=progress)

    async def submit(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        events = self.streams.open(request.id)
        ended = False
        try:
            self._post(
                Submit(replace(request, traceparent=request.traceparent or current_traceparent())), request.id
            )
            while not ended:
                event = await events.get()
                ended = isinstance(event, Finished | Failed)
                yield event
        finally:
            self.streams.close(request.id)
            if not ended:
                self._post(Abort(request.id), None)

    async def _call(self, method: str, arguments: tuple[object, ...]) -> Any:
        """An admin call on the worker's store. Raises what it raised there, `EngineStopped` without a worker."""
        future: Future[Any] = Future()
        number = next(self._numbers)
        with self._lock:
            if self._child is None or self._trouble is not None:
                raise EngineStopped(self._trouble or WORKER_DOWN)
            self._calls[number] = future
            self._child.send(Call(number, method, arguments))
        return await asyncio.wrap_future(future)

    def replied(self, reply: Reply) -> None:
        with self._lock:
            future = self._calls.pop(reply.number, None)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if reply.error is None:
            future.set_result(reply.value)
        else:
            future.set_exception(reply.error)

    async def close(self, drain_seconds: float) -> None:
        await asyncio.to_thread(self._close, drain_seconds)

    def _close(self, drain_seconds: float) -> None:
        self._closing.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        child = self._child
        if child is None:
            return
        child.send(Stop(drain_seconds))
        try:
            child.process.wait(drain_seconds + LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("the worker did not leave in time")
        self._lose(child, "the service is stopping")

    def _post(self, message: ToWorker, request: str | None) -> None:
        """Send to the worker, or fail `request` at once where there is none."""
        with self._lock:
            if self._child is not None and self._trouble is None:
                self._child.send(message)
                return
        if request is not None:
            self.streams.hand_over([Failed(request, EngineStopped.code, self._trouble or WORKER_DOWN)])

    def _supervise(self) -> None:
        backoff = 1.0
        while not self._closing.wait(CHECK_SECONDS):
            child = self._child
            ailment = child.ailment(self._stall_after) if child is not None else "there is no worker"
            if ailment is None:
                backoff = 1.0
                continue
            log.error("%s; starting a new one", ailment)
            if child is not None:
                self._lose(child, f"{ailment}; a new one is starting")
            try:
                self._replace()
            except Exception as error:  # no memory for a new process, say: try again later
                log.exception("no new worker could be started")
                self._trouble = f"no new worker could be started: {type(error).__name__}"
            if self._trouble is not None:
                self._closing.wait(backoff)
                backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)

    def _lose(self, child: _Child, trouble: str) -> None:
        """Kill a worker and end everything that waited for it."""
        with self._lock:
            self._trouble = trouble
            self._child = None
            calls, self._calls = self._calls, {}
        child.kill()
        for future in calls.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(EngineStopped(trouble))
        self.streams.fail_all(EngineStopped.code, trouble)

    def _replace(self) -> None:
        child = _Child(self._command, self._launch, self)
        try:
            self._wait_until_loaded(child)
        except EngineStopped as error:
            child.kill()
            self._trouble = f"the worker cannot start: {error.message}"
            log.error("%s", self._trouble)
            return
        with self._lock:
            self._child, self._trouble = child, None

    def _wait_until_loaded(self, child: _Child) -> EngineInfo:
        """A large model takes minutes; a process that ended or a service that closes does not wait for them."""
        while True:
            try:
                return child.started.result(timeout=CHECK_SECONDS)
            except TimeoutError:
                if child.process.poll() is not None:
                    raise EngineStopped(f"it ended with status {child.process.returncode}") from None
                if self._closing.is_set():
                    raise EngineStopped("the service is stopping") from None
