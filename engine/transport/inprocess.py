"""A worker in this process. Torch-free: it knows the worker by its three verbs only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from engine.client import CacheAdmin, Tokens
from engine.messages import EngineInfo, EngineStatus, Event, Failed, Finished, GenerateRequest
from engine.serving.admin import AdminDesk
from engine.tracing import current_traceparent
from engine.transport.admin import AdminProxy
from engine.transport.streams import Streams
from engine.transport.tokens import TokensProxy

log = logging.getLogger(__name__)


class LocalWorker(Protocol):
    def submit(self, request: GenerateRequest, emit: Callable[[Sequence[Event]], None]) -> None: ...
    def abort(self, request: str) -> None: ...
    def status(self) -> EngineStatus: ...
    def stop(self, drain_seconds: float) -> None: ...


class Closable(Protocol):
    """The store, as far as its end goes."""

    def close(self) -> None: ...


class InProcessClient:
    """`EngineClient` over a worker thread and a store of this process."""

    def __init__(self, worker: LocalWorker, store: Closable, desk: AdminDesk, info: EngineInfo) -> None:
        self._worker = worker
        self._store = store
        self._info = info
        self._desk = desk
        self._cache = AdminProxy(self._call)
        self._tokens = TokensProxy(self._call)
        self._streams = Streams()

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def cache(self) -> CacheAdmin:
        return self._cache

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    def status(self) -> EngineStatus:
        return self._worker.status()

    async def submit(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        name = request.id
        events = self._streams.open(name)
        ended = False
        try:
            traced = replace(request, traceparent=request.traceparent or current_traceparent())
            self._worker.submit(traced, self._streams.hand_over)
            del request, traced  # with their pixels: a stream may last for minutes
            while not ended:
                event = await events.get()
                ended = isinstance(event, Finished | Failed)
                yield event
        finally:
            self._streams.close(name)
            # Closed early, by a client that went away: no abort after a normal end.
            if not ended:
                self._worker.abort(name)

    async def _call(self, name: str, arguments: tuple[object, ...]) -> Any:
        return await asyncio.to_thread(self._desk.answer, name, arguments)

    async def close(self, drain_seconds: float) -> None:
        await asyncio.to_thread(self._worker.stop, drain_seconds)
        try:
            await asyncio.to_thread(self._store.close)
        except Exception:  # nobody could do anything about it any more
            log.exception("the store could not be closed")
