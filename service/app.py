"""`create_app`: the HTTP side over any `EngineClient`. Everything it needs is given; it keeps no globals."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import httpcore
from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match

from engine.client import EngineClient
from engine.errors import EngineError
from service.admission import Admission
from service.context import Services
from service.errors import ServiceError, error_body, error_kind
from service.images.addresses import HostPolicy, Resolver, SystemResolver
from service.images.decode import Decoder
from service.images.fetch import Fetcher
from service.images.loader import ImageLoader, LoadLimits
from service.images.url_index import UrlIndex
from service.metrics import Metrics
from service.middleware import Access, Gatekeeper
from service.openapi import openapi_of
from service.routes.cache import cache_router
from service.routes.cache_care import cache_care_router
from service.routes.chat import chat_router
from service.routes.health import health_router
from service.routes.page import page_router
from service.settings import Settings
from service.tenancy import KeyRing
from service.validation import query_error
from service.version import VERSION
from store.errors import StoreError

_log = logging.getLogger(__name__)
_DRAIN_POLL: Final = 0.05
_DESCRIPTION: Final = "Questions about images, answered from a persistent store of their key/value tensors."


def create_app(
    settings: Settings,
    client: EngineClient,
    extra_routers: Sequence[APIRouter] = (),
    resolver: Resolver | None = None,
) -> FastAPI:
    """The app over `client`, which it closes when it ends. `extra_routers` are mounted as they are (the
    demo's pages under `/demo/`, which need no key in demo mode). `app.state.services` is there for the
    composition root, for instance to stop taking requests on SIGTERM; no route reads it."""
    metrics = Metrics()
    names = resolver or SystemResolver()
    decoder = Decoder(settings.image_formats, settings.max_image_pixels, settings.decode_threads)
    services = Services(
        settings=settings,
        client=client,
        metrics=metrics,
        images=_image_loader(settings, names, decoder, metrics),
        admission=Admission(settings),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        closing = asyncio.create_task(_close_when_draining(services))
        try:
            yield
        finally:
            services.admission.draining = True
            await closing
            decoder.close()
            names.close()

    app = FastAPI(
        title="Conduit",
        version=VERSION,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    pages = [page_router()] if settings.web_page else []
    own = (chat_router, cache_router, cache_care_router, health_router)
    for router in (*(make(services) for make in own), *pages, *extra_routers):
        app.include_router(router)
    keys = KeyRing(settings)
    access = Access(keys, _public_paths(settings))
    app.add_middleware(Gatekeeper, keys=keys, access=access)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(EngineError, _engine_error)
    app.add_exception_handler(StoreError, _store_error)
    app.add_exception_handler(RequestValidationError, _query_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.openapi = openapi_of(app, access.needs_key)  # type: ignore[method-assign]
    return app


async def _close_when_draining(services: Services) -> None:
    """Have the engine end what runs while its clients are still connected, so that a stream which does not
    make it ends with an error event and not in the middle."""
    # The flag is set in a signal handler, from where nothing in a loop can be woken safely.
    while not services.admission.draining:
        await asyncio.sleep(_DRAIN_POLL)
    await services.client.close(services.settings.drain_timeout)


def _image_loader(settings: Settings, resolver: Resolver, decoder: Decoder, metrics: Metrics) -> ImageLoader:
    hosts = HostPolicy(settings.allowed_hosts, settings.allowed_private_hosts, resolver)
    fetcher = Fetcher(
        hosts,
        settings.max_image_bytes,
        settings.fetch_timeout,
        httpcore.default_ssl_context(),
        settings.fetch_concurrency,
    )
    limits = LoadLimits(settings.max_image_bytes, settings.max_request_pixels)
    return ImageLoader(fetcher, decoder, UrlIndex(settings.url_cache_bytes), metrics, limits)


def _public_paths(settings: Settings) -> frozenset[str]:
    optional = (("/metrics", settings.public_metrics), ("/", settings.web_page), ("/demo/", settings.demo))
    return frozenset(path for path, is_public in optional if is_public)


async def _service_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
    headers = {} if error.retry_after is None else {"retry-after": str(max(1, round(error.retry_after)))}
    return JSONResponse(
        error_body(error.code, error.message, error.param), error_kind(error.code).status, headers=headers
    )


async def _engine_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EngineError)
    return JSONResponse(error_body(error.code, error.message), error_kind(error.code).status)


async def _store_error(request: Request, error: Exception) -> JSONResponse:
    _log.error("store call failed", exc_info=error, extra={"request_id": request.state.request_id})
    message = "The store could not do that; the cause is in the server's log."
    return JSONResponse(error_body("store_failed", message), error_kind("store_failed").status)


async def _query_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return await _service_error(request, query_error(error))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code != 405:
        return JSONResponse(error_body("not_found", "There is no such route."), error.status_code)
    # Starlette names the methods of the first route of that path only.
    fitting = [route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE]
    methods = sorted({method for route in fitting for method in getattr(route, "methods", None) or ()})
    body = error_body("method_not_allowed", "This route does not know that method.")
    return JSONResponse(body, 405, headers={"allow": ", ".join(methods)})
