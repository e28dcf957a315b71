"""What arrives on a connection and is not quite a request: bounded, refused in words, or answered all the same."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import httpx
import pytest

from service.http.protocol import MAX_HEAD_BYTES
from tests.service.fake_engine import FakeEngine
from tests.service.serving import PATIENCE

BODY = b'{"prompt": "What is it?"}'
HEAD = b"POST /v1/chat HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
LIVEZ = b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n"
UPGRADE = (
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n"
)


def post(*fields: bytes, body: bytes = BODY) -> bytes:
    length = b"content-length: %d\r\n" % len(body)
    return HEAD + b"".join(fields) + length + b"\r\n" + body


def chunked(*fields: bytes, body: bytes) -> bytes:
    return HEAD + b"".join(fields) + b"transfer-encoding: chunked\r\n\r\n" + body


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


@pytest.fixture
def connection(api: httpx.Client, engine: FakeEngine) -> Iterator[socket.socket]:
    with socket.create_connection((api.base_url.host, api.base_url.port or 80), PATIENCE) as connection:
        yield connection


def statuses(connection: socket.socket, count: int) -> list[int]:
    """Of the next `count` answers, the last of which is read no further."""
    received = b""
    while len(found := re.findall(rb"HTTP/1\.1 (\d+)", received)) < count:
        piece = connection.recv(65536)
        assert piece, f"the connection ended after {received!r}"
        received += piece
    return [int(status) for status in found]


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"foo: " + b"a" * MAX_HEAD_BYTES + b"\r\n"),
        post(b"a: b\r\n" * (MAX_HEAD_BYTES // 5)),
        b"GET /livez?" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        chunked(body=chunk(BODY) + b"0\r\n" + b"a: b\r\n" * (MAX_HEAD_BYTES // 5) + b"\r\n"),
    ],
    ids=["a field", "many fields", "a URL", "trailers"],
)
def test_a_head_that_is_too_large_is_refused(
    connection: socket.socket, engine: FakeEngine, request_bytes: bytes
) -> None:
    connection.sendall(request_bytes)
    assert statuses(connection, 1) == [400]
    assert engine.submitted == 0


@pytest.mark.parametrize(
    "beginning",
    [
        HEAD + b"foo: ",
        HEAD,
        b"GET /",
        chunked(body=chunk(BODY) + b"0\r\nfoo: "),
        chunked(body=b"1;extension="),
    ],
    ids=["a value", "a name", "a URL", "a trailer", "a chunk extension"],
)
def test_what_never_ends_is_cut_off(connection: socket.socket, beginning: bytes) -> None:
    sent = 0
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        connection.sendall(beginning)
        while sent < 1000 * MAX_HEAD_BYTES:
            connection.sendall(b"a" * MAX_HEAD_BYTES)
            sent += MAX_HEAD_BYTES


def test_large_fields_within_the_limit_and_large_bodies_are_taken(
    connection: socket.socket, engine: FakeEngine
) -> None:
    long = b'{"prompt": "%s"}' % (b"a" * 10 * MAX_HEAD_BYTES)
    connection.sendall(post(b"foo: " + b"a" * (MAX_HEAD_BYTES - 1024) + b"\r\n"))
    assert statuses(connection, 1) == [200]
    connection.sendall(post(body=long) + chunked(body=chunk(long) + b"0\r\n\r\n"))
    assert statuses(connection, 2) == [200, 200]
    assert engine.submitted == 3


@pytest.mark.parametrize(
    "request_bytes",
    [
        chunked(b"content-length: 4\r\n", body=b"0\r\n\r\n"),
        post(b"content-length: 3\r\n"),
        post(b"transfer-encoding: xchunked\r\n"),
        HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        chunked(b"transfer-encoding: chunked\r\n", body=b"0\r\n\r\n"),
        post(b"content-length : 4\r\n"),
        post(b"foo: bar\r\n content-length: 4\r\n"),
        post(b"foo: a\0b\r\n"),
        chunked(body=b"zz\r\n"),
        chunked(body=b"f" * 17 + b"\r\n"),
    ],
    ids=[
        "length and chunks",
        "two lengths",
        "an encoding that is none",
        "an encoding behind chunks",
        "chunks twice",
        "a space in a name",
        "a folded line",
        "a zero byte",
        "a size that is none",
        "a size beyond all sizes",
    ],
)
def test_what_two_servers_could_read_differently_is_refused(
    connection: socket.socket, engine: FakeEngine, request_bytes: bytes
) -> None:
    connection.sendall(request_bytes + LIVEZ)
    assert statuses(connection, 1) == [400]
    rest = b""
    while piece := connection.recv(65536):
        rest += piece
    assert b"HTTP/1.1" not in rest, "what followed was taken for a request of its own"
    assert engine.submitted == 0


@pytest.mark.parametrize(
    "request_bytes",
    [b"\x16\x03\x01 hello\r\n\r\n", b"GET /livez HTTP/1.1\nhost: x\n\n", b"CONNECT a:80 HTTP/1.1\r\n\r\n"],
    ids=["TLS", "bare line feeds", "a tunnel"],
)
def test_what_is_no_request_is_refused(connection: socket.socket, request_bytes: bytes) -> None:
    connection.sendall(request_bytes)
    assert statuses(connection, 1) == [400]


def test_requests_in_a_row_are_answered_in_their_order(connection: socket.socket, engine: FakeEngine) -> None:
    connection.sendall(post() + LIVEZ + post(body=b"{"))
    assert statuses(connection, 3) == [200, 200, 400]
    assert engine.submitted == 1


@pytest.mark.parametrize("request_bytes", [post(UPGRADE), chunked(UPGRADE, body=chunk(BODY) + b"0\r\n\r\n")])
@pytest.mark.parametrize("cut", [0, 1, 10, len(BODY) + 20])
def test_an_offer_of_http_2_is_ignored_and_the_request_answered(
    connection: socket.socket, engine: FakeEngine, request_bytes: bytes, cut: int
) -> None:
    """In one piece or two, and the connection goes on."""
    connection.sendall(request_bytes[: len(request_bytes) - cut])
    connection.sendall(request_bytes[len(request_bytes) - cut :])
    assert statuses(connection, 1) == [200]
    assert engine.submitted == 1
    connection.sendall(post())
    assert statuses(connection, 1) == [200]


def test_a_websocket_is_answered_as_a_plain_request(connection: socket.socket) -> None:
    connection.sendall(LIVEZ[:-2] + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n")
    assert statuses(connection, 1) == [200]


def test_a_body_that_waits_to_be_asked_for_is_asked_for(connection: socket.socket) -> None:
    head, _, body = post(b"expect: 100-continue\r\n").partition(b"\r\n\r\n")
    connection.sendall(head + b"\r\n\r\n")
    assert statuses(connection, 1) == [100]
    connection.sendall(body)
    assert statuses(connection, 1) == [200]
