"""Nothing that an operator sends is ignored silently."""

from __future__ import annotations

import socket

import httpx
import pytest

from tests.service.asking import refused
from tests.service.fake_engine import FakeEngine
from tests.service.serving import PATIENCE

KEYS = [f"{i:064x}" for i in range(5)]


def test_u8_a_refusal_names_the_tiers_there_are(api: httpx.Client, engine: FakeEngine) -> None:
    engine.cache.put(KEYS[0])
    said = refused(api.get("/v1/cache/entries?tier=disc"), 400, "invalid_request")["message"]
    assert said == "'tier' must be one of memory, disk, chain."
    refused(api.post("/v1/cache/evict", json={"tier": "disc"}), 400, "invalid_request")
    assert len(api.get("/v1/cache/entries?tier=disk").raise_for_status().json()["entries"]) == 1
    assert list(engine.cache.held) == [KEYS[0]]


UNREAD_BODY = [
    ("GET", "stats"),
    ("GET", "entries"),
    ("GET", f"entries/{KEYS[0]}"),
    ("DELETE", f"entries/{KEYS[0]}"),
    ("DELETE", f"pins/{KEYS[0]}"),
    ("GET", "quotas"),
    ("GET", "quotas/alice"),
    ("DELETE", "quotas/alice"),
    ("POST", "compact"),
    ("POST", "verify"),
]
READ_BODY = [
    ("POST", "evict"),
    ("POST", "clear"),
    ("POST", "lookup"),
    ("POST", "warm"),
    ("POST", f"pins/{KEYS[0]}"),
    ("PUT", "quotas/alice"),
]


@pytest.mark.parametrize(("method", "path"), UNREAD_BODY)
def test_u8_a_body_where_none_is_read_is_refused(
    api: httpx.Client, engine: FakeEngine, method: str, path: str
) -> None:
    engine.cache.put(KEYS[0], pinned="hard")
    engine.cache.limits["alice"] = 1
    url = f"/v1/cache/{path}"
    for body in (b'{"tier": "memory"}', b"x" * 100_000, iter([b"chunk", b"ed"])):
        refused(api.request(method, url, content=body), 400, "invalid_request")
    assert KEYS[0] in engine.cache.held and engine.cache.held[KEYS[0]].pinned and engine.cache.limits
    assert api.request(method, url, content=b" { } ").is_success


@pytest.mark.parametrize(
    ("method", "path"), [route for route in UNREAD_BODY + READ_BODY if route[1] != "entries"]
)
def test_u8_a_query_where_none_is_read_is_refused(
    api: httpx.Client, engine: FakeEngine, method: str, path: str
) -> None:
    engine.cache.put(KEYS[0], pinned="hard")
    engine.cache.limits["alice"] = 1
    response = api.request(
        method, f"/v1/cache/{path}?dry_run=true", json={"all": True} if path == "evict" else None
    )
    assert refused(response, 400, "unknown_parameter")["param"] == "dry_run"
    assert KEYS[0] in engine.cache.held


@pytest.mark.parametrize("announced", ["content-length: 1000000", "transfer-encoding: chunked"])
def test_u8_a_large_body_is_refused_unread(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch, announced: str
) -> None:
    """None of it is sent: whoever waits for it waits for ever."""
    monkeypatch.setattr("service.http.unread._PATIENCE_SECONDS", 3600.0)
    head = (
        f"POST /v1/cache/compact HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n{announced}"
    )
    with socket.create_connection((api.base_url.host, api.base_url.port), timeout=PATIENCE) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")


def test_u8_every_route_of_the_store_is_strict(api: httpx.Client) -> None:
    paths = api.get("/openapi.json").raise_for_status().json()["paths"]
    found = {
        (
            method.upper(),
            path.replace("{key}", KEYS[0]).replace("{tenant}", "alice").removeprefix("/v1/cache/"),
        )
        for path, operations in paths.items()
        for method in operations
        if path.startswith("/v1/cache/")
    }
    assert found == {*UNREAD_BODY, *READ_BODY}
