"""A worker in this process. Torch-free: it knows the worker by its three verbs only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Protocol

from engine.client import CacheAdmin
from engine.messages import EngineInfo, EngineStatus, Event, Failed, Finished, GenerateRequest
from engine.tracing import current_traceparent
from engine.transport.streams import Streams
from store.types import EntryFilter, EntryInfo, EntryPage, EvictResult, StoreStats


class LocalWorker(Protocol):
    def submit(self, request: GenerateRequest, emit: Callable[[Event], None]) -> None: ...
    def abort(self, request: str) -> None: ...
    def status(self) -> EngineStatus: ...
    def stop(self, drain_seconds: float) -> None: ...


class LocalStore(Protocol):
    """The admin calls of a store in this process; they may block."""

    def stats(self) -> StoreStats: ...
    def entries(self, select: EntryFilter, cursor: str | None, limit: int) -> EntryPage: ...
    def entry(self, key: str) -> EntryInfo | None: ...
    def delete(self, key: str) -> bool: ...
    def evict(self, select: EntryFilter, max_bytes: int | None, dry_run: bool) -> EvictResult: ...
    def close(self) -> None: ...


class InProcessClient:
    """`EngineClient` over a worker thread and a store of this process."""

    def __init__(self, worker: LocalWorker, store: LocalStore, info: EngineInfo) -> None:
        self._worker = worker
        self._store = store
        self._info = info
        self._cache = ThreadedCacheAdmin(store)
        self._streams = Streams()

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def cache(self) -> CacheAdmin:
        return self._cache

    def status(self) -> EngineStatus:
        return self._worker.status()

    async def submit(self, request: GenerateRequest) -> AsyncIterator[Event]:
        events = self._streams.open(request.id)
        ended = False
        try:
            self._worker.submit(replace(request, traceparent=current_traceparent()), self._streams.hand_over)
            while not ended:
                event = await events.get()
                ended = isinstance(event, Finished | Failed)
                yield event
        finally:
            self._streams.close(request.id)
            # Closed early, by a client that went away: no abort after a normal end.
            if not ended:
                self._worker.abort(request.id)

    async def close(self, drain_seconds: float) -> None:
        await asyncio.to_thread(self._worker.stop, drain_seconds)
        await asyncio.to_thread(self._store.close)


class ThreadedCacheAdmin:
    """`CacheAdmin` of a store that may block on its disk: every call runs in a thread."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store

    async def stats(self) -> StoreStats:
        return await asyncio.to_thread(self._store.stats)

    async def entries(self, select: EntryFilter, cursor: str | None, limit: int) -> EntryPage:
        return await asyncio.to_thread(self._store.entries, select, cursor, limit)

    async def entry(self, key: str) -> EntryInfo | None:
        return await asyncio.to_thread(self._store.entry, key)

    async def delete(self, key: str) -> bool:
        return await asyncio.to_thread(self._store.delete, key)

    async def evict(self, select: EntryFilter, max_bytes: int | None, dry_run: bool) -> EvictResult:
        return await asyncio.to_thread(self._store.evict, select, max_bytes, dry_run)
