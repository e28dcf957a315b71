"""What arrives on a connection and is not quite a request: bounded, refused in words, or answered all the same."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import httpx
import pytest

from engine.messages import TextDelta
from service.http.protocol import MAX_HEAD_BYTES, MOST_AHEAD
from tests.service.fake_engine import FakeEngine, accepted, says
from tests.service.http.wire import (
    BODY,
    HEAD,
    LIVEZ,
    UPGRADE,
    chunk,
    chunked,
    connect,
    post,
    statuses,
    to_the_end,
    until,
)
from tests.service.serving import eventually


@pytest.fixture
def connection(api: httpx.Client, engine: FakeEngine) -> Iterator[socket.socket]:
    with connect(api) as connection:
        yield connection


@pytest.mark.parametrize(
    "request_bytes",
    [
        post(b"foo: " + b"a" * MAX_HEAD_BYTES + b"\r\n"),
        post(b"a: b\r\n" * (MAX_HEAD_BYTES // 5)),
        b"GET /livez?" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
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
    assert b"HTTP/1.1" not in to_the_end(connection), "what followed was taken for a request of its own"
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


def test_offers_of_http_2_in_a_row_are_ignored_too(connection: socket.socket, engine: FakeEngine) -> None:
    connection.sendall(post(UPGRADE) * MOST_AHEAD)
    assert statuses(connection, MOST_AHEAD) == [200] * MOST_AHEAD
    assert engine.submitted == MOST_AHEAD


@pytest.mark.parametrize("request_bytes", [LIVEZ, post(UPGRADE), LIVEZ[:-2] + UPGRADE + b"\r\n"])
def test_requests_far_ahead_of_their_answers_end_the_connection(
    connection: socket.socket, request_bytes: bytes
) -> None:
    connection.sendall(request_bytes * 1000)
    answers = to_the_end(connection)
    assert answers.count(b"HTTP/1.1 200 ") == MOST_AHEAD + 1 == answers.count(b"HTTP/1.1 ")


STREAMED = b'{"prompt": "What is it?", "stream": true}'


@pytest.mark.parametrize(
    "behind",
    [b"no request\r\n\r\n", HEAD + b"content-length : 4\r\n\r\n", chunked(body=b"zz\r\n"), LIVEZ + b"\0\0"],
    ids=["nothing", "a head", "a body", "behind another one"],
)
def test_what_is_malformed_behind_a_request_does_not_touch_its_answer(
    connection: socket.socket, engine: FakeEngine, behind: bytes
) -> None:
    engine.script = says("one two three four", pause=0.02)
    connection.sendall(post(body=STREAMED) + behind + LIVEZ)
    answers = to_the_end(connection)
    assert answers.count(b"data: [DONE]\n\n\r\n0\r\n\r\n") == 1
    assert answers.count(b"HTTP/1.1 ") == answers.count(b"HTTP/1.1 200 ") == 1 + behind.startswith(LIVEZ)


def test_leaving_ends_a_stream_whatever_was_sent_behind_it(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = lambda request: [accepted(request), TextDelta(request.id, "one"), 3600.0]
    with connect(api) as connection:
        connection.sendall(post(body=STREAMED) + LIVEZ)
        until(connection, b"one")
    eventually(lambda: (engine.open, engine.aborted) == (0, 1), "the stream ends in the engine")


def test_chunks_of_nearly_nothing_are_taken_up_to_a_number(
    connection: socket.socket, engine: FakeEngine
) -> None:
    connection.sendall(chunked(body=b"".join(chunk(b"%c" % byte) for byte in BODY) + b"0\r\n\r\n"))
    assert statuses(connection, 1) == [200]
    connection.sendall(chunked(body=chunk(b"[") + chunk(b" ") * 40_000))
    assert statuses(connection, 1) == [400]


@pytest.mark.parametrize("stream", [True, False])
def test_f15_http_1_0_gets_a_plain_body_and_the_end_of_the_connection(
    connection: socket.socket, engine: FakeEngine, stream: bool
) -> None:
    head = HEAD.replace(b"HTTP/1.1", b"HTTP/1.0")
    connection.sendall(post(head=head, body=STREAMED if stream else BODY))
    fields, _, body = to_the_end(connection).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in fields and b"connection: close" in fields
    if stream:
        assert b"content-length" not in fields
        assert all(line.startswith(b"data: ") for line in body.split(b"\n\n") if line)
        assert body.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(body)["choices"][0]["message"]["content"] == "The total is 42."


def test_a_websocket_is_answered_as_a_plain_request(connection: socket.socket) -> None:
    connection.sendall(LIVEZ[:-2] + b"connection: upgrade\r\nupgrade: websocket\r\n\r\n")
    assert statuses(connection, 1) == [200]


def test_a_body_that_waits_to_be_asked_for_is_asked_for(connection: socket.socket) -> None:
    head, _, body = post(b"expect: 100-continue\r\n").partition(b"\r\n\r\n")
    connection.sendall(head + b"\r\n\r\n")
    assert statuses(connection, 1) == [100]
    connection.sendall(body)
    assert statuses(connection, 1) == [200]
