"""`create_app`: the HTTP side over any `EngineClient`. Everything it needs is given; it keeps no globals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import httpcore
from fastapi import APIRouter, FastAPI

from engine.client import EngineClient
from service.chat.routes import chat_router
from service.chat.schemas import ChatRequest
from service.chat.tokens import TOKEN_BODIES, tokens_router
from service.context import Services
from service.files.library import FileLibrary
from service.files.quota import FileLimits
from service.http.admission import Admission, Shared
from service.http.browsers import BrowserGuard
from service.http.cors import add_cors
from service.http.disconnect import LastOrders
from service.http.error_handlers import add_error_handlers
from service.http.middleware import Access, Gatekeeper
from service.http.openapi import openapi_of
from service.http.tenancy import KeyRing
from service.images.addresses import HostPolicy, Resolver, SystemResolver
from service.images.decoder import Decoder
from service.images.decoder_child import DecodeRules, memory_needed
from service.images.fetch import Fetcher
from service.images.known_images import UploadIndex, UrlIndex
from service.images.loader import ImageLoader, Known, LoadLimits, Sources
from service.images.local import LocalFolders
from service.images.picture_memory import PictureMemory
from service.messages.routes import messages_router
from service.messages.schemas import CountRequest, MessagesRequest
from service.observability.metrics import Metrics
from service.operator.cache import cache_router
from service.operator.care import cache_care_router
from service.operator.health import health_router
from service.operator.schemas import OPERATOR_BODIES
from service.responses.routes import responses_router
from service.responses.schemas import ResponsesRequest
from service.settings import Settings
from service.uploads.routes import files_router
from service.version import VERSION
from service.web.page import FILES_PREFIX, Sample, page_router

_DRAIN_POLL: Final = 0.05
_LARGEST_REQUESTS: Final = 4
"""Of as many pixels as a request may have, for whose pictures a tenant gets memory at the same time."""
_DESCRIPTION: Final = "Questions about images, answered from a persistent store of their key/value tensors."


def create_app(
    settings: Settings,
    client: EngineClient,
    extra_routers: Sequence[APIRouter] = (),
    samples: Sequence[Sample] = (),
    resolver: Resolver | None = None,
) -> FastAPI:
    """The app over `client`, which it closes when it ends. `extra_routers` are mounted as they are (the
    demo's pages under `/demo/`, which need no key in demo mode), `samples` are offered by the web page.
    `app.state.services` is there for the composition root, for instance to stop taking requests on SIGTERM;
    no route reads it."""
    names = resolver or SystemResolver(threads=_shared(settings, settings.fetch_concurrency).limit)
    decoder = Decoder(_decode_rules(settings), _shared(settings, settings.decode_concurrency))
    metrics = Metrics()
    files = FileLibrary(_files_path(settings), _file_limits(settings), metrics)
    local = LocalFolders(settings.local_folders, settings.max_image_bytes)
    sources = Sources(_fetcher(settings, names), decoder, files, local)
    images = _image_loader(settings, sources, metrics)
    services = Services(settings, client, metrics, images, files, Admission(settings), LastOrders())

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        closing = asyncio.create_task(_close_when_draining(services))
        await files.start()
        try:
            yield
        finally:
            services.admission.draining = True
            await closing
            decoder.close()
            await files.close()
            names.close()

    app = FastAPI(
        title="Conduit",
        version=VERSION,
        description=_DESCRIPTION,
        lifespan=lifespan,
        telemetry={"tracing": False},  # its spans would be a second trace beside ours (service.tracing)
        redirect_slashes=False,  # to its own address as it sees it: plain HTTP behind a proxy that ends TLS
        docs_url=None,  # they load scripts from elsewhere
        redoc_url=None,
    )
    app.state.services = services
    _add_routes(app, services, samples, extra_routers)
    _close_to_strangers(app, settings)
    add_error_handlers(app)
    return app


def _add_routes(
    app: FastAPI, services: Services, samples: Sequence[Sample], extra_routers: Sequence[APIRouter]
) -> None:
    own = (
        chat_router,
        messages_router,
        responses_router,
        tokens_router,
        files_router,
        cache_router,
        cache_care_router,
        health_router,
    )
    page = [page_router(samples)] if services.settings.web_page else []
    for router in (*(make(services) for make in own), *page, *extra_routers):
        app.include_router(router)


def _close_to_strangers(app: FastAPI, settings: Settings) -> None:
    keys = KeyRing(settings)
    access = Access(keys, _public_paths(settings))
    guard = BrowserGuard(settings.trusted_hosts, settings.cors_origins)
    app.add_middleware(Gatekeeper, keys=keys, access=access, guard=guard)
    if settings.cors_origins:
        add_cors(app, settings.cors_origins)  # outermost: a browser asks for leave without the key
    bodies = (ChatRequest, MessagesRequest, CountRequest, ResponsesRequest, *TOKEN_BODIES, *OPERATOR_BODIES)
    app.openapi = openapi_of(app, bodies, access.needs_key)  # type: ignore[method-assign]


async def _close_when_draining(services: Services) -> None:
    """Have the engine end what runs while its clients are still connected, so that a stream which does not
    make it ends with an error event and not in the middle."""
    # The flag is set in a signal handler, from where nothing in a loop can be woken safely.
    while not services.admission.draining:
        await asyncio.sleep(_DRAIN_POLL)
    await services.client.close(services.settings.drain_timeout)


def _shared(settings: Settings, of_one: int) -> Shared:
    """Something of which a tenant may hold `of_one`, with as much again for the others where there are others."""
    several = len(settings.api_keys) > 1
    return Shared(2 * of_one if several else of_one, several)


def _decode_rules(settings: Settings) -> DecodeRules:
    return DecodeRules(
        formats=settings.image_formats,
        picture_pixels=settings.max_image_pixels,
        request_pixels=settings.max_request_pixels,
        seconds=settings.decode_timeout,
        memory_bytes=memory_needed(
            settings.max_image_pixels, max(settings.max_image_bytes, settings.max_file_bytes)
        ),
        document_pages=settings.max_pdf_pages,
        document_dpi=settings.pdf_dpi,
    )


def _files_path(settings: Settings) -> Path:
    return settings.store_path / "files" if settings.files_path is None else settings.files_path


def _file_limits(settings: Settings) -> FileLimits:
    return FileLimits(
        file_bytes=max(settings.max_image_bytes, settings.max_file_bytes),
        tenant_bytes=settings.file_quota_bytes,
        tenant_files=settings.file_quota_count,
        seconds=settings.file_ttl,
    )


def _fetcher(settings: Settings, resolver: Resolver) -> Fetcher:
    hosts = HostPolicy(settings.allowed_hosts, settings.allowed_private_hosts, resolver)
    return Fetcher(
        hosts,
        settings.max_image_bytes,
        settings.fetch_timeout,
        httpcore.default_ssl_context(),
        _shared(settings, settings.fetch_concurrency),
    )


def _image_loader(settings: Settings, sources: Sources, metrics: Metrics) -> ImageLoader:
    limits = LoadLimits(settings.max_image_bytes, settings.max_request_pixels)
    known = Known(UrlIndex(settings.url_cache_bytes), UploadIndex(settings.upload_cache_bytes))
    pixels = _shared(settings, _LARGEST_REQUESTS * 3 * settings.max_request_pixels)
    return ImageLoader(sources, known, PictureMemory(pixels), metrics, limits)


def _public_paths(settings: Settings) -> frozenset[str]:
    page = {"/", FILES_PREFIX, "/samples.json"} if settings.web_page else set()
    optional = {
        path for path, public in (("/metrics", settings.public_metrics), ("/demo/", settings.demo)) if public
    }
    return frozenset(page | optional)
