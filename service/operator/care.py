"""The operator's routes that look after the store: pins, quotas, checking, compacting, warming."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, Final

from fastapi import APIRouter
from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from engine.errors import EngineError
from service.chat.answer import image_body
from service.chat.image_list import ImageList, named_image
from service.chat.warming import warmed
from service.context import Services
from service.errors import RequestError, ServiceError, error_body, shown
from service.http.body import read_body
from service.http.event_stream import DONE, PING, EventStream, event
from service.http.openapi import error_answers, reads
from service.http.tenancy import namespace
from service.http.unread import NEITHER, NO_QUERY
from service.images.reference import PlacedImage
from service.observability.audit import audit
from service.operator.answer_schemas import CompactBody, QuotasBody
from service.operator.entry_key import EntryKey, checked_key, no_entry
from service.operator.schemas import A_TENANT, PinRequest, QuotaRequest, WarmRequest
from service.operator.tenant import tenant_meant
from service.setting_types import TENANT_NAME
from store.records.keys import owner
from store.types import QuotaInfo, VerifyProgress

_log = logging.getLogger(__name__)
_QUOTA: Final = TypeAdapter(QuotaInfo)
_QUOTAS: Final = TypeAdapter(tuple[QuotaInfo, ...])
_PROGRESS: Final = TypeAdapter(VerifyProgress)
_ERRORS: Final = error_answers(400, 401, 403, 404, 503)
_REPORT_INTERVAL: Final = 0.2
_MOST_WARMED: Final = 10_000
"""Images of one order, pages of files among them."""
_MOST_SCRUBS: Final = 4
"""At the same time; others wait for their turn. A worker keeps twice as many (`engine.serving.admin`)."""


def cache_care_router(services: Services) -> APIRouter:
    """The routes over `services`."""
    care = CacheCareEndpoint(services)
    router = APIRouter(prefix="/v1/cache", tags=["cache"], responses=dict(_ERRORS))
    add = router.add_api_route
    pin, quota = "/pins/{key}", "/quotas/{tenant}"
    sets: dict[str, Any] = {"status_code": 204, "dependencies": NO_QUERY}
    plain: dict[str, Any] = {"dependencies": NEITHER}
    add(pin, care.pin, methods=["POST"], openapi_extra=reads(PinRequest), **sets)
    add(pin, care.unpin, methods=["DELETE"], status_code=204, **plain)
    add("/quotas", care.quotas, methods=["GET"], response_model=QuotasBody, **plain)
    add(quota, care.quota, methods=["GET"], response_model=QuotaInfo, **plain)
    add(quota, care.set_quota, methods=["PUT"], openapi_extra=reads(QuotaRequest), **sets)
    add(quota, care.lift_quota, methods=["DELETE"], status_code=204, **plain)
    add("/compact", care.compact, methods=["POST"], response_model=CompactBody, **plain)
    stream: dict[str, Any] = {
        "methods": ["POST"],
        "response_model": None,
        "response_class": Response,
        "responses": {200: {"description": "Progress as events.", "content": {EventStream.media_type: {}}}},
    }
    add("/verify", care.verify, **plain, **stream)
    add("/warm", care.warm, openapi_extra=reads(WarmRequest), dependencies=NO_QUERY, **stream)
    return router


class CacheCareEndpoint:
    """Thin, and every change is logged. What takes long is a stream that ends with the client."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._cache = services.client.cache
        self._limits = services.body_limits
        self._scrubbing = asyncio.Semaphore(_MOST_SCRUBS)

    async def pin(self, key: EntryKey, request: Request) -> Response:
        """Keep an entry: evicted last for `ttl` seconds, or never."""
        order = await read_body(request, PinRequest, self._limits)
        if not await self._cache.pin(checked_key(key), order.ttl):
            raise no_entry()
        audit(request, "pin", key=key, ttl=order.ttl)
        return Response(status_code=204)

    async def unpin(self, key: EntryKey, request: Request) -> Response:
        """Let an entry go as others do."""
        if not await self._cache.unpin(checked_key(key)):
            raise RequestError("entry_not_found", "There is no entry of that key, or it is not pinned.")
        audit(request, "unpin", key=key)
        return Response(status_code=204)

    async def quotas(self) -> JSONResponse:
        """Limits of tenants, and what they hold."""
        return JSONResponse({"quotas": _QUOTAS.dump_python(await self._cache.quotas(), mode="json")})

    async def quota(self, tenant: str) -> JSONResponse:
        """One tenant's limit, and what it holds."""
        return JSONResponse(_QUOTA.dump_python(await self._limit_of(tenant), mode="json"))

    async def set_quota(self, tenant: str, request: Request) -> Response:
        """Limit what a tenant may hold in each tier; what is above goes with its next write."""
        order = await read_body(request, QuotaRequest, self._limits)
        if owner(tenant) != tenant:
            raise RequestError(
                "invalid_request", f"A quota is the whole tenant's: {shown(owner(tenant))}.", param="tenant"
            )
        if TENANT_NAME.fullmatch(tenant) is None:
            raise RequestError("invalid_request", f"'tenant' must be {A_TENANT}.", param="tenant")
        await self._cache.set_quota(tenant, order.bytes)
        audit(request, "set quota", tenant_limited=tenant, bytes=order.bytes)
        return Response(status_code=204)

    async def lift_quota(self, tenant: str, request: Request) -> Response:
        """Lift a tenant's limit."""
        await self._limit_of(tenant)
        await self._cache.set_quota(tenant, None)
        audit(request, "lift quota", tenant_limited=tenant)
        return Response(status_code=204)

    async def _limit_of(self, tenant: str) -> QuotaInfo:
        for quota in await self._cache.quotas():
            if quota.tenant == tenant:
                return quota
        raise RequestError("entry_not_found", "That tenant has no quota.")

    async def compact(self, request: Request) -> JSONResponse:
        """Give free space back to the system: bytes by tier, or why a tier could not."""
        result = await self._cache.compact()
        audit(request, "compact", result=dict(result))
        return JSONResponse({"tiers": dict(result)})

    async def verify(self, request: Request) -> Response:
        """Read and check every record; damaged ones are removed."""
        audit(request, "verify")
        return self._stream(self._verify_events())

    async def warm(self, request: Request) -> Response:
        """Compute and store images before they are asked about, one after the other behind all other
        requests."""
        order = await read_body(request, WarmRequest, self._limits)
        tenant = namespace(tenant_meant(request, order.tenant), order.salt)
        places = self._warm_places(order, tenant)
        audit(request, "warm", tenant_warmed=tenant, images=len(places))
        return self._stream(self._warm_events(places, tenant))

    def _stream(self, events: AsyncGenerator[bytes, None]) -> EventStream:
        services = self._services
        interval = services.settings.ping_interval
        return EventStream(_ended(events), AsyncExitStack(), {}, interval, services.last_orders)

    async def _verify_events(self) -> AsyncGenerator[bytes, None]:
        clock = asyncio.get_running_loop().time
        told, held_back = clock(), None
        async with self._scrubbing, aclosing(self._cache.verify()) as reports:
            async for report in reports:
                if held_back is not None and (report.done or held_back.tier != report.tier):
                    yield event(_PROGRESS.dump_python(held_back, mode="json"))  # the last of its tier
                held_back = report
                # There is a report for every record: more than anybody reads.
                if report.done or clock() - told >= _REPORT_INTERVAL:
                    told, held_back = clock(), None
                    yield event(_PROGRESS.dump_python(report, mode="json"))

    async def _warm_events(
        self, places: Sequence[tuple[int, PlacedImage]], tenant: str
    ) -> AsyncGenerator[bytes, None]:
        yield PING
        for number, place in places:
            try:
                async with self._services.images.loaded([place], tenant) as (image,):
                    report = await warmed(self._services, image, tenant, place.param)
                yield event({"image": number, **image_body(report)})
            except ServiceError as error:
                yield event(
                    {"image": number, "failed": error_body(error.code, error.message, error.param)["error"]}
                )

    def _warm_places(self, order: WarmRequest, tenant: str) -> list[tuple[int, PlacedImage]]:
        """What there is to compute of each image by its number: of an uploaded file every page."""
        images = ImageList(partial(self._services.files.find, owner(tenant)), _MOST_WARMED)
        named = [images.place(named_image(text), f"images[{i}]") for i, text in enumerate(order.images)]
        numbers = [number for number, parts in enumerate(named) for _ in parts]
        return list(zip(numbers, images.checked(), strict=True))


async def _ended(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """`events` with the end of every stream: what went wrong, if anything did, and `[DONE]`."""
    try:
        async with aclosing(events):
            async for piece in events:
                yield piece
    except (ServiceError, EngineError) as error:
        yield event(error_body(error.code, error.message))
    except Exception:
        _log.exception("an operator's stream failed")
        yield event(
            error_body("store_failed", "The store could not go on; the cause is in the server's log.")
        )
    yield DONE
