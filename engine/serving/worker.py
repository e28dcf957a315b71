"""The imperative shell: a thread that turns messages into scheduler events and instructions into work and events."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import torch

from engine.errors import Aborted, DeadlineExceeded, EngineError, QueueFull
from engine.messages import WORKER_DOWN, EngineStatus, Failed, GenerateRequest
from engine.serving.entrance import Abort, Arrived, Entrance, Wake, stopping, taken
from engine.serving.live import LiveRequests
from engine.serving.outbox import Emit, Outbox
from engine.serving.refinement import Refinement
from engine.serving.runtime import Runtime
from engine.serving.scheduler import DecodeRound, PrefillPiece, Scheduler
from engine.serving.shadow import Shadow
from engine.settings import Limits

log = logging.getLogger(__name__)

IDLE_SECONDS = 0.5


class Worker:
    """Runs requests on one thread. `submit` and `abort` may be called from any thread; events come on others, those of
    one step together."""

    def __init__(self, runtime: Runtime, limits: Limits | None = None, shadow_share: float = 0.0) -> None:
        self.runtime = runtime
        self._limits = limits or Limits()
        self._scheduler = Scheduler(self._limits)
        self._shadow = Shadow(runtime, shadow_share)
        self._outbox = Outbox()
        self._entrance = Entrance(runtime, self._refusal)
        self._refinement = Refinement(runtime, self._limits.refine_idle, self._note_progress)
        self._live = LiveRequests(
            runtime, self._scheduler, self._shadow, self._refinement, self._outbox, self._note_progress
        )
        self._stop_at: float | None = None
        self._progress = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="conduit-worker", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, request: GenerateRequest, emit: Emit) -> None:
        """Events of the request go to `emit`, from other threads; exactly one of them is terminal. Requests with the
        same `emit` have their events of one step handed over together."""
        self._entrance.enter(request, emit)

    def abort(self, request: str) -> None:
        """End a request early; unknown or finished ones are ignored."""
        self._entrance.abort(request)

    def stop(self, drain_seconds: float) -> None:
        """Refuse new requests, let the others run for `drain_seconds`, end what is left; returns when that is done."""
        self._stop_at = time.monotonic() + drain_seconds
        self._entrance.wake()
        if self._thread.ident is not None:
            self._thread.join()
        self._entrance.close()

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
            replace(
                self.runtime.chains.stats(),
                finished=self._refinement.finished,
                refined_rows=self._refinement.refined_rows,
            ),
        )

    def _refusal(self, request: str, entering: int) -> EngineError | None:
        if self._stop_at is not None:
            return stopping()
        if request in self._live:
            return taken(request)
        if entering + self._scheduler.waiting >= self._limits.waiting + self._limits.running:
            return QueueFull(f"{self._scheduler.waiting} requests are waiting already")
        return None

    @torch.inference_mode()
    def _run(self) -> None:
        try:
            while True:
                self._read_messages()
                self._outbox.tell()
                if self._is_over():
                    break
                self._do_next()
                self._outbox.tell()
                self._live.keep_prompts()
                self._note_progress()
        except Exception:
            log.exception("the worker's thread failed")
        finally:
            self._entrance.close()
            self._live.end_all(stopping())
            self._refinement.pause()
            self._outbox.tell()

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        return time.monotonic() >= self._stop_at or (self._live.empty and self._entrance.empty)

    def _note_progress(self) -> None:
        self._progress = time.monotonic()

    def _read_messages(self) -> None:
        """Take all messages; wait for one when there is nothing to do."""
        idle = self._live.empty and self._shadow.idle and self._refinement.idle and self._stop_at is None
        for message in self._entrance.messages(IDLE_SECONDS if idle else 0.0):
            match message:
                case Arrived():
                    self._accept(message)
                case Abort(request):
                    self._live.end(request, Aborted("the client went away"))
                case Wake():
                    pass

    def _accept(self, arrived: Arrived) -> None:
        request = arrived.prepared.request.id
        try:
            if self._entrance.leave(request):
                raise Aborted("the client went away")
            self._live.accept(arrived.prepared, arrived.emit)
        except EngineError as error:
            self._outbox.note(arrived.emit, Failed(request, error.code, error.message))

    def _do_next(self) -> None:
        for request in self._scheduler.overdue(time.monotonic()):
            self._live.end(request, DeadlineExceeded("the request ran into its time limit"))
        match self._scheduler.next():
            case PrefillPiece(request):
                self._live.prefill_piece(request)
            case DecodeRound(requests):
                self._live.decode(requests)
            case None if self._stop_at is None:
                self._do_idly()

    def _do_idly(self) -> None:
        """A piece of what nobody waits for."""
        if not self._shadow.idle:
            self._shadow.step()
        elif not self._refinement.idle:
            self._refinement.step()
            self._live.share_memory()
