"""The operator's routes over the store: look, remove. The key check is in `service.http.middleware`."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.figures import ChainStats
from service.context import Services
from service.errors import RequestError
from service.http.body import read_body
from service.http.openapi import error_answers, reads
from service.http.tenancy import namespace
from service.http.unread import NEITHER, NO_BODY, NO_QUERY
from service.images.reference import ImageReference, PlacedImage
from service.observability.audit import audit
from service.operator.answer_schemas import CacheStats, LookupBody
from service.operator.entry_key import EntryKey, checked_key, no_entry
from service.operator.schemas import ClearRequest, EntryQuery, EvictRequest, LookupRequest
from service.operator.tenant import tenant_meant
from store.types import EntryFilter, EntryInfo, EntryPage, EvictResult, StoreStats

_STATS: Final = TypeAdapter(StoreStats)
_CHAINS: Final = TypeAdapter(ChainStats)
_ENTRY: Final = TypeAdapter(EntryInfo)
_PAGE: Final = TypeAdapter(EntryPage)
_EVICTED: Final = TypeAdapter(EvictResult)
_ERRORS: Final = error_answers(400, 401, 403, 404, 503)
_CHAINS_IN_MEMORY: Final = "chain"
"""What listings, and the report of an answer, call the place of chains above the tiers."""


def cache_router(services: Services) -> APIRouter:
    """The cache routes over `services`."""
    endpoint = CacheEndpoint(services)
    router = APIRouter(prefix="/v1/cache", tags=["cache"], responses=dict(_ERRORS))
    get: dict[str, Any] = {"methods": ["GET"], "dependencies": NEITHER}
    listing = {**get, "dependencies": NO_BODY}
    router.add_api_route("/stats", endpoint.stats, response_model=CacheStats, **get)
    router.add_api_route("/entries", endpoint.entries, response_model=EntryPage, **listing)
    router.add_api_route("/entries/{key}", endpoint.entry, response_model=EntryInfo, **get)
    router.add_api_route(
        "/entries/{key}", endpoint.delete, methods=["DELETE"], status_code=204, dependencies=NEITHER
    )
    post: dict[str, Any] = {"methods": ["POST"], "dependencies": NO_QUERY}
    for path, handler, body, answer in (
        ("/evict", endpoint.evict, EvictRequest, EvictResult),
        ("/clear", endpoint.clear, ClearRequest, EvictResult),
        ("/lookup", endpoint.lookup, LookupRequest, LookupBody),
    ):
        router.add_api_route(path, handler, response_model=answer, openapi_extra=reads(body), **post)
    return router


class CacheEndpoint:
    """Thin: read the query, ask `EngineClient.cache`, shape the answer. Every change is logged."""

    def __init__(self, services: Services) -> None:
        self._client = services.client
        self._cache = services.client.cache
        self._images = services.images
        self._limits = services.body_limits

    async def stats(self) -> JSONResponse:
        """What each tier and the chains hold, hits, misses and evictions by reason, and what is wrong with the
        store."""
        stats = _STATS.dump_python(await self._cache.stats(), mode="json")
        chains = _CHAINS.dump_python(self._client.status().chains, mode="json")
        return JSONResponse({**stats, "chains": chains})

    async def entries(self, query: Annotated[EntryQuery, Query()]) -> JSONResponse:
        """Entries that match, a page at a time. `cursor` of one page gives the next, null ends the list."""
        await self._check_tier(query.tier)
        page = await self._cache.entries(_filter(query), query.cursor, query.limit)
        return JSONResponse(_PAGE.dump_python(page, mode="json"))

    async def entry(self, key: EntryKey) -> JSONResponse:
        """One entry. Looking does not count as use."""
        found = await self._cache.entry(checked_key(key))
        if found is None:
            raise no_entry()
        return JSONResponse(_ENTRY.dump_python(found, mode="json"))

    async def delete(self, key: EntryKey, request: Request) -> Response:
        """Remove one entry from every tier."""
        if not await self._cache.delete(checked_key(key)):
            raise no_entry()
        audit(request, "delete", key=key)
        return Response(status_code=204)

    async def evict(self, request: Request) -> JSONResponse:
        """Remove the least recently used of the entries that match, or say which they are (`dry_run`)."""
        order = await read_body(request, EvictRequest, self._limits)
        await self._check_tier(order.tier)
        result = await self._cache.evict(_filter(order), order.bytes, order.dry_run)
        audit(request, "evict", entries=len(result.keys), bytes=result.bytes, dry_run=result.dry_run)
        return JSONResponse(_EVICTED.dump_python(result, mode="json"))

    async def _check_tier(self, name: str | None) -> None:
        """A tier that does not exist holds nothing, which is no answer to a misspelt name."""
        if name is None:
            return
        names = [*(tier.name for tier in (await self._cache.stats()).tiers), _CHAINS_IN_MEMORY]
        if name not in names:
            raise RequestError("invalid_request", f"'tier' must be one of {', '.join(names)}.", param="tier")

    async def clear(self, request: Request) -> JSONResponse:
        """Remove all entries, or all of one tenant. Those in use and, unless included, the pinned ones stay
        and are counted."""
        order = await read_body(request, ClearRequest, self._limits)
        result = await self._cache.clear(order.tenant, order.include_pinned)
        audit(request, "clear", tenant_cleared=order.tenant, entries=len(result.keys), bytes=result.bytes)
        return JSONResponse(_EVICTED.dump_python(result, mode="json"))

    async def lookup(self, request: Request) -> JSONResponse:
        """Is this image stored? The entry that a request with it would use, or null. Does not count as
        use."""
        order = await read_body(request, LookupRequest, self._limits)
        tenant = namespace(tenant_meant(request, order.tenant), order.salt)
        place = PlacedImage(ImageReference(order.image), "image")
        async with self._images.loaded([place], tenant) as (image,):
            pass
        found = await self._cache.lookup(tenant, image.digest, image.width, image.height)
        entry = None if found is None else _ENTRY.dump_python(found, mode="json")
        body = {"digest": image.digest.hex(), "width": image.width, "height": image.height, "entry": entry}
        return JSONResponse(body)


def _filter(asked: EntryQuery | EvictRequest) -> EntryFilter:
    return EntryFilter(asked.tenant, asked.model, asked.tier, asked.older_than, asked.min_bytes, asked.kind)
