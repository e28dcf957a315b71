"""Bodies as they come over a connection: what they may be, and that a slow one is nobody else's trouble."""

from __future__ import annotations

import gzip
import json
import socket
import time
from contextlib import ExitStack

import httpx
import pytest

from tests.service.asking import HEAD, refused
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine
from tests.service.serving import eventually

ASK = {"prompt": "What is it?"}
BODY = json.dumps(ASK).encode()
KEYS = {"api_keys": "alice:sk-alice-1,bob:sk-bob-12"}


def post(api: httpx.Client, body: bytes, **headers: str) -> httpx.Response:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return api.post("/v1/chat", content=body, headers={"content-type": "application/json", **given})


def half_a_body(api: httpx.Client, *fields: str) -> socket.socket:
    """A connection that owes the rest of its body."""
    connection = socket.create_connection((api.base_url.host, api.base_url.port or 80), 20)
    lines = "".join(f"{field}\r\n" for field in fields)
    connection.sendall(f"{HEAD}{lines}content-length: 999\r\n\r\n{{".encode())
    return connection


def answer_of(connection: socket.socket) -> bytes:
    answer = b""
    while b"}}" not in answer:
        piece = connection.recv(65536)
        assert piece, answer
        answer += piece
    return answer


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"content-type": "text/plain"}, "content-type: application/json"),
        ({"content-type": "application/x-www-form-urlencoded"}, "content-type: application/json"),
        ({"content-type": "application/json; charset=utf-16"}, "UTF-8"),
        ({"content-type": "application/json", "content-encoding": "gzip"}, "compressed"),
        ({"content-type": "application/json", "content-encoding": "identity, br"}, "compressed"),
        ({}, "content-type: application/json"),
    ],
)
def test_f19_what_cannot_be_read_by_its_headers_is_a_415(
    api: httpx.Client, headers: dict[str, str], words: str
) -> None:
    error = refused(api.post("/v1/chat", content=BODY, headers=headers), 415, "unsupported_media_type")
    assert words in error["message"]


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "application/json"},
        {"content-type": 'Application/JSON; Charset="UTF-8"'},
        {"content-type": "application/vnd.api+json", "content-encoding": "identity"},
        {"content-type": "application/json", "content-encoding": ""},
    ],
)
def test_json_by_any_of_its_names_is_read(api: httpx.Client, headers: dict[str, str]) -> None:
    api.post("/v1/chat", content=BODY, headers=headers).raise_for_status()


def test_f19_a_compressed_body_that_does_not_say_so_is_a_415(api: httpx.Client) -> None:
    error = refused(post(api, gzip.compress(BODY)), 415, "unsupported_media_type")
    assert "compressed" in error["message"]


def test_f19_a_mark_of_byte_order_is_read_over(api: httpx.Client, engine: FakeEngine) -> None:
    post(api, b"\xef\xbb\xbf" + BODY).raise_for_status()
    assert engine.submitted == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [(b"\\ud83d", "half of a character"), (b"\xf0\x9f\x98", "not UTF-8"), (b"\xe9", "not UTF-8")],
)
def test_f19_a_cut_emoji_is_named(api: httpx.Client, text: bytes, words: str) -> None:
    error = refused(post(api, b'{"prompt": "' + text + b'"}'), 400, "invalid_json")
    assert words in error["message"]


def test_a_body_that_is_refused_half_way_is_answered_and_the_connection_goes_on(api: httpx.Client) -> None:
    body = b'{"messages": [' + b"1," * 200_000 + b"1]}"
    assert "items" in refused(post(api, body), 400, "invalid_request")["message"]
    assert post(api, BODY).status_code == 200


def test_h3_a_list_of_anything_else_is_refused_at_its_first_item(api: httpx.Client) -> None:
    error = refused(post(api, b'{"messages": [' + b"1," * 2000 + b"1]}"), 400, "invalid_request")
    assert error["param"] == "messages[0]"


def test_half_a_body_takes_no_place(start: Start, engine: FakeEngine) -> None:
    api = start(max_concurrent=1)
    with half_a_body(api):
        assert api.get("/readyz").status_code == 200
        assert post(api, BODY).status_code == 200


def test_half_a_body_and_then_nothing_is_a_408(start: Start, engine: FakeEngine) -> None:
    api = start(body_timeout=0.3)
    with half_a_body(api) as connection:
        answer = answer_of(connection)
        assert answer.startswith(b"HTTP/1.1 408 ") and b'"body_timeout"' in answer


def test_m3_slow_bodies_of_one_tenant_are_no_429_for_the_others(start: Start, engine: FakeEngine) -> None:
    api = start(max_concurrent=4, **KEYS)
    alice, bob = ({"authorization": f"Bearer sk-{who}"} for who in ("alice-1", "bob-12"))
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(half_a_body(api, "authorization: Bearer sk-alice-1"))
        eventually(
            lambda: api.post("/v1/chat", json=ASK, headers=alice).status_code == 429, "alice has her part"
        )
        api.post("/v1/chat", json=ASK, headers=bob).raise_for_status()
    eventually(lambda: api.post("/v1/chat", json=ASK, headers=alice).status_code == 200, "they are gone")


def test_a_place_is_refused_before_the_body_is_read(start: Start, engine: FakeEngine) -> None:
    api = start(max_concurrent=1)
    engine.script = lambda request: [3600.0]
    with ExitStack() as stack:
        first = stack.enter_context(
            socket.create_connection((api.base_url.host, api.base_url.port or 80), 20)
        )
        first.sendall(f"{HEAD}content-length: {len(BODY)}\r\n\r\n".encode() + BODY)
        eventually(lambda: engine.open == 1, "the engine has it")
        second = stack.enter_context(half_a_body(api))
        assert answer_of(second).startswith(b"HTTP/1.1 429 ")


def test_the_time_of_a_request_begins_with_its_body(start: Start, engine: FakeEngine) -> None:
    api = start(request_timeout=100.0)
    with socket.create_connection((api.base_url.host, api.base_url.port or 80), 20) as connection:
        connection.sendall(f"{HEAD}content-length: {len(BODY)}\r\n\r\n".encode() + BODY[:5])
        time.sleep(0.2)
        connection.sendall(BODY[5:])
        eventually(lambda: len(engine.requests) == 1, "the engine has it")
    given = engine.requests[0].timeout_seconds
    assert given is not None and 0 < given < 99.85
