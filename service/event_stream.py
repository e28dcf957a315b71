"""Server-sent events as the OpenAI clients read them: `data:` lines of JSON, comments as pings, `[DONE]` at
the end."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.disconnect import ClientGone, run_until_disconnect

PING: Final = b": ping\n\n"
DONE: Final = b"data: [DONE]\n\n"
_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def event(body: Mapping[str, Any]) -> bytes:
    """One event. JSON escapes line breaks, so it is always one line."""
    return b"data: " + json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


class EventStream(Response):
    """Sends what `events` yields, each piece at once. When it ends or the client leaves, `events` is closed
    and then `resources`, before the call returns. (Starlette's own streaming response leaves a generator to
    the collector.)"""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncGenerator[bytes, None], resources: AsyncExitStack, headers: Mapping[str, str]
    ) -> None:
        super().__init__(headers={**_HEADERS, **headers})
        del self.headers["content-length"]
        self._events = events
        self._resources = resources

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._resources:
                await run_until_disconnect(receive, self._send(send))
        except ClientGone:
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with aclosing(self._events) as events:
            async for piece in events:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
