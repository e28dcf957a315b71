"""The body of a request -> wire model: how large it may be, how long it may take, and that it is JSON at all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request

from service.errors import RequestError
from service.http.admission import Admission, BodyShare
from service.http.disconnect import ClientGone
from service.http.json_reader import COMPRESSED, PIECE_BYTES, JsonLimits, JsonReader
from service.http.validation import validated
from service.http.wire import WireModel

Model = TypeVar("Model", bound=WireModel)

_JSON: Final = JsonLimits()
_UNICODE: Final = frozenset({"", "utf-8", "utf8", "us-ascii", "ascii"})


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """How large a body may be and how long it may take to arrive. `admission` bounds what all bodies in work hold
    of the memory, and each tenant's part of that."""

    max_bytes: int
    seconds: float
    admission: Admission


async def read_body(request: Request, model: type[Model], limits: BodyLimits) -> Model:
    """The body of `request` as `model`. Raises `ServiceError`, or `ClientGone` if it never arrives whole."""
    with limits.admission.body(request.state.tenant) as share:
        return await receive_body(request, model, limits, share)


async def receive_body(request: Request, model: type[Model], limits: BodyLimits, share: BodyShare) -> Model:
    """As `read_body`, counted into `share`, which the caller keeps for as long as it keeps the contents."""
    _check_head(request, limits.max_bytes)
    try:
        async with asyncio.timeout(limits.seconds):
            value = await _receive(request, limits.max_bytes, share)
    except TimeoutError:
        message = f"The body took longer than {limits.seconds:g} s to arrive; send less, or faster."
        raise RequestError("body_timeout", message) from None
    except ClientDisconnect:
        raise ClientGone from None
    return validated(value, model)


def _check_head(request: Request, max_bytes: int) -> None:
    """Refuse what can be known without the body."""
    media_type, _, parameters = request.headers.get("content-type", "").partition(";")
    media_type = media_type.strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        message = "The body must be JSON: send 'content-type: application/json'."
        raise RequestError("unsupported_media_type", message)
    if _charset(parameters) not in _UNICODE:
        raise RequestError("unsupported_media_type", "The body must be in UTF-8, and so must its 'charset'.")
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise RequestError("unsupported_media_type", COMPRESSED)
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)


def _charset(parameters: str) -> str:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"').lower()
    return ""


async def _receive(request: Request, max_bytes: int, share: BodyShare) -> Any:
    reader = JsonReader(_JSON)
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise _too_large(max_bytes)
        share.grow(len(chunk))
        for start in range(0, len(chunk), PIECE_BYTES):
            if start:
                await asyncio.sleep(0)  # others have their turn
            reader.feed(chunk[start : start + PIECE_BYTES])
    return reader.finish()


def _too_large(max_bytes: int) -> RequestError:
    message = (
        f"The body is larger than {max_bytes} bytes; send images by URL, smaller, or in several requests."
    )
    return RequestError("request_too_large", message)
