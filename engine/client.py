"""The seam between the HTTP side and whatever runs the model. No torch here, and none behind the import of it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from engine.messages import EngineInfo, EngineStatus, Event, GenerateRequest
from engine.reports import Tokenized
from store.types import EntryFilter, EntryInfo, EntryPage, EvictResult, QuotaInfo, StoreStats, VerifyProgress


class CacheAdmin(Protocol):
    """The operator's view of the store. Keys are the 64 hex digits of a `VisualKey` digest."""

    async def stats(self) -> StoreStats: ...

    async def entries(self, select: EntryFilter, cursor: str | None, limit: int) -> EntryPage: ...

    async def entry(self, key: str) -> EntryInfo | None:
        """Look without touching recency."""
        ...

    async def delete(self, key: str) -> bool:
        """Remove from every tier; False if no tier held it."""
        ...

    async def evict(self, select: EntryFilter, max_bytes: int | None, dry_run: bool) -> EvictResult:
        """Remove least recently used entries that match, until `max_bytes` are freed (None: all that match)."""
        ...

    async def clear(self, tenant: str | None, include_pinned: bool) -> EvictResult:
        """Remove all entries (of one tenant) but those in use."""
        ...

    async def lookup(self, tenant: str, digest: bytes, width: int, height: int) -> EntryInfo | None:
        """The entry that a request with this image would use, by its canonical digest. Recency is not touched."""
        ...

    async def pin(self, key: str, seconds: float | None) -> bool:
        """Keep an entry: soft for `seconds` (evicted only when nothing else is left), with None hard (never evicted).
        False if there is no such entry."""
        ...

    async def unpin(self, key: str) -> bool: ...

    async def quotas(self) -> tuple[QuotaInfo, ...]: ...

    async def set_quota(self, tenant: str, nbytes: int | None) -> None:
        """None lifts it."""
        ...

    def verify(self) -> AsyncGenerator[VerifyProgress, None]:
        """Read and check every record of every tier; damaged ones are removed. One report per record, the last one
        is `done`. Closing the iterator early ends the scrub."""
        ...

    async def compact(self) -> Mapping[str, int | str]:
        """Bytes that each tier gave back to the system, or why it could not."""
        ...


class Tokens(Protocol):
    """The model's tokens, without a place in any queue."""

    async def tokenize(self, request: GenerateRequest) -> Tokenized:
        """The prompt that `request` would have; of its images only the sizes count. Raises `EngineError` for what would
        be refused."""
        ...

    async def detokenize(self, ids: Sequence[int]) -> str:
        """Raises `InvalidPrompt` for what is no token."""
        ...


class EngineClient(Protocol):
    """One worker, in this process or another."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def cache(self) -> CacheAdmin: ...

    @property
    def tokens(self) -> Tokens: ...

    def status(self) -> EngineStatus: ...

    def submit(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Events of one request, ending with exactly one terminal event. Closing the iterator early aborts the request
        (generation stops within one step). Failures arrive as `Failed`, they are not raised."""
        ...

    async def close(self, drain_seconds: float) -> None:
        """Take no new requests, give the running ones `drain_seconds`, then end them as `engine_stopped`."""
        ...
