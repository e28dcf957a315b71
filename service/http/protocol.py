"""uvicorn's HTTP protocol over httptools, which takes a third less time for a request than h11 does, with bounds: to
what is not body, to requests ahead of their answers, and to the time that a client may keep a connection waiting."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from service.http.connections import Alarm, Connections, Patience
from service.http.transport import LingeringTransport, without_chunks

MAX_HEAD_BYTES: Final = 64 * 1024
MOST_AHEAD: Final = 16
"""Requests that a client may send before the first of them is answered."""
_PER_FIELD: Final = 4
"""`: ` and the line's end; without them ever so many empty fields would count as nothing."""
_SEND_BUFFER: Final = 128 * 1024
"""Of the system, for a connection: what a client leaves unread is not to fill its memory."""
_CHUNKS, _CHUNK_BYTES = 16 * 1024, 64
"""Beyond so many chunks of a body they must have so many bytes on average: each costs as much as some thousands."""
_FIRST_PROBE = 0.05
"""Seconds, doubled from time to time. Of a client that left the second one tells, if the first has been there."""
_FULL: Final = "503 Service Unavailable", "Too many connections; try again later."
_LATE: Final = "408 Request Timeout", "The head of the request took too long to arrive."


class OutOfBounds(Exception):
    """Raised into the parser, which takes it for a malformed request."""


class BoundedProtocol(HttpToolsProtocol):
    """Refuses a request whose URL, header and trailer fields exceed `MAX_HEAD_BYTES` with a 400. The parser tells
    of a field when it is complete: what it collects until then is bounded as well."""

    transport: LingeringTransport  # type: ignore[assignment]

    def __init__(self, connections: Connections, patience: Patience, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._connections = connections
        self._patience = patience
        self._late = Alarm(self._is_late)
        self._unread = Alarm(self._is_not_read)
        self._probe = Alarm(self._send_probe)
        self._probe_again = _FIRST_PROBE
        self._answering: RequestResponseCycle | None = None
        self._in_message = self._in_body = False  # of what arrives
        self._head = self._collected = self._chunks = self._body = 0
        self._deaf = self._going = False

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(LingeringTransport(transport, self._lingers))  # type: ignore[arg-type]
        if (connection := transport.get_extra_info("socket")) is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        if self._connections.arrived(self):
            self._late.set(self._patience.head)
        else:
            self._dismiss(*_FULL)

    def connection_lost(self, exc: Exception | None) -> None:
        for alarm in (self._late, self._unread, self._probe):
            alarm.off()
        self._connections.left(self)
        if self._answering is not None and not self._answering.response_complete:
            # uvicorn tells the latest request only, which may stand behind this one.
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def make_room(self) -> None:
        self.transport.abort()

    def shutdown(self) -> None:
        self._going = True
        super().shutdown()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """A client that has said all it wants to say still gets its answer. One that leaves looks the same, until
        something is sent to it; where an answer has begun already it is taken for that."""
        answering = self._answering
        if answering is None or answering.response_started or self._in_message or self._deaf:
            return None
        self.cycle.keep_alive = False
        self._probe.set(_FIRST_PROBE)
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.set(self._patience.send)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._unread.off()

    @property
    def _unanswered(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _lingers(self) -> bool:
        """Told that the connection closes: true if its client owes the rest of a body that was answered already."""
        if self.transport.get_write_buffer_size():
            self._unread.set(self._patience.send)
        if self._deaf or self._going or not self._in_body:
            return False
        self._deaf = True
        self._late.set(self._patience.head)
        return True

    def _dismiss(self, status: str, words: str) -> None:
        self._deaf = True
        fields = "content-type: text/plain; charset=utf-8\r\nconnection: close"
        self.transport.write(
            f"HTTP/1.1 {status}\r\n{fields}\r\ncontent-length: {len(words)}\r\n\r\n{words}".encode()
        )
        self.transport.close()

    def _is_late(self) -> None:
        if self._in_message and not self._in_body and not self._unanswered:
            self._dismiss(*_LATE)
        else:
            self.transport.abort()

    def _is_not_read(self) -> None:
        self.logger.warning("a client has not read its answer for %g s", self._patience.send)
        self.transport.abort()

    def _send_probe(self) -> None:
        cycle = self._answering
        if cycle is not None and cycle.scope["http_version"] == "1.1" and not cycle.response_started:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._probe.set(self._probe_again)
            self._probe_again *= 2

    # What arrives

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._collected += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self._collected > MAX_HEAD_BYTES and not self._deaf:
            self._refuse("Invalid HTTP request received: its header is too large.")
        if not self._unanswered and self.timeout_keep_alive_task is None:
            self._late.set(self._patience.head)

    def _parse(self, data: bytes) -> None:
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._without_upgrade() + data[upgrade.args[0] :]
            except httptools.HttpParserError:
                self._refuse("Invalid HTTP request received.")
                return

    def on_message_begin(self) -> None:
        self._in_message = True
        self._head = self._chunks = self._body = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + _PER_FIELD)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self._asks_to_upgrade():
            return
        if len(self.pipeline) >= MOST_AHEAD:
            raise OutOfBounds
        self._late.off()
        ahead = self._unanswered
        super().on_headers_complete()
        self._in_body = True
        if not ahead:
            self._connections.owes_a_body(self)

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > _CHUNKS + self._body // _CHUNK_BYTES:
            raise OutOfBounds

    def on_body(self, body: bytes) -> None:
        self._collected = 0
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._collected = 0
        if self._asks_to_upgrade():
            return
        self._in_message = self._in_body = False
        super().on_message_complete()
        if self._unanswered:
            self._connections.waits_for_us(self)
        else:  # the rest of a body that was refused
            self._late.off()
            self._is_idle()

    def _count(self, nbytes: int) -> None:
        self._head += nbytes
        if self._head > MAX_HEAD_BYTES:
            raise OutOfBounds

    def _asks_to_upgrade(self) -> bool:
        # A tunnel is not an upgrade that could be ignored: uvicorn refuses it.
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _without_upgrade(self) -> bytes:
        """The head that was read, to be read again without its wish to upgrade, behind which the parser sees no body.
        Java's client, for one, offers HTTP/2 in every first request of a connection."""
        lines = [b"%s %s HTTP/1.1" % (self.parser.get_method(), self.url)]
        lines += [b"%s: %s" % field for field in self.headers if field[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._collected = 0
        return b"\r\n".join([*lines, b"", b""])

    def _refuse(self, message: str) -> None:
        """Nothing more is understood of this connection. What was asked before is answered first."""
        self.logger.warning(message)
        self._deaf = True
        if not self._unanswered:
            self.send_400_response(message)
        elif self._in_body and self.cycle is self._answering:
            if self.cycle.response_started:
                self.transport.close()
            else:
                self.send_400_response(message)
        else:
            self._end_before_what_is_malformed()

    def _end_before_what_is_malformed(self) -> None:
        if self._in_body:
            self.pipeline.popleft()  # the latest, which waits for its turn
        assert self._answering is not None
        last = self.pipeline[0][0] if self.pipeline else self._answering
        last.keep_alive = False

    # The answers

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        old = cycle.scope["http_version"] == "1.0"
        super()._start_asgi_task(cycle, without_chunks(cycle, app) if old else app)

    def on_response_complete(self) -> None:
        self._probe.off()
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._unanswered:  # the next one, which was sent ahead
            if self._in_body and not self.pipeline:
                self._connections.owes_a_body(self)
        elif self._in_message:
            self._late.set(self._patience.head)
        else:
            self._is_idle()

    def _is_idle(self) -> None:
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
        self._connections.is_silent(self)
