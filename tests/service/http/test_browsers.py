"""M4: beside a browser an open service does nothing that a page of somebody else asks for."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from starlette.datastructures import Headers

from service.http.browsers import BrowserGuard
from tests.service.asking import refused
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine

FOREIGN = "https://evil.example"
ASK: dict[str, Any] = {"prompt": "What is it?"}


def refusal(method: str = "GET", trusted: tuple[str, ...] = (), **headers: str) -> str | None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return BrowserGuard(trusted).refusal(method, Headers(named))


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8000",
        "localhost.:8000",
        "app.localhost:8000",
        "127.0.0.1:8000",
        "[::1]:8000",
        "192.168.1.7:8000",
        "",
    ],
)
def test_loopback_names_and_addresses_are_its_own(host: str) -> None:
    assert refusal(host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "notlocalhost",
        "2130706433x",
        "[::1",
        "api@evil.example",
        "localhost@",
        "/localhost",
    ],
)
def test_any_other_name_is_refused(host: str) -> None:
    assert refusal(host=host) == "host_not_allowed"


def test_two_names_are_refused_even_if_one_is_its_own() -> None:
    headers = Headers(raw=[(b"host", b"localhost"), (b"host", b"evil.example")])
    assert BrowserGuard(()).refusal("GET", headers) == "host_not_allowed"


@pytest.mark.parametrize(
    ("trusted", "host", "ours"),
    [
        ("api", "api:8000", True),
        ("API", "api", True),
        ("api:8000", "api:8000", True),
        ("api:8000", "api:9000", False),
        ("*.example.org", "a.b.example.org", True),
        ("*.example.org", "example.org", False),
        ("*.example.org", "evilexample.org", False),
    ],
)
def test_names_of_the_list_are_its_own(trusted: str, host: str, ours: bool) -> None:
    assert refusal(trusted=(trusted,), host=host) == (None if ours else "host_not_allowed")


@pytest.mark.parametrize(
    ("headers", "ours"),
    [
        ({}, True),
        ({"origin": "http://localhost:8000"}, True),
        ({"origin": FOREIGN}, False),
        ({"origin": "http://localhost:3000"}, False),
        ({"origin": "null"}, False),
        ({"origin": ""}, False),
        ({"sec_fetch_site": "same-origin", "origin": "https://public.example.org"}, True),
        ({"sec_fetch_site": "none"}, True),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": "same-site", "origin": "http://localhost:8000"}, False),
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH", "BREW"])
def test_changes_are_made_for_its_own_pages_and_for_programs(
    method: str, headers: dict[str, str], ours: bool
) -> None:
    assert refusal(method, host="localhost:8000", **headers) == (None if ours else "origin_not_allowed")
    assert refusal("GET", host="localhost:8000", **headers) is None


def test_m4_clear_from_another_site_empties_nothing(api: httpx.Client, engine: FakeEngine) -> None:
    engine.cache.put("a" * 64)
    for headers in ({"origin": FOREIGN}, {"sec-fetch-site": "cross-site"}):
        error = refused(api.post("/v1/cache/clear", json={}, headers=headers), 403, "origin_not_allowed")
        assert "set keys" in error["message"]
    error = refused(api.post("/v1/cache/clear", content=b"{}"), 415, "unsupported_media_type")
    assert engine.cache.held


def test_m4_every_route_that_changes_something_refuses_another_site(api: httpx.Client) -> None:
    document = api.get("/openapi.json").json()
    tried = 0
    for path, operations in document["paths"].items():
        for method in operations.keys() & {"post", "put", "delete", "patch"}:
            url = path.replace("{key}", "0" * 64).replace("{tenant}", "alice")
            refused(api.request(method, url, headers={"origin": FOREIGN}), 403, "origin_not_allowed")
            tried += 1
    assert tried > 8


def test_m4_a_foreign_name_is_refused_on_every_route_but_health(api: httpx.Client) -> None:
    for path in ("/", "/v1/models", "/v1/cache/stats", "/metrics", "/openapi.json", "/nothing"):
        error = refused(api.get(path, headers={"host": "evil.example"}), 403, "host_not_allowed")
        assert "CONDUIT_TRUSTED_HOSTS" in error["message"]
    refused(api.post("/v1/chat", json=ASK, headers={"host": "evil.example"}), 403, "host_not_allowed")
    for path in ("/livez", "/readyz", "/health"):
        assert api.get(path, headers={"host": "probe.example"}).status_code == 200


def test_a_list_opens_the_service_to_its_names(start: Start) -> None:
    api = start(trusted_hosts="conduit.example.org, *.internal")
    for host in ("conduit.example.org", "a.internal:8000"):
        api.post("/v1/chat", json=ASK, headers={"host": host}).raise_for_status()
    refused(api.post("/v1/chat", json=ASK, headers={"host": "evil.example"}), 403, "host_not_allowed")


def test_where_callers_have_keys_a_key_is_what_counts(start: Start) -> None:
    """No page of somebody else knows one; a page that does may be anywhere."""
    api = start(api_keys="alice:sk-alice-1", admin_key="sk-operator")
    headers = {"host": "conduit.example.org", "origin": FOREIGN, "authorization": "Bearer sk-alice-1"}
    api.post("/v1/chat", json=ASK, headers=headers).raise_for_status()
    assert api.get("/", headers={"host": "conduit.example.org"}).status_code == 200


def test_what_an_operators_key_alone_leaves_open_is_safe_too(start: Start) -> None:
    api = start(admin_key="sk-operator")
    refused(api.post("/v1/chat", json=ASK, headers={"origin": FOREIGN}), 403, "origin_not_allowed")
    headers = {"origin": FOREIGN, "authorization": "Bearer sk-operator"}
    api.post("/v1/cache/clear", json={}, headers=headers).raise_for_status()
