"""Requests as bytes on a connection, and what comes back."""

from __future__ import annotations

import re
import socket

import httpx

from tests.service.serving import PATIENCE

BODY = b'{"prompt": "What is it?"}'
HEAD = b"POST /v1/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
LIVEZ = b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n"
UPGRADE = (
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
)


def post(*fields: bytes, body: bytes = BODY, head: bytes = HEAD) -> bytes:
    return head + b"".join(fields) + b"content-length: %d\r\n\r\n" % len(body) + body


def chunked(*fields: bytes, body: bytes) -> bytes:
    return HEAD + b"".join(fields) + b"transfer-encoding: chunked\r\n\r\n" + body


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


def connect(api: httpx.Client) -> socket.socket:
    return socket.create_connection((api.base_url.host, api.base_url.port or 80), PATIENCE)


def statuses(connection: socket.socket, count: int) -> list[int]:
    """Of the next `count` answers, the last of which is read no further."""
    received = b""
    while len(found := re.findall(rb"HTTP/1\.1 (\d+)", received)) < count:
        piece = connection.recv(65536)
        assert piece, f"the connection ended after {received!r}"
        received += piece
    return [int(status) for status in found]


def until(connection: socket.socket, text: bytes) -> bytes:
    """All that comes up to `text`."""
    received = b""
    while text not in received:
        piece = connection.recv(65536)
        assert piece, f"the connection ended after {received!r}"
        received += piece
    return received


def to_the_end(connection: socket.socket) -> bytes:
    """All that comes until the service closes the connection."""
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received
