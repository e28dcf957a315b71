"""Whatever a route raises -> the one error body. What nobody expected is caught in `service.http.middleware`."""

from __future__ import annotations

import logging

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Match

from engine.errors import EngineError
from service.errors import ServiceError
from service.http.error_shapes import error_response
from service.http.validation import query_error
from store.errors import StoreError

_log = logging.getLogger(__name__)
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def add_error_handlers(app: FastAPI) -> None:
    """Every error that leaves `app` has the body of `service.errors`."""
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(EngineError, _engine_error)
    app.add_exception_handler(StoreError, _store_error)
    app.add_exception_handler(RequestValidationError, _query_error)
    app.add_exception_handler(HTTPException, _http_error)


async def _service_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ServiceError)
    headers = {} if error.retry_after is None else {"retry-after": str(max(1, round(error.retry_after)))}
    return error_response(request.url.path, error.code, error.message, error.param, headers)


async def _engine_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, EngineError)
    return error_response(request.url.path, error.code, error.message)


async def _store_error(request: Request, error: Exception) -> JSONResponse:
    _log.error("store call failed", exc_info=error, extra={"request_id": request.state.request_id})
    message = "The store could not do that; the cause is in the server's log."
    return error_response(request.url.path, "store_failed", message)


async def _query_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    return await _service_error(request, query_error(error))


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code != 405:
        return error_response(request.url.path, "not_found", "There is no such route.")
    message = "This route does not know that method; 'allow' has those it does."
    headers = {"allow": ", ".join(_methods(request))}
    return error_response(request.url.path, "method_not_allowed", message, headers=headers)


def _methods(request: Request) -> list[str]:
    """Those that would be answered. Every route is asked, since no list of its methods is part of its interface."""
    scope = {"type": "http", "path": request.url.path, "root_path": "", "headers": []}
    return [
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]
