"""Is it alive, is it ready, what is it, how is it doing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import JSONResponse, PlainTextResponse, Response

from service.context import Services
from service.errors import RequestError
from service.http.openapi import error_answers
from service.observability.metrics import CONTENT_TYPE
from service.operator.answer_schemas import LivezBody, ModelBody, ModelsBody, ReadyzBody, VersionBody
from service.operator.figures import StoreFigures
from service.operator.public import for_strangers
from service.shipped import limits_of
from service.version import VERSION

_NOT_NOW: Final = "Not now; the body says why."
_NO_MODEL: Final = error_answers(404)


def health_router(services: Services) -> APIRouter:
    """Liveness, readiness, version, metrics and the list of models over `services`."""
    endpoint = HealthEndpoint(services)
    router = APIRouter(tags=["health"])
    get: dict[str, Any] = {"methods": ["GET"]}
    for path, handler, body in (
        ("/livez", endpoint.livez, LivezBody),
        ("/readyz", endpoint.readyz, ReadyzBody),
        ("/health", endpoint.readyz, ReadyzBody),
    ):
        unwell: dict[int | str, dict[str, Any]] = {503: {"description": _NOT_NOW, "model": body}}
        router.add_api_route(
            path, handler, operation_id=path[1:], response_model=body, responses=unwell, **get
        )
        router.add_api_route(path, handler, methods=["HEAD"], include_in_schema=False)
    router.add_api_route("/version", endpoint.version, response_model=VersionBody, **get)
    router.add_api_route("/metrics", endpoint.metrics, response_class=PlainTextResponse, **get)
    router.add_api_route("/v1/models", endpoint.models, response_model=ModelsBody, **get)
    router.add_api_route(
        "/v1/models/{name:path}", endpoint.model, response_model=ModelBody, responses=dict(_NO_MODEL), **get
    )
    return router


class HealthEndpoint:
    """Answers from what the engine said last and hardly waits for the store: these routes must answer when
    nothing else does."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._figures = StoreFigures(services.client.cache)
        self._started = int(time.time())

    async def livez(self) -> JSONResponse:
        """200 while the worker makes progress or is idle. Restart the process if it stays 503."""
        age, limit = self._services.client.status().progress_seconds, self._services.settings.stall_after
        if age > limit:
            return JSONResponse({"status": "stalled", "progress_age_seconds": round(age, 3)}, 503)
        return JSONResponse({"status": "alive", "progress_age_seconds": round(age, 3)})

    async def readyz(self) -> JSONResponse:
        """200 if a request sent now would be worked on; else 503 with the reasons. `degraded` is what is wrong
        with the store or the model's reuse, without which requests are answered all the same."""
        stats = await self._figures.recent()
        reasons = list(self._reasons())  # asked for last: a worker that hangs may have been noticed meanwhile
        degraded = ["the store gives no answer"] if stats is None else list(stats.degraded)
        degraded += self._services.client.status().degraded
        body = {
            "status": "unready" if reasons else "ready",
            "reasons": [for_strangers(reason) for reason in reasons],
            "degraded": [for_strangers(trouble) for trouble in degraded],
        }
        return JSONResponse(body, 503 if reasons else 200)

    def _reasons(self) -> Iterator[str]:
        status, admission = self._services.client.status(), self._services.admission
        if admission.draining:
            yield "draining"
        if admission.full:
            yield "as many requests as allowed are being worked on"
        if status.progress_seconds > self._services.settings.stall_after:
            yield "the worker makes no progress"
        yield from status.reasons or (() if status.ready else ("the engine is not ready",))

    async def version(self) -> JSONResponse:
        """The program and the model it runs."""
        info = self._services.client.info
        model = {"name": self._services.model_names[0], "device": info.device, "dtype": info.dtype}
        return JSONResponse({"version": VERSION, "model": model})

    async def metrics(self) -> Response:
        """Prometheus text."""
        text = self._services.metrics.render(self._services.client.status(), await self._figures.now())
        return Response(text, media_type=CONTENT_TYPE)

    async def models(self) -> JSONResponse:
        """The models, which is one, in OpenAI's shape with what it can read and how it may be asked."""
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, name: str) -> JSONResponse:
        """One model."""
        if name not in self._services.model_names:
            raise RequestError("model_not_found", "There is no model of that name here.")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        info = self._services.client.info
        return {
            "id": self._services.model_names[0],
            "object": "model",
            "created": self._started,
            "owned_by": "conduit",
            "description": limits_of(self._services.settings.model),
            "max_model_len": info.max_context,
            "architecture": {"input_modalities": ["text", "image"], "output_modalities": ["text"]},
            "policies": list(info.policies),
            "default_policy": info.default_policy,
            "default_refresh_ratio": info.default_refresh_ratio,
        }
