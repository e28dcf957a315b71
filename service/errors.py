"""Errors of the HTTP side, and the one table from error code to HTTP status and OpenAI error type.

ServiceError
|- RequestError             the request as sent cannot be served (4xx)
|  `- ImageError            one of its images cannot be used
`- UnavailableError         it could be served at another time (429, 5xx)

Every message is written by us. Text of libraries, addresses, paths, payloads and URLs (they may bear tokens)
never get into one: an image is named by its place in the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class ErrorKind:
    status: int
    type: str


_INVALID: Final = ErrorKind(400, "invalid_request_error")
_SERVER: Final = ErrorKind(500, "server_error")
_NAME_SHOWN: Final = 64

ERROR_TABLE: Final[Mapping[str, ErrorKind]] = {
    # the request
    "invalid_json": _INVALID,
    "invalid_request": _INVALID,
    "missing_parameter": _INVALID,
    "unknown_parameter": _INVALID,
    "unsupported_parameter": _INVALID,
    "too_many_images": _INVALID,
    "body_timeout": ErrorKind(408, "invalid_request_error"),
    "request_too_large": ErrorKind(413, "invalid_request_error"),
    "unsupported_media_type": ErrorKind(415, "invalid_request_error"),
    # its images
    "invalid_image": _INVALID,
    "invalid_image_url": _INVALID,
    "unsupported_image_format": _INVALID,
    "image_too_large": _INVALID,
    "image_url_blocked": _INVALID,
    "image_fetch_failed": _INVALID,
    "image_fetch_timeout": _INVALID,
    "image_decode_timeout": _INVALID,
    "image_decode_failed": _SERVER,
    # uploaded files
    "invalid_multipart": _INVALID,
    "invalid_document": _INVALID,
    "document_locked": _INVALID,
    "too_many_pages": _INVALID,
    "file_quota_exceeded": ErrorKind(403, "permission_error"),
    "file_not_found": ErrorKind(404, "not_found_error"),
    "file_damaged": ErrorKind(410, "not_found_error"),
    "file_too_large": ErrorKind(413, "invalid_request_error"),
    "storage_failed": ErrorKind(503, "server_error"),
    "storage_full": ErrorKind(507, "server_error"),
    # who asks for what
    "invalid_api_key": ErrorKind(401, "authentication_error"),
    "admin_key_required": ErrorKind(403, "permission_error"),
    "host_not_allowed": ErrorKind(403, "permission_error"),
    "origin_not_allowed": ErrorKind(403, "permission_error"),
    "not_found": ErrorKind(404, "not_found_error"),
    "model_not_found": ErrorKind(404, "not_found_error"),
    "entry_not_found": ErrorKind(404, "not_found_error"),
    "method_not_allowed": ErrorKind(405, "invalid_request_error"),
    # the engine (see engine.errors)
    "invalid_prompt": _INVALID,
    "invalid_sampling": _INVALID,
    "invalid_constraint": _INVALID,
    "unsupported_tools": _INVALID,
    "context_length_exceeded": _INVALID,
    "unknown_policy": _INVALID,
    "invalid_refresh_ratio": _INVALID,
    "kv_too_large": _INVALID,
    "too_much_to_explain": _INVALID,
    "aborted": ErrorKind(499, "invalid_request_error"),
    "engine_stopped": ErrorKind(503, "server_error"),
    "not_finite": _SERVER,
    "internal_error": _SERVER,
    # load and time
    "queue_full": ErrorKind(429, "rate_limit_error"),
    "rate_limited": ErrorKind(429, "rate_limit_error"),
    "draining": ErrorKind(503, "server_error"),
    "store_failed": ErrorKind(503, "server_error"),
    "request_timeout": ErrorKind(504, "server_error"),
}


def error_kind(code: str) -> ErrorKind:
    """Status and type of `code`; a code that nobody registered is an internal error, never a crash."""
    return ERROR_TABLE.get(code, _SERVER)


def error_body(code: str, message: str, param: str | None = None) -> dict[str, Any]:
    """The OpenAI error body; all four keys are always there."""
    return {"error": {"message": message, "type": error_kind(code).type, "param": param, "code": code}}


def shown(name: str) -> str:
    """A name that the caller made up: cut, and without what cannot be shown."""
    return "".join(character for character in name[:_NAME_SHOWN] if character.isprintable())


class ServiceError(Exception):
    """Base of the tree. `param` is the path of the request field at fault, `retry_after` is in seconds."""

    def __init__(
        self, code: str, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after


class RequestError(ServiceError):
    """The request as sent cannot be served."""


class ImageError(RequestError):
    """An image cannot be used. Raised without a place by fetch and decode, which do not know it; see `at`."""

    def at(self, number: int, param: str) -> ImageError:
        """The same error, naming the image by its place: `number` counts from 1, `param` is the field."""
        return ImageError(self.code, f"Image {number}: {self.message}", param=param)


class UnavailableError(ServiceError):
    """The request could be served at another time."""
