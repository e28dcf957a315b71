"""The imperative shell: a thread that turns messages into scheduler events and instructions into work and events."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch

from engine.errors import (
    Aborted,
    DeadlineExceeded,
    EngineError,
    EngineStopped,
    InternalError,
    KvTooLarge,
    QueueFull,
)
from engine.messages import WORKER_DOWN, Accepted, EngineStatus, Event, Failed, GenerateRequest
from engine.passes.decode import decode_step
from engine.serving.generation import Generation, Prepared, prepare
from engine.serving.runtime import Runtime
from engine.serving.scheduler import Arrival, DecodeRound, PrefillPiece, Scheduler
from engine.serving.shadow import Shadow
from engine.settings import Limits

log = logging.getLogger(__name__)

Emit = Callable[[Sequence[Event]], None]
IDLE_SECONDS = 0.5
# Threads that lay prompts out (rendering and tokenising), so that a long text never holds up a running stream.
PREPARING_THREADS = 2


@dataclass(frozen=True, slots=True)
class _Prepared:
    prepared: Prepared
    emit: Emit


@dataclass(frozen=True, slots=True)
class _Abort:
    request: str


@dataclass(frozen=True, slots=True)
class _Stop:
    """Wakes the thread; when to stop is in `Worker._stop_at`."""


@dataclass(slots=True)
class _Live:
    """A request between `Accepted` and its terminal event. `shadowed`: it is to be checked by full prefill later."""

    prepared: Prepared
    emit: Emit
    generation: Generation | None = None
    pieces: Iterator[None] | None = None
    shadowed: bool = False


class Worker:
    """Runs requests on one thread. `submit` and `abort` may be called from any thread; events come on others, those of
    one step together: whoever carries them is woken once a step and not once a request."""

    def __init__(self, runtime: Runtime, limits: Limits | None = None, shadow_share: float = 0.0) -> None:
        self.runtime = runtime
        self._limits = limits or Limits()
        self._scheduler = Scheduler(self._limits)
        self._shadow = Shadow(runtime, shadow_share)
        self._inbox: queue.SimpleQueue[_Prepared | _Abort | _Stop] = queue.SimpleQueue()
        self._live: dict[str, _Live] = {}
        self._happened: dict[Emit, list[Event]] = {}
        self._preparing = ThreadPoolExecutor(PREPARING_THREADS, thread_name_prefix="prepare")
        # Guards what `submit` and the thread's end must agree on: who is on the way, and whether anybody still listens.
        self._door = threading.Lock()
        self._entering: dict[str, Emit] = {}
        self._aborted: set[str] = set()
        self._closed = False
        self._stop_at: float | None = None
        self._progress = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="conduit-worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: GenerateRequest, emit: Emit) -> None:
        """Events of the request go to `emit`, from other threads; exactly one of them is terminal. Requests with the
        same `emit` have their events of one step handed over together."""
        submitted = time.monotonic()
        with self._door:
            refused = self._refusal(request)
            if refused is None:
                self._entering[request.id] = emit
                self._preparing.submit(self._prepare, request, emit, submitted)
        if refused is not None:
            _hand_over(emit, [Failed(request.id, refused.code, refused.message)])

    def abort(self, request: str) -> None:
        """End a request early; unknown or finished ones are ignored."""
        with self._door:
            if request in self._entering:
                self._aborted.add(request)
        self._inbox.put(_Abort(request))

    def stop(self, drain_seconds: float) -> None:
        """Refuse new requests, let the others run for `drain_seconds`, end what is left; returns when that is done."""
        self._stop_at = time.monotonic() + drain_seconds
        self._inbox.put(_Stop())
        if self._thread.ident is not None:
            self._thread.join()
        self._close_door()

    def hurry(self) -> None:
        """End a drain now: nobody waits for the answers any more."""
        self._stop_at = time.monotonic()

    def status(self) -> EngineStatus:
        reasons = []
        if not self._thread.is_alive():
            reasons.append(WORKER_DOWN)
        if self._stop_at is not None:
            reasons.append("the worker is draining")
        refused = self.runtime.refused
        return EngineStatus(
            not reasons,
            tuple(reasons),
            time.monotonic() - self._progress,
            self._scheduler.waiting,
            self._scheduler.running,
            self._shadow.stats,
            () if refused is None else (f"reuse is refused, all is computed: {refused}",),
        )

    def _refusal(self, request: GenerateRequest) -> EngineError | None:
        """Why a request cannot even be looked at."""
        if self._closed or self._stop_at is not None:
            return EngineStopped("the service is stopping")
        if request.id in self._entering or request.id in self._live:
            return InternalError(f"there is a request {request.id} already")
        if len(self._entering) + self._scheduler.waiting >= self._limits.waiting + self._limits.running:
            return QueueFull(f"{self._scheduler.waiting} requests are waiting already")
        return None

    def _prepare(self, request: GenerateRequest, emit: Emit, submitted: float) -> None:
        """On a preparing thread: lay out, and hand over or fail."""
        failure: EngineError
        try:
            prepared = prepare(self.runtime, request, submitted)
        except EngineError as error:
            failure = error
        except Exception:
            log.exception("request %s could not be prepared", request.id)
            failure = InternalError("the request could not be prepared")
        else:
            with self._door:
                if not self._closed:
                    self._inbox.put(_Prepared(prepared, emit))
                    return
            failure = EngineStopped("the service is stopping")
        self._leave_entrance(request.id)
        _hand_over(emit, [Failed(request.id, failure.code, failure.message)])

    def _leave_entrance(self, request: str) -> bool:
        """The request is no longer on the way in; True if it was aborted meanwhile."""
        with self._door:
            self._entering.pop(request, None)
            aborted = request in self._aborted
            self._aborted.discard(request)
            return aborted

    @torch.inference_mode()
    def _run(self) -> None:
        try:
            while True:
                self._read_inbox()
                self._tell()
                if self._stop_at is not None and (
                    time.monotonic() >= self._stop_at or not (self._live or self._entering)
                ):
                    break
                self._do_next()
                self._tell()
                self._note_progress()
        except Exception:
            log.exception("the worker's thread failed")
        finally:
            self._close_door()
            for request in list(self._live):
                self._end(request, EngineStopped("the service is stopping"))
            self._tell()

    def _note(self, emit: Emit, event: Event) -> None:
        self._happened.setdefault(emit, []).append(event)

    def _tell(self) -> None:
        """Hand over what happened since the last time."""
        happened, self._happened = self._happened, {}
        for emit, events in happened.items():
            _hand_over(emit, events)

    def _note_progress(self) -> None:
        self._progress = time.monotonic()

    def _close_door(self) -> None:
        """From here on `submit` refuses; what was handed over but not taken up gets its terminal event."""
        with self._door:
            self._closed = True
        self._preparing.shutdown(cancel_futures=True)
        while not self._inbox.empty():
            self._inbox.get_nowait()
        with self._door:
            left, self._entering = self._entering, {}
        for request, emit in left.items():
            _hand_over(emit, [Failed(request, EngineStopped.code, "the service is stopping")])

    def _read_inbox(self) -> None:
        """Take all messages; wait for one when there is nothing to do."""
        idle = not self._live and self._shadow.idle and self._stop_at is None
        try:
            message = self._inbox.get(timeout=IDLE_SECONDS) if idle else self._inbox.get_nowait()
            while True:
                match message:
                    case _Prepared(prepared, emit):
                        self._accept(prepared, emit)
                    case _Abort(request):
                        self._end(request, Aborted("the client went away"))
                message = self._inbox.get_nowait()
        except queue.Empty:
            return

    def _accept(self, prepared: Prepared, emit: Emit) -> None:
        request = prepared.request.id
        try:
            if self._leave_entrance(request):
                raise Aborted("the client went away")
            self._queue(prepared)
        except EngineError as error:
            self._note(emit, Failed(request, error.code, error.message))
        else:
            self._live[request] = _Live(prepared, emit)
            self._note(emit, Accepted(request, prepared.layout.length, prepared.layout.visual_tokens))

    def _queue(self, prepared: Prepared) -> None:
        request = prepared.request
        limit = request.timeout_seconds
        deadline = None if limit is None else prepared.submitted + limit
        size = prepared.slots * self.runtime.pool.slot_bytes
        arrival = Arrival(request.id, request.account or request.tenant, size, request.priority, deadline)
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
            live.generation = Generation(
                self.runtime, live.prepared, lambda text: self._note(live.emit, text), self._note_progress
            )
            live.pieces = live.generation.prefill()
        try:
            next(live.pieces)
        except StopIteration:
            self._scheduler.prefilled(request)
            self._settle(live)
            self._finish_if_done(request, live)

    def _settle(self, live: _Live) -> None:
        """After prefill only a shadow check needs the decoded images any more."""
        live.shadowed = self._shadow.wants(live.prepared)
        if not live.shadowed:
            live.prepared = replace(live.prepared, request=replace(live.prepared.request, images=()))

    def _decode(self, requests: tuple[str, ...]) -> None:
        """One batched step; growing its KV and taking its logits are each request's own affair, and risk."""
        for request in requests:
            self._guard((request,), lambda live=self._live[request]: _make_room(live))  # type: ignore[misc]
        running = [(name, generation) for name in requests if (generation := self._generation(name))]
        if not running:
            return
        decoders = [generation.decoder for _, generation in running if generation.decoder is not None]
        tokens = [generation.token for _, generation in running]
        works = [generation.work for _, generation in running]
        logits = decode_step(self.runtime.family, decoders, tokens, works)
        for (request, generation), row in zip(running, logits, strict=True):
            self._guard((request,), lambda g=generation, r=row: g.take(r))  # type: ignore[misc]
            if request in self._live:
                self._finish_if_done(request, self._live[request])

    def _generation(self, request: str) -> Generation | None:
        live = self._live.get(request)
        return None if live is None else live.generation

    def _finish_if_done(self, request: str, live: _Live) -> None:
        generation = live.generation
        if generation is not None and generation.finished is not None:
            if live.shadowed and generation.first_logits is not None:
                self._shadow.offer(live.prepared, generation.first_logits)
            self._forget(request)
            self._note(live.emit, generation.finished)

    def _end(self, request: str, error: EngineError) -> None:
        live = self._live.get(request)
        if live is not None:
            self._forget(request)
            self._note(live.emit, Failed(request, error.code, error.message))

    def _forget(self, request: str) -> None:
        """Memory and slot come back before the terminal event goes out."""
        live = self._live.pop(request)
        self._scheduler.end(request)
        if live.generation is not None:
            live.generation.close()


def _make_room(live: _Live) -> None:
    if live.generation is not None and live.generation.decoder is not None:
        live.generation.decoder.make_room()


def _hand_over(emit: Emit, events: Sequence[Event]) -> None:
    """A listener that fails must not take the worker's thread with it."""
    try:
        emit(events)
    except Exception:
        log.exception("events of requests %s could not be delivered", {event.request_id for event in events})
