"""The body of an error in the dialect of the route that was asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import JSONResponse

from service.errors import error_body, error_kind

ANTHROPIC_PREFIX: Final = "/v1/messages"
_ANTHROPIC_TYPES: Final[Mapping[int, str]] = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    429: "rate_limit_error",
    499: "invalid_request_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_response(
    path: str, code: str, message: str, param: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """What answers a request for `path` that came to nothing."""
    shape = anthropic_error if path.startswith(ANTHROPIC_PREFIX) else error_body
    return JSONResponse(shape(code, message, param), error_kind(code).status, headers=headers)


def anthropic_error(code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """Anthropic's error body, with our stable `code` and the field at fault beside its own."""
    kind = _ANTHROPIC_TYPES.get(error_kind(code).status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": message, "param": param, "code": code}}
