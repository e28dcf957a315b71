"""Admin calls on the store, by name: the HTTP side's end, which asks over a pipe or a thread."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from engine.errors import EngineError, StoreFailed
from store.types import EntryFilter, EntryInfo, EntryPage, EvictResult, QuotaInfo, StoreStats, VerifyProgress


class AdminProxy:
    """The HTTP side's end: `CacheAdmin` by asking `call(name, arguments)` of `engine.serving.admin`."""

    def __init__(self, call: Callable[[str, tuple[object, ...]], Awaitable[Any]]) -> None:
        self._call = call

    async def stats(self) -> StoreStats:
        stats: StoreStats = await self._call("stats", ())
        return stats

    async def entries(self, select: EntryFilter, cursor: str | None, limit: int) -> EntryPage:
        page: EntryPage = await self._call("entries", (select, cursor, limit))
        return page

    async def entry(self, key: str) -> EntryInfo | None:
        entry: EntryInfo | None = await self._call("entry", (key,))
        return entry

    async def delete(self, key: str) -> bool:
        deleted: bool = await self._call("delete", (key,))
        return deleted

    async def evict(self, select: EntryFilter, max_bytes: int | None, dry_run: bool) -> EvictResult:
        result: EvictResult = await self._call("evict", (select, max_bytes, dry_run))
        return result

    async def clear(self, tenant: str | None, include_pinned: bool) -> EvictResult:
        result: EvictResult = await self._call("clear", (tenant, include_pinned))
        return result

    async def lookup(self, tenant: str, digest: bytes, width: int, height: int) -> EntryInfo | None:
        entry: EntryInfo | None = await self._call("lookup", (tenant, digest, width, height))
        return entry

    async def pin(self, key: str, seconds: float | None) -> bool:
        pinned: bool = await self._call("pin", (key, seconds))
        return pinned

    async def unpin(self, key: str) -> bool:
        unpinned: bool = await self._call("unpin", (key,))
        return unpinned

    async def quotas(self) -> tuple[QuotaInfo, ...]:
        quotas: tuple[QuotaInfo, ...] = await self._call("quotas", ())
        return quotas

    async def set_quota(self, tenant: str, nbytes: int | None) -> None:
        await self._call("set_quota", (tenant, nbytes))

    async def verify(self) -> AsyncGenerator[VerifyProgress, None]:
        number = await self._call("verify_begin", ())
        done = False
        try:
            while not done:
                progress: VerifyProgress | None = await self._call("verify_next", (number,))
                if progress is None:
                    raise StoreFailed("The check ended before all was read.")
                done = progress.done
                yield progress
        finally:
            with suppress(EngineError):  # a worker that died has ended it
                await self._call("verify_end", (number,))

    async def compact(self) -> Mapping[str, int | str]:
        given: Mapping[str, int | str] = await self._call("compact", ())
        return given
