"""The imperative shell: a thread that turns messages into scheduler events and instructions into work and events."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.decode import decode_step
from engine.errors import (
    Aborted,
    DeadlineExceeded,
    EngineError,
    EngineStopped,
    InternalError,
    KvTooLarge,
    QueueFull,
)
from engine.generation import Generation, Prepared, prepare
from engine.messages import Accepted, EngineStatus, Event, Failed, GenerateRequest
from engine.runtime import Runtime
from engine.scheduler import Arrival, DecodeRound, PrefillPiece, Scheduler
from engine.settings import Limits
from engine.shadow import Shadow

log = logging.getLogger(__name__)

Emit = Callable[[Event], None]
IDLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class _Submit:
    request: GenerateRequest
    emit: Emit
    at: float


@dataclass(frozen=True, slots=True)
class _Abort:
    request: str


@dataclass(frozen=True, slots=True)
class _Stop:
    drain_seconds: float


@dataclass(slots=True)
class _Live:
    """A request between `Accepted` and its terminal event."""

    prepared: Prepared
    emit: Emit
    generation: Generation | None = None
    pieces: Iterator[None] | None = None


class Worker:
    """Runs requests on one thread. `submit` and `abort` may be called from any thread; events come on the worker's."""

    def __init__(self, runtime: Runtime, limits: Limits | None = None, shadow_share: float = 0.0) -> None:
        self.runtime = runtime
        self._scheduler = Scheduler(limits or Limits())
        self._shadow = Shadow(runtime, shadow_share)
        self._inbox: queue.SimpleQueue[_Submit | _Abort | _Stop] = queue.SimpleQueue()
        self._live: dict[str, _Live] = {}
        self._stop_at: float | None = None
        self._progress = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="conduit-worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: GenerateRequest, emit: Emit) -> None:
        self._inbox.put(_Submit(request, emit, time.monotonic()))

    def abort(self, request: str) -> None:
        """End a request early; unknown or finished ones are ignored."""
        self._inbox.put(_Abort(request))

    def stop(self, drain_seconds: float) -> None:
        """Refuse new requests, let the others run for `drain_seconds`, end what is left; returns when that is done."""
        self._inbox.put(_Stop(drain_seconds))
        self._thread.join()

    def status(self) -> EngineStatus:
        reasons = []
        if not self._thread.is_alive():
            reasons.append("the worker is not running")
        if self._stop_at is not None:
            reasons.append("the worker is draining")
        if self.runtime.refused is not None:
            reasons.append(f"reuse is refused: {self.runtime.refused}")
        return EngineStatus(
            not reasons,
            tuple(reasons),
            time.monotonic() - self._progress,
            self._scheduler.waiting,
            self._scheduler.running,
            self._shadow.stats,
        )

    def _run(self) -> None:
        while True:
            self._read_inbox()
            if self._stop_at is not None and (not self._live or time.monotonic() >= self._stop_at):
                break
            self._do_next()
            self._progress = time.monotonic()
        for request in list(self._live):
            self._end(request, EngineStopped("the service is stopping"))
        self._refuse_leftovers()

    def _read_inbox(self) -> None:
        """Take all messages; wait for one when there is nothing to do."""
        idle = not self._live and self._shadow.idle and self._stop_at is None
        try:
            message = self._inbox.get(timeout=IDLE_SECONDS) if idle else self._inbox.get_nowait()
            while True:
                self._handle(message)
                message = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _handle(self, message: _Submit | _Abort | _Stop) -> None:
        match message:
            case _Submit():
                self._accept(message)
            case _Abort(request):
                self._end(request, Aborted("the client went away"))
            case _Stop(drain_seconds):
                self._stop_at = time.monotonic() + drain_seconds

    def _accept(self, message: _Submit) -> None:
        request, emit = message.request, message.emit
        try:
            if self._stop_at is not None:
                raise EngineStopped("the service is stopping")
            prepared = prepare(self.runtime, request, message.at)
            self._queue(prepared)
        except EngineError as error:
            emit(Failed(request.id, error.code, error.message))
        except Exception:
            log.exception("request %s could not be prepared", request.id)
            emit(Failed(request.id, InternalError.code, "the request could not be prepared"))
        else:
            self._live[request.id] = _Live(prepared, emit)
            emit(Accepted(request.id, prepared.layout.length, prepared.layout.visual_tokens))

    def _queue(self, prepared: Prepared) -> None:
        request = prepared.request
        limit = request.timeout_seconds
        deadline = None if limit is None else prepared.submitted + limit
        size = prepared.slots * self.runtime.pool.slot_bytes
        arrival = Arrival(request.id, request.tenant, size, request.priority, deadline)
        if not self._scheduler.fits(arrival):
            raise KvTooLarge(
                f"{prepared.slots} tokens take {size} bytes of KV, more than this worker may hold"
            )
        if not self._scheduler.arrive(arrival):
            raise QueueFull(f"{self._scheduler.waiting} requests are waiting already")

    def _do_next(self) -> None:
        for request in self._scheduler.overdue(time.monotonic()):
            self._end(request, DeadlineExceeded("the request ran into its time limit"))
        match self._scheduler.next():
            case PrefillPiece(request):
                self._guard((request,), lambda: self._prefill_piece(request, self._live[request]))
            case DecodeRound(requests):
                self._guard(requests, lambda: self._decode(requests))
            case None if not self._shadow.idle and self._stop_at is None:
                self._shadow.step()
            case None:
                pass

    def _guard(self, requests: tuple[str, ...], step: Callable[[], None]) -> None:
        """A failure ends the requests it struck, the others go on."""
        try:
            step()
        except EngineError as error:
            for request in requests:
                self._end(request, error)
        except Exception:
            log.exception("requests %s failed", ", ".join(requests))
            for request in requests:
                self._end(request, InternalError("the request failed inside the engine"))

    def _prefill_piece(self, request: str, live: _Live) -> None:
        if live.pieces is None:
            live.generation = Generation(self.runtime, live.prepared, live.emit)
            live.pieces = live.generation.prefill()
        try:
            next(live.pieces)
        except StopIteration:
            self._scheduler.prefilled(request)
            self._finish_if_done(request, live)

    def _decode(self, requests: tuple[str, ...]) -> None:
        """One batched step; each request then takes its own logits, and a failure there is its own."""
        running = [generation for request in requests if (generation := self._live[request].generation)]
        decoders = [generation.decoder for generation in running if generation.decoder is not None]
        logits = decode_step(
            self.runtime.family, decoders, [g.token for g in running], [g.work for g in running]
        )
        for request, generation, row in zip(requests, running, logits, strict=True):
            self._guard((request,), lambda g=generation, r=row: g.take(r))  # type: ignore[misc]
            if request in self._live:
                self._finish_if_done(request, self._live[request])

    def _finish_if_done(self, request: str, live: _Live) -> None:
        if live.generation is not None and live.generation.finished is not None:
            finished = live.generation.finished
            if live.generation.first_logits is not None:
                self._shadow.offer(live.prepared, live.generation.first_logits)
            self._forget(request)
            live.emit(finished)

    def _end(self, request: str, error: EngineError) -> None:
        live = self._live.get(request)
        if live is not None:
            self._forget(request)
            live.emit(Failed(request, error.code, error.message))

    def _forget(self, request: str) -> None:
        """Memory and slot come back before the terminal event goes out."""
        live = self._live.pop(request)
        self._scheduler.end(request)
        if live.generation is not None:
            live.generation.close()

    def _refuse_leftovers(self) -> None:
        """Submissions that arrived while the thread was ending still get their terminal event."""
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            if isinstance(message, _Submit):
                message.emit(Failed(message.request.id, EngineStopped.code, "the service is stopping"))
