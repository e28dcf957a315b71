"""What a route does not read is refused: nobody shall believe that it was heeded (`evict?dry_run=true`)."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

from fastapi import Depends
from starlette.requests import ClientDisconnect, Request

from service.errors import RequestError
from service.http.disconnect import ClientGone

_SAYS_NOTHING: Final = re.compile(rb"\s*(\{\s*\}\s*)?")
_LONGEST: Final = 64
_PATIENCE_SECONDS: Final = 5.0


async def no_query(request: Request) -> None:
    """For a route that has no parameters behind '?'."""
    for name in request.query_params:
        shown = "".join(c for c in name[:_LONGEST] if c.isprintable())
        raise RequestError("unknown_parameter", f"Unknown parameter: '{shown}'.", param=shown)


async def no_body(request: Request) -> None:
    """For a route that reads no body. An empty object says nothing, and many clients send one."""
    if not await _says_nothing(request):
        raise RequestError("invalid_request", "This route takes no body.")


async def _says_nothing(request: Request) -> bool:
    length = request.headers.get("content-length", "0")
    if "transfer-encoding" in request.headers or not length.isdigit() or int(length) > _LONGEST:
        return False
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return _SAYS_NOTHING.fullmatch(await request.body()) is not None
    except ClientDisconnect:
        raise ClientGone from None
    except TimeoutError:
        return False


NO_QUERY: Final[list[Any]] = [Depends(no_query)]
NO_BODY: Final[list[Any]] = [Depends(no_body)]
NEITHER: Final[list[Any]] = [*NO_QUERY, *NO_BODY]
