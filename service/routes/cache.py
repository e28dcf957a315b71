"""The operator's routes over the store. The key check is in `service.middleware`; every change is logged."""

from __future__ import annotations

import logging
import re
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from service.context import Services
from service.errors import RequestError
from service.openapi import error_answers, json_body
from service.schemas import EvictRequest
from service.validation import read_body
from store.types import EntryFilter, EntryInfo, EntryPage, EvictResult, StoreStats

_log = logging.getLogger(__name__)
_KEY: Final = re.compile(r"[0-9a-f]{64}")
_STATS: Final = TypeAdapter(StoreStats)
_ENTRY: Final = TypeAdapter(EntryInfo)
_PAGE: Final = TypeAdapter(EntryPage)
_EVICTED: Final = TypeAdapter(EvictResult)
_ERRORS: Final = error_answers(400, 401, 403, 404)


class EntryQuery(BaseModel):
    """Filters and paging of the list of entries. `older_than` is seconds since last use."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    tenant: str | None = None
    model: str | None = None
    tier: str | None = None
    older_than: Annotated[float, Field(ge=0)] | None = None
    min_bytes: Annotated[int, Field(ge=0)] | None = None
    cursor: Annotated[str, Field(max_length=512)] | None = None
    limit: Annotated[int, Field(ge=1, le=1000)] = 100


def cache_router(services: Services) -> APIRouter:
    """The cache routes over `services`."""
    endpoint = CacheEndpoint(services)
    router = APIRouter(prefix="/v1/cache", tags=["cache"])
    add = router.add_api_route
    add("/stats", endpoint.stats, methods=["GET"], response_model=StoreStats, responses=_answers())
    add("/entries", endpoint.entries, methods=["GET"], response_model=EntryPage, responses=_answers())
    add("/entries/{key}", endpoint.entry, methods=["GET"], response_model=EntryInfo, responses=_answers())
    add("/entries/{key}", endpoint.delete, methods=["DELETE"], status_code=204, responses=_answers())
    body = {"requestBody": json_body("EvictRequest")}
    add(
        "/evict",
        endpoint.evict,
        methods=["POST"],
        response_model=EvictResult,
        responses=_answers(),
        openapi_extra=body,
    )
    return router


def _answers() -> dict[int | str, dict[str, Any]]:
    return dict(_ERRORS)


class CacheEndpoint:
    """Thin: read the query, ask `EngineClient.cache`, shape the answer."""

    def __init__(self, services: Services) -> None:
        self._cache = services.client.cache
        self._max_body = services.settings.max_body_bytes

    async def stats(self) -> JSONResponse:
        """What each tier holds, hits, misses and evictions by reason, and what is wrong with the store."""
        return JSONResponse(_STATS.dump_python(await self._cache.stats(), mode="json"))

    async def entries(self, query: Annotated[EntryQuery, Query()]) -> JSONResponse:
        """Entries that match, a page at a time. `cursor` of one page gives the next, null ends the list."""
        select = EntryFilter(query.tenant, query.model, query.tier, query.older_than, query.min_bytes)
        page = await self._cache.entries(select, query.cursor, query.limit)
        return JSONResponse(_PAGE.dump_python(page, mode="json"))

    async def entry(self, key: str) -> JSONResponse:
        """One entry. Looking does not count as use."""
        found = await self._cache.entry(_checked(key))
        if found is None:
            raise _no_entry()
        return JSONResponse(_ENTRY.dump_python(found, mode="json"))

    async def delete(self, key: str, request: Request) -> Response:
        """Remove one entry from every tier."""
        if not await self._cache.delete(_checked(key)):
            raise _no_entry()
        _audit(request, "delete", key=key)
        return Response(status_code=204)

    async def evict(self, request: Request) -> JSONResponse:
        """Remove the least recently used of the entries that match, or say which they are (`dry_run`)."""
        order = await read_body(request, EvictRequest, self._max_body)
        select = EntryFilter(order.tenant, order.model, order.tier, order.older_than, order.min_bytes)
        result = await self._cache.evict(select, order.bytes, order.dry_run)
        _audit(request, "evict", entries=len(result.keys), bytes=result.bytes, dry_run=result.dry_run)
        return JSONResponse(_EVICTED.dump_python(result, mode="json"))


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise _no_entry()
    return key


def _no_entry() -> RequestError:
    return RequestError("entry_not_found", "No tier holds an entry of that key (64 lower-case hex digits).")


def _audit(request: Request, action: str, **fields: object) -> None:
    client = request.client.host if request.client else None
    _log.info(
        "cache admin",
        extra={"action": action, "request_id": request.state.request_id, "client": client, **fields},
    )
