"""Every phase of a connection has an end, and one that keeps us waiting makes room for the next."""

from __future__ import annotations

import resource
import socket
import threading
from contextlib import ExitStack

import pytest

from engine.messages import TextDelta
from service.http.connections import Connections, most_connections
from service.settings import Settings
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, accepted, finished
from tests.service.http.wire import HEAD, LIVEZ, connect, post, statuses, to_the_end, until
from tests.service.serving import eventually

STREAM = b'{"prompt": "What is it?", "stream": true}'


class Client:
    """Somebody connected, who may have to go."""

    def __init__(self, gone: list[Client]) -> None:
        self._gone = gone

    def make_room(self) -> None:
        self._gone.append(self)


def test_who_kept_us_waiting_longest_makes_room_and_who_is_worked_on_never_does() -> None:
    gone: list[Client] = []
    silent, slow, working, asking = (Client(gone) for _ in range(4))
    connections = Connections(4)
    for client in (working, slow, silent, asking):
        assert connections.arrived(client)
    connections.owes_a_body(slow)
    connections.waits_for_us(working)
    newest = [Client(gone) for _ in range(4)]
    assert [connections.arrived(client) for client in newest] == [True, True, True, True]
    assert gone == [silent, asking, newest[0], newest[1]], "half a body goes after all that asked nothing"
    for client in newest[2:]:
        connections.waits_for_us(client)
    last = Client(gone)
    assert connections.arrived(last) and gone[-1] is slow
    connections.waits_for_us(last)
    assert not connections.arrived(Client(gone)), "everybody who is left is worked on"
    connections.left(working)
    assert connections.arrived(Client(gone)) and len(connections) == 4


def test_who_asks_nothing_more_waits_from_then_on() -> None:
    gone: list[Client] = []
    first, second = Client(gone), Client(gone)
    connections = Connections(2)
    for client in (first, second):
        connections.arrived(client)
    connections.waits_for_us(first)
    connections.is_silent(first)
    connections.arrived(Client(gone))
    assert gone == [second]


@pytest.mark.parametrize(
    ("soft", "hard", "asked", "found"),
    [
        (1024, 4096, 4096, 1000),
        (1024, resource.RLIM_INFINITY, 1096, 1000),
        (256, 256, 256, 160),
        (1024, 1024, 1024, 928),
        (100_000, 100_000, None, 1000),
        (64, 64, 64, 8),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None, 1000),
    ],
)
def test_m2_connections_leave_descriptors_for_our_own_needs(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, asked: int | None, found: int
) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, given: limits.append(given))
    assert most_connections(Settings(max_connections=1000, fetch_concurrency=16)) == found
    if asked in (None, soft):
        assert limits in ([], [(soft, hard)])
    else:
        assert limits == [(min(asked or 0, 1096), hard)]


@pytest.mark.parametrize("begun", [b"GET /livez HTTP/1.1\r\nhost: local", b"P", HEAD])
def test_f7_a_head_that_does_not_end_is_a_408(start: Start, begun: bytes) -> None:
    with connect(start(head_timeout=0.3)) as connection:
        connection.sendall(begun)
        answer = to_the_end(connection)
    assert answer.startswith(b"HTTP/1.1 408 ") and b"took too long" in answer


@pytest.mark.parametrize(
    ("begun", "more"),
    [(b"", b"\r\n"), (b"GET /", b"a"), (HEAD, b"a: b\r\n")],
    ids=["blanks", "a URL", "fields"],
)
def test_f7_a_head_that_comes_bit_by_bit_has_no_more_time(start: Start, begun: bytes, more: bytes) -> None:
    with connect(start(head_timeout=0.5)) as connection:
        connection.sendall(begun)
        with pytest.raises(OSError):
            for _ in range(400):
                threading.Event().wait(0.05)
                connection.sendall(more)


def test_f7_who_says_nothing_at_all_is_left_without_a_word(start: Start) -> None:
    with connect(start(head_timeout=0.2)) as connection:
        assert to_the_end(connection) == b""


def test_f16_an_idle_connection_is_kept_for_as_long_as_it_is_set(start: Start) -> None:
    api = start(idle_timeout=0.6, head_timeout=0.1)
    with connect(api) as connection:
        for pause in (0.0, 0.3, 0.3):
            threading.Event().wait(pause)
            connection.sendall(LIVEZ)
            until(connection, b'"progress_age_seconds":0.0}')
        assert to_the_end(connection) == b""


def test_idle_connections_are_kept_for_longer_than_load_balancers_keep_them() -> None:
    assert Settings().idle_timeout > 60


def test_a_body_that_nobody_reads_ends_with_its_answer(start: Start) -> None:
    """A second one does not begin, whatever the client goes on to send."""
    with connect(start(head_timeout=0.3)) as connection:
        connection.sendall(LIVEZ[:-2] + b"content-length: 1000000\r\n\r\n")
        answer = to_the_end(connection)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1") == 1


def test_a_body_that_nobody_reads_and_that_does_end_is_followed_by_the_next_request(start: Start) -> None:
    with connect(start()) as connection:
        connection.sendall(LIVEZ[:-2] + b"content-length: 5\r\n\r\n")
        assert statuses(connection, 1) == [200]
        connection.sendall(b"hello" + LIVEZ)
        assert statuses(connection, 1) == [200]


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_who_is_refused_while_still_sending_can_read_why(start: Start, version: bytes) -> None:
    """Closed at once, the answer would be lost with what was not read."""
    head = HEAD.replace(b"HTTP/1.1", b"HTTP/" + version)
    with connect(start(max_body_bytes=4096)) as connection:
        connection.sendall(head + b"connection: close\r\ncontent-length: 4000000\r\n\r\n")
        for _ in range(60):
            connection.sendall(b" " * 65536)
            threading.Event().wait(0.005)
        answer = to_the_end(connection)
    assert answer.startswith(b"HTTP/1.1 413 ") and b"request_too_large" in answer


def shouting(engine: FakeEngine) -> None:
    """Answers that no buffer between two processes takes."""
    engine.script = lambda request: [
        accepted(request),
        *(piece for _ in range(300) for piece in (0.0, TextDelta(request.id, "x" * 100_000))),
        finished(request, 300),
    ]


def test_h1_streams_that_are_never_read_lose_their_places(start: Start, engine: FakeEngine) -> None:
    api = start(max_concurrent=4, send_timeout=0.4)
    shouting(engine)
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(connect(api))
            connection.sendall(post(body=STREAM))
        eventually(lambda: engine.submitted == 4, "all four begin")
        eventually(lambda: (engine.open, engine.aborted) == (0, 4), "none is left")
        eventually(lambda: api.get("/readyz").status_code == 200, "the places are free again")


def test_a_stream_that_is_read_slowly_goes_on(start: Start, engine: FakeEngine) -> None:
    api = start(send_timeout=1.0)
    shouting(engine)
    with connect(api) as connection:
        connection.sendall(post(b"connection: close\r\n", body=STREAM))
        received = 0
        while piece := connection.recv(2_000_000):
            received += len(piece)
            threading.Event().wait(0.02)
        assert received > 30_000_000


def test_h1_an_answer_that_is_never_read_does_not_keep_its_connection(
    start: Start, engine: FakeEngine
) -> None:
    api = start(send_timeout=0.3, idle_timeout=0.3)
    engine.script = lambda request: [
        accepted(request),
        *(TextDelta(request.id, "x" * 1_000_000) for _ in range(20)),
        finished(request, 20),
    ]
    with connect(api) as connection:
        connection.sendall(post())
        eventually(lambda: engine.submitted == 1 and engine.open == 0, "it is answered")
        threading.Event().wait(1.0)
        with pytest.raises(OSError):
            while True:
                connection.sendall(LIVEZ)


def test_slow_reading_ends_with_the_time_of_the_request(start: Start, engine: FakeEngine) -> None:
    """However much there is still to read."""
    api = start(request_timeout=1.0, send_timeout=60.0)
    shouting(engine)
    with connect(api) as connection:
        connection.sendall(post(body=STREAM))
        threading.Event().wait(1.2)
        answer = until(connection, b"[DONE]")
    assert b'"request_timeout"' in answer and len(answer) < 20_000_000
    eventually(lambda: (engine.open, engine.aborted) == (0, 1), "it ends in the engine")


def test_m2_half_heads_make_room_for_who_asks(start: Start) -> None:
    api = start(max_connections=8)
    with ExitStack() as stack:
        first = stack.enter_context(connect(api))
        first.sendall(HEAD)
        for _ in range(40):
            connection = stack.enter_context(connect(api))
            connection.sendall(HEAD)
        assert api.get("/livez").status_code == 200
        assert to_the_end(first) == b""


def test_m2_who_is_answered_stays_and_who_comes_too_late_is_told(start: Start, engine: FakeEngine) -> None:
    api = start(max_connections=8)
    go_on = threading.Event()
    engine.script = lambda request: [
        accepted(request),
        TextDelta(request.id, "one"),
        go_on,
        finished(request, 1),
    ]
    with ExitStack() as stack:
        streams = [stack.enter_context(connect(api)) for _ in range(8)]
        for stream in streams:
            stream.sendall(post(b"connection: close\r\n", body=STREAM))
            until(stream, b"one")
        late = stack.enter_context(connect(api))
        answer = to_the_end(late)
        assert answer.startswith(b"HTTP/1.1 503 ") and b"Too many connections" in answer
        go_on.set()
        assert all(b"[DONE]" in to_the_end(stream) for stream in streams)
    assert api.get("/livez").status_code == 200


def test_a_half_closed_connection_gets_its_answer(
    start: Start, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.http.protocol._FIRST_PROBE", 10.0)
    engine.script = lambda request: [
        accepted(request),
        0.3,
        TextDelta(request.id, "late"),
        finished(request, 1),
    ]
    api = start()
    for body in (b'{"prompt": "x"}', STREAM):
        with connect(api) as connection:
            connection.sendall(post(body=body))
            connection.shutdown(socket.SHUT_WR)
            answer = to_the_end(connection)
        assert answer.startswith(b"HTTP/1.1 200 ") and b"late" in answer
    assert (engine.open, engine.aborted) == (0, 0)


def test_a_half_closed_connection_that_waits_for_long_hears_of_it_and_is_answered(
    start: Start, engine: FakeEngine
) -> None:
    engine.script = lambda request: [
        accepted(request),
        0.3,
        TextDelta(request.id, "late"),
        finished(request, 1),
    ]
    with connect(start()) as connection:
        connection.sendall(post())
        connection.shutdown(socket.SHUT_WR)
        answer = to_the_end(connection)
    assert answer.startswith(b"HTTP/1.1 100 ") and b"HTTP/1.1 200 " in answer and b"late" in answer


def test_a_half_closed_body_is_the_end(start: Start, engine: FakeEngine) -> None:
    with connect(start()) as connection:
        connection.sendall(HEAD + b"content-length: 999\r\n\r\n{")
        connection.shutdown(socket.SHUT_WR)
        assert to_the_end(connection) == b""
    assert engine.submitted == 0
