"""How an answer leaves: a connection is closed so that its client can read what was said; HTTP/1.0 gets no chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent, Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class LingeringTransport:
    """A transport that is closed in two steps where its client is still sending a body that was answered already: a
    system that closes with bytes unread takes back what it has not delivered yet. `lingers` is asked whether that is
    so."""

    def __init__(self, transport: asyncio.Transport, lingers: Callable[[], bool]) -> None:
        self._transport = transport
        self._lingers = lingers
        self._said_goodbye = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._said_goodbye or self._transport.is_closing()

    def close(self) -> None:
        if self.is_closing():
            return
        if self._lingers():
            self._said_goodbye = True
            self._transport.write_eof()
        else:
            self._transport.close()


def without_chunks(cycle: RequestResponseCycle, app: ASGI3Application) -> ASGI3Application:
    """`app` for a client that knows no chunks: a body of unknown length ends with its connection."""

    async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        unknown = False

        async def plainly(message: ASGISendEvent) -> None:
            nonlocal unknown
            if message["type"] == "http.response.start":
                unknown = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
                if unknown:
                    cycle.chunked_encoding = False
            elif unknown and message["type"] == "http.response.body":
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, plainly)

    return answer
