"""Server-sent events as the OpenAI clients read them: `data:` lines of JSON, comments as pings, `[DONE]` at
the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, aclosing
from typing import Any, Final, Protocol

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from service.errors import ServiceError, UnavailableError, error_body
from service.http.disconnect import ClientGone, LastOrders, run_until_disconnect
from service.http.written_json import encoded

PING: Final = b": ping\n\n"
DONE: Final = b"data: [DONE]\n\n"
_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_ANY_TEXT: Final = "\0"
_HEADERS: Final = {"cache-control": "no-cache", "x-accel-buffering": "no"}


def event(body: Mapping[str, Any]) -> bytes:
    """One event. JSON escapes line breaks, so it is always one line."""
    return b"data: " + _json(body) + b"\n\n"


def named_event(name: str, body: Mapping[str, Any]) -> bytes:
    """One event of a kind, as Anthropic's and the newer of OpenAI's clients read them."""
    return b"event: " + name.encode() + b"\n" + event(body)


def text_events(make: Callable[[str], bytes]) -> Callable[[str], bytes]:
    """`make`, which gives the event of a text, for many texts: what all of them share is written once."""
    before, after = make(_ANY_TEXT).split(_json(_ANY_TEXT))
    return lambda text: before + _json(text) + after


def _json(value: object) -> bytes:
    try:
        return _ENCODER.encode(value).encode()
    except TypeError:  # a list in it is written already
        return encoded(value)


class Words(Protocol):
    """What a stream says of its own accord, in the dialect of its events."""

    def fail(self, error: ServiceError) -> Iterator[bytes]:
        """How it ends where it failed."""
        ...

    def ping(self) -> bytes: ...


class _OpenAI:
    def fail(self, error: ServiceError) -> Iterator[bytes]:
        yield event(error_body(error.code, error.message))
        yield DONE

    def ping(self) -> bytes:
        return PING


OPENAI_WORDS: Final = _OpenAI()


class EventStream(Response):
    """Sends what `events` yields, each piece at once, and a ping when nothing was sent for `ping_interval`
    seconds. When it ends or the client leaves, `events` is closed and then `resources`, before the call
    returns. (Starlette's own streaming response leaves a generator to the collector.) After last orders it ends with an
    error event."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        resources: AsyncExitStack,
        headers: Mapping[str, str],
        ping_interval: float,
        last_orders: LastOrders,
        words: Words = OPENAI_WORDS,
    ) -> None:
        super().__init__(headers={**_HEADERS, **headers})
        del self.headers["content-length"]
        self._events = events
        self._resources = resources
        self._ping_interval = ping_interval
        self._last_orders = last_orders
        self._words = words
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        last = b""
        try:
            async with self._resources:
                await run_until_disconnect(receive, self._send(send), self._last_orders)
        except ClientGone:
            return
        except UnavailableError as error:
            last = b"".join(self._words.fail(error))
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        pinging = loop.create_task(self._ping(send))
        try:
            async with aclosing(self._events) as events:
                async for piece in events:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    self._sent_at = loop.time()
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)

    async def _ping(self, send: Send) -> None:
        """Beside the events and not between them: a timer for each of them would cost more than the event."""
        loop = asyncio.get_running_loop()
        while True:
            left = self._sent_at + self._ping_interval - loop.time()
            if left > 0:
                await asyncio.sleep(left)
            else:
                await send({"type": "http.response.body", "body": self._words.ping(), "more_body": True})
                self._sent_at = loop.time()
