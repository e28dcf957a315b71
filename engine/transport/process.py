"""A worker in a process of its own, supervised: a crash or a stall ends its requests with one error each, and a new
worker takes over. Torch-free on this side."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from typing import Any

from engine.client import CacheAdmin, Tokens
from engine.errors import EngineStopped
from engine.messages import (
    WORKER_DOWN,
    EngineInfo,
    EngineStatus,
    Event,
    Failed,
    Finished,
    GenerateRequest,
)
from engine.tracing import current_traceparent
from engine.transport.admin import AdminProxy
from engine.transport.calls import PendingCalls
from engine.transport.spare import SpareDescriptors
from engine.transport.streams import Streams
from engine.transport.tokens import TokensProxy
from engine.transport.wire import Abort, Call, Launch, Stop, Submit, ToWorker
from engine.transport.worker_process import DESCRIPTORS_TO_START, WorkerProcess

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.25
# Heartbeats come every 0.5 s; a worker silent for this long is not counted as ready.
SILENCE_SECONDS = 3.0
LONGEST_BACKOFF_SECONDS = 30.0
# Beyond the drain: the store then writes what is queued, for at most 30 s.
LEAVE_SECONDS = 40.0


class ProcessClient:
    """`EngineClient` over a supervised worker process. `start` blocks until the model is loaded.

    `command` starts a process that calls `engine.transport.child.serve_parent` with its last argument. A worker that
    has work and makes no progress, or sends nothing at all, for `stall_after` seconds is killed and replaced, and so
    is one that has not loaded its model within `load_timeout` seconds. It keeps up to `picture_bytes` of pixels, which
    then need not be sent again.
    """

    def __init__(
        self,
        command: Sequence[str],
        launch: Launch,
        stall_after: float,
        load_timeout: float,
        picture_bytes: int,
    ) -> None:
        self._command = command
        self._picture_bytes = picture_bytes
        self._launch = launch
        self._stall_after = stall_after
        self._load_timeout = load_timeout
        self._info: EngineInfo | None = None
        self._worker: WorkerProcess | None = None
        self._trouble: str | None = None
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._calls = PendingCalls()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._spare = SpareDescriptors(DESCRIPTORS_TO_START)
        self._streams = Streams()
        self._cache = AdminProxy(self._call)
        self._tokens = TokensProxy(self._call)

    def start(self) -> None:
        """Raises `EngineStopped` with the worker's own words where it cannot start."""
        self._worker, self._info = self._start_worker()
        self._supervisor.start()

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "start() comes first"
        return self._info

    @property
    def cache(self) -> CacheAdmin:
        return self._cache

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    def status(self) -> EngineStatus:
        worker, trouble = self._worker, self._trouble
        if worker is None or trouble is not None:
            # The supervisor is at work on it, which is progress: liveness must not end this process for it.
            return EngineStatus(False, (trouble or WORKER_DOWN,), 0.0, 0, 0)
        status = worker.status or EngineStatus(True, (), 0.0, 0, 0)
        reasons = (
            status.reasons if worker.silent < SILENCE_SECONDS else (*status.reasons, "the worker is silent")
        )
        progress = status.progress_seconds + worker.silent
        return replace(status, ready=not reasons, reasons=reasons, progress_seconds=progress)

    async def submit(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        name = request.id
        events = self._streams.open(name)
        ended = False
        try:
            traced = replace(request, traceparent=request.traceparent or current_traceparent())
            self._post(Submit(traced), name)
            del request, traced  # with their pixels: a stream may last for minutes
            while not ended:
                event = await events.get()
                ended = isinstance(event, Finished | Failed)
                yield event
        finally:
            self._streams.close(name)
            if not ended:
                self._post(Abort(name), None)

    async def _call(self, method: str, arguments: tuple[object, ...]) -> Any:
        """An admin call on the worker's store. Raises what it raised there, `EngineStopped` without a worker."""
        with self._lock:
            if self._worker is None or self._trouble is not None:
                raise EngineStopped(self._trouble or WORKER_DOWN)
            number, future = self._calls.open()
            self._worker.send(Call(number, method, arguments))
        return await asyncio.wrap_future(future)

    async def close(self, drain_seconds: float) -> None:
        await asyncio.to_thread(self._close, drain_seconds)

    def _close(self, drain_seconds: float) -> None:
        self._closing.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        worker = self._worker
        self._spare.close()
        if worker is None:
            return
        worker.send(Stop(drain_seconds))
        try:
            worker.process.wait(drain_seconds + LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            log.warning("the worker did not leave in time")
        self._lose(worker, "the service is stopping")

    def _post(self, message: ToWorker, request: str | None) -> None:
        """Send to the worker, or fail `request` at once where there is none."""
        with self._lock:
            if self._worker is not None and self._trouble is None:
                self._worker.send(message)
                return
        if request is not None:
            self._streams.hand_over([Failed(request, EngineStopped.code, self._trouble or WORKER_DOWN)])

    def _supervise(self) -> None:
        backoff = 1.0
        while not self._closing.wait(CHECK_SECONDS):
            try:
                well = self._see_to_it()
            except Exception:  # whatever it is, somebody must go on looking
                log.exception("the worker could not be seen to")
                well = False
            if well:
                backoff = 1.0
            else:
                self._closing.wait(backoff)
                backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)

    def _see_to_it(self) -> bool:
        """Replace a worker that is not well; False where that has to be tried again."""
        worker = self._worker
        ailment = worker.ailment(self._stall_after) if worker is not None else "there is no worker"
        if ailment is None:
            return True
        log.error("%s; starting a new one", ailment)
        if worker is not None:
            self._lose(worker, f"{ailment}; a new one is starting")
        self._replace()
        return self._trouble is None

    def _lose(self, worker: WorkerProcess, trouble: str) -> None:
        """Kill a worker and end everything that waited for it."""
        with self._lock:
            self._trouble = trouble
            self._worker = None
        worker.kill()
        self._calls.fail_all(trouble)
        self._streams.fail_all(EngineStopped.code, trouble)

    def _replace(self) -> None:
        try:
            worker, _ = self._start_worker()
        except EngineStopped as error:
            self._trouble = f"the worker cannot start: {error.message}"
            log.error("%s", self._trouble)
            return
        with self._lock:
            self._worker, self._trouble = worker, None

    def _start_worker(self) -> tuple[WorkerProcess, EngineInfo]:
        """A worker with its model loaded. Raises `EngineStopped` where there is none to be had now."""
        worker = self._new_process()
        try:
            return worker, self._wait_until_loaded(worker)
        except BaseException:
            worker.kill()
            raise

    def _new_process(self) -> WorkerProcess:
        tell, replied = self._streams.hand_over, self._calls.replied
        try:
            with self._spare.lent():
                return WorkerProcess(self._command, self._launch, self._picture_bytes, tell, replied)
        except Exception as error:  # no memory for a process, say
            log.exception("no worker process could be started")
            raise EngineStopped(f"no process could be started for it ({type(error).__name__})") from error

    def _wait_until_loaded(self, worker: WorkerProcess) -> EngineInfo:
        """A large model takes minutes; a process that ended or a service that closes does not wait for them."""
        deadline = time.monotonic() + self._load_timeout
        while True:
            try:
                return worker.started.result(timeout=CHECK_SECONDS)
            except TimeoutError:
                if worker.process.poll() is not None:
                    raise EngineStopped(f"it ended with status {worker.process.returncode}") from None
                if self._closing.is_set():
                    raise EngineStopped("the service is stopping") from None
                if time.monotonic() >= deadline:
                    limit = f"{self._load_timeout:g} s (CONDUIT_LOAD_TIMEOUT)"
                    raise EngineStopped(f"it has not loaded its model within {limit}") from None
