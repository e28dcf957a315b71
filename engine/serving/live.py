"""The accepted requests: each is carried out piece by piece, and its memory comes back however it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from engine.errors import EngineError, InternalError, KvTooLarge, QueueFull
from engine.messages import Accepted, Failed
from engine.passes.decode import decode_step
from engine.serving.generation import Generation
from engine.serving.outbox import Emit, Outbox
from engine.serving.prepared import Prepared
from engine.serving.refinement import Refinement
from engine.serving.runtime import Runtime
from engine.serving.scheduler import Arrival, Scheduler
from engine.serving.shadow import Shadow

log = logging.getLogger(__name__)

END = object()


@dataclass(slots=True)
class _Live:
    """A request between `Accepted` and its terminal event. `prepared` goes when its prefill is done, so that the pixels
    do; `checked` is the same where a shadow check will need them. Nothing here may refer back to it: what is in a
    cycle stays until the collector of cycles happens to run."""

    emit: Emit
    prepared: Prepared | None
    checked: Prepared | None = None
    generation: Generation | None = None
    pieces: Iterator[None] | None = None


class LiveRequests:
    """Does what the scheduler says, on the worker's thread. A failure ends the requests it struck, the others go on."""

    def __init__(
        self,
        runtime: Runtime,
        scheduler: Scheduler,
        shadow: Shadow,
        refinement: Refinement,
        outbox: Outbox,
        progress: Callable[[], None],
    ) -> None:
        self._runtime, self._scheduler, self._shadow, self._outbox = runtime, scheduler, shadow, outbox
        self._refinement, self._progress = refinement, progress
        self._live: dict[str, _Live] = {}
        self._unkept: list[str] = []

    @property
    def empty(self) -> bool:
        return not self._live

    def __contains__(self, request: str) -> bool:
        return request in self._live

    def accept(self, prepared: Prepared, emit: Emit) -> None:
        """Raises `EngineError` for a request that cannot be queued."""
        request = prepared.request.id
        self._queue(prepared)
        self._live[request] = _Live(emit, prepared)
        self._outbox.note(emit, Accepted(request, prepared.layout.length, prepared.layout.visual_tokens))

    def prefill_piece(self, request: str) -> None:
        live = self._live[request]
        self._guard((request,), lambda: self._prefill_piece(request, live))

    def decode(self, requests: tuple[str, ...]) -> None:
        """One batched step; growing its KV and taking its logits are each request's own affair, and risk."""
        self._guard(requests, lambda: self._decode(requests))

    def end(self, request: str, error: EngineError) -> None:
        """Unknown ones are ignored."""
        live = self._live.get(request)
        if live is not None:
            self._forget(request)
            self._outbox.note(live.emit, Failed(request, error.code, error.message))

    def end_all(self, error: EngineError) -> None:
        for request in list(self._live):
            self.end(request, error)

    def keep_prompts(self) -> None:
        """Leave to the chains what the last step prefilled: behind it, so that the first token does not wait for it."""
        unkept, self._unkept = self._unkept, []
        for request in unkept:
            generation = self._generation(request)
            if generation is not None:
                _keep(request, generation)

    def _queue(self, prepared: Prepared) -> None:
        request = prepared.request
        limit = request.timeout_seconds
        deadline = None if limit is None else prepared.submitted + limit
        answers = request.answers
        size = answers * prepared.slots * self._runtime.pool.slot_bytes
        account = request.account or request.tenant
        arrival = Arrival(request.id, account, size, request.priority, deadline, answers)
        if not self._scheduler.fits(arrival):
            raise KvTooLarge(
                f"{prepared.slots} tokens for each of {answers} answers take {size} bytes of KV, more than this "
                "worker may hold"
            )
        if not self._scheduler.arrive(arrival):
            raise QueueFull(f"{self._scheduler.waiting} requests are waiting already")

    def _guard(self, requests: tuple[str, ...], step: Callable[[], None]) -> None:
        try:
            step()
        except EngineError as error:
            for request in requests:
                self.end(request, error)
        except Exception:
            log.exception("requests %s failed", ", ".join(requests))
            for request in requests:
                self.end(request, InternalError("the request failed inside the engine"))

    def _prefill_piece(self, request: str, live: _Live) -> None:
        pieces = live.pieces or self._begin(live)
        if next(pieces, END) is END:
            refine = 0 if live.generation is None else live.generation.refine_rows
            self._scheduler.prefilled(request, refine)
            self._settle(live)
            self._unkept.append(request)
            self._finish_if_done(request, live)

    def _begin(self, live: _Live) -> Iterator[None]:
        assert live.prepared is not None, "a prefill begins once"
        show = partial(self._outbox.note, live.emit)
        live.generation = Generation(self._runtime, live.prepared, show, self._progress)
        live.pieces = live.generation.prefill()
        self.share_memory()
        return live.pieces

    def _settle(self, live: _Live) -> None:
        """After prefill only a shadow check needs the decoded images any more."""
        prepared, live.prepared, live.pieces = live.prepared, None, None
        if prepared is not None and self._shadow.wants(prepared):
            live.checked = prepared

    def _decode(self, requests: tuple[str, ...]) -> None:
        for request in requests:
            self._guard((request,), lambda name=request: self._make_ready(name))  # type: ignore[misc]
        running = [
            (name, generation, answer)
            for name in requests
            if (generation := self._generation(name))
            for answer in generation.writing
        ]
        if not running:
            return
        decoders = [answer.decoder for _, _, answer in running]
        tokens = [answer.token for _, _, answer in running]
        works = [generation.work for _, generation, _ in running]
        logits = decode_step(self._runtime.family, decoders, tokens, works)
        for (request, generation, answer), row in zip(running, logits, strict=True):
            if request in self._live:  # else another of its answers has failed
                take = partial(generation.take, answer, row)
                self._guard((request,), take)
            if request in self._live:
                self._finish_if_done(request, self._live[request])

    def _make_ready(self, request: str) -> None:
        """Room for the next token, and the prompt rows that are computed before it."""
        generation = self._generation(request)
        if generation is None:
            return
        generation.make_room()
        generation.refine()
        self._scheduler.refines(request, generation.refine_rows)

    def _generation(self, request: str) -> Generation | None:
        live = self._live.get(request)
        return None if live is None else live.generation

    def _finish_if_done(self, request: str, live: _Live) -> None:
        generation = live.generation
        if generation is not None and generation.finished is not None:
            if live.checked is not None and generation.first_logits is not None:
                self._shadow.offer(live.checked, generation.first_logits)
            self._forget(request)
            self._outbox.note(live.emit, generation.finished)

    def _forget(self, request: str) -> None:
        """Memory and slot come back before the terminal event goes out."""
        live = self._live.pop(request)
        self._scheduler.end(request)
        if live.generation is not None:
            _keep(request, live.generation)
            _write(request, live.generation)
            unfinished = live.generation.unfinished()
            if unfinished is not None:
                self._refinement.offer(unfinished)
            live.generation.close()
        self.share_memory()

    def share_memory(self) -> None:
        """Running requests have theirs, the refinement of a chain what these leave, and chains the rest."""
        if self._scheduler.limit is None:
            return
        left = self._scheduler.limit - self._scheduler.bytes
        if self._refinement.bytes > left:
            self._refinement.pause()
        self._runtime.chains.leave_room(left - self._refinement.bytes)


def _keep(request: str, generation: Generation) -> None:
    """A chain that cannot be kept costs the next request's time, not this one's answer."""
    try:
        generation.keep()
    except Exception:
        log.exception("the chain of request %s could not be kept", request)


def _write(request: str, generation: Generation) -> None:
    """Nor does one that cannot be written."""
    try:
        generation.write()
    except Exception:
        log.exception("the chain of request %s could not be written", request)
