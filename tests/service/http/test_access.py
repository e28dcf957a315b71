"""Group D: who may ask for what, and that tenants do not share entries."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from service.http.tenancy import namespace
from tests.service.asking import refused
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine
from tests.service.images.pictures import data_url, plain

RED = data_url(plain())
KEYS = {"api_keys": "alice:sk-alice-1,bob:sk-bob-12", "admin_key": "sk-operator"}
ASK: dict[str, Any] = {"prompt": "What is it?", "images": [RED]}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_d9_every_route_is_closed_without_a_key(start: Start) -> None:
    api = start(**KEYS)
    document = api.get("/openapi.json", headers=bearer("sk-alice-1")).json()
    open_paths = set()
    for path, operations in document["paths"].items():
        for method in operations:
            url = path.replace("{key}", "0" * 64).replace("{name}", "x")
            for headers in ({}, bearer("wrong"), {"authorization": "Basic sk-alice-1"}):
                response = api.request(method.upper(), url, headers=headers)
                if response.status_code not in (401, 403):
                    open_paths.add(path)
    assert open_paths == {"/livez", "/readyz", "/health"}
    for path in ("/openapi.json", "/docs", "/demo/x", "/nothing", "/v1/chat/"):
        refused(api.get(path), 401, "invalid_api_key")


def test_unknown_key_is_a_401_that_says_how(start: Start) -> None:
    response = start(**KEYS).post("/v1/chat", json=ASK, headers=bearer("wrong-key"))
    refused(response, 401, "invalid_api_key")
    assert response.headers["www-authenticate"] == "Bearer"
    assert "wrong-key" not in response.text


def test_key_is_checked_before_the_body(start: Start) -> None:
    response = start(**KEYS).post("/v1/chat", content=b"{", headers={"content-type": "application/json"})
    refused(response, 401, "invalid_api_key")


def test_both_key_headers_work(start: Start) -> None:
    api = start(**KEYS)
    for headers in (
        bearer("sk-alice-1"),
        {"x-api-key": "sk-alice-1"},
        {"authorization": "bearer  sk-alice-1"},
    ):
        assert api.post("/v1/chat", json=ASK, headers=headers).status_code == 200


def test_tenants_keys_do_not_open_the_operators_routes(start: Start) -> None:
    api = start(**KEYS)
    refused(api.get("/v1/cache/stats", headers=bearer("sk-alice-1")), 403, "admin_key_required")
    assert api.get("/v1/cache/stats", headers=bearer("sk-operator")).status_code == 200
    refused(api.post("/v1/chat", json=ASK, headers=bearer("sk-operator")), 401, "invalid_api_key")


def test_the_operators_key_stands_for_no_tenant(start: Start) -> None:
    """Whatever routes there will be: what is neither the operator's nor everybody's is a tenant's."""
    api = start(**KEYS)
    document = api.get("/openapi.json", headers=bearer("sk-operator")).json()
    others = ("/v1/cache/", "/v1/models")
    tenants = {path for path in document["paths"] if path.startswith("/v1/") and not path.startswith(others)}
    assert "/v1/chat/completions" in tenants
    for path in tenants:
        for method in document["paths"][path]:
            answer = api.request(method, re.sub("{.*?}", "x", path), headers=bearer("sk-operator"))
            assert answer.status_code == 401, (method, path)


def test_without_an_operators_key_nobody_is_the_operator(start: Start) -> None:
    api = start(api_keys="alice:sk-alice-1")
    refused(api.get("/v1/cache/entries", headers=bearer("sk-alice-1")), 403, "admin_key_required")


def test_operators_key_alone_leaves_chat_open(start: Start) -> None:
    api = start(admin_key="sk-operator")
    assert api.post("/v1/chat", json=ASK).status_code == 200
    refused(api.get("/v1/cache/stats"), 401, "invalid_api_key")


def test_u7_metrics_are_the_operators_unless_they_are_public(start: Start) -> None:
    tenants, operators = bearer("sk-alice-1"), bearer("sk-operator")
    for keys in (KEYS, {"admin_key": "sk-operator"}, {"api_keys": KEYS["api_keys"]}):
        api = start(**keys)
        refused(api.get("/metrics"), 401, "invalid_api_key")
        refused(api.get("/metrics", headers=tenants), 403, "admin_key_required")
        if "admin_key" in keys:
            assert api.get("/metrics", headers=operators).status_code == 200
        assert start(**keys, public_metrics=True).get("/metrics").status_code == 200
    assert start().get("/metrics").status_code == 200


@pytest.mark.parametrize("path", ["warm", "lookup"])
def test_u7_the_operator_names_the_tenant_whose_store_is_meant(
    start: Start, engine: FakeEngine, path: str
) -> None:
    image: dict[str, Any] = {"images": [RED]} if path == "warm" else {"image": RED}

    def ask(api: httpx.Client, **fields: str) -> httpx.Response:
        headers = bearer("sk-operator")
        return api.post(f"/v1/cache/{path}", json={**image, **fields}, headers=headers)

    api = start(**KEYS)
    assert refused(ask(api), 400, "missing_parameter")["param"] == "tenant"
    for name in ("alice+5a17", "a b", ""):
        assert refused(ask(api, tenant=name), 400, "invalid_request")["param"] == "tenant"
    assert not engine.requests
    ask(api, tenant="alice").raise_for_status()
    for keys in ({}, {"admin_key": "sk-operator"}):
        ask(start(**keys)).raise_for_status()
    if path == "warm":
        assert [request.tenant for request in engine.requests] == ["alice", "default", "default"]


def _outcome(api: httpx.Client, key: str, **fields: Any) -> str:
    body = api.post("/v1/chat", json={**ASK, **fields}, headers=bearer(key)).raise_for_status().json()
    outcome: str = body["kv_report"]["images"][0]["outcome"]
    return outcome


def test_d6_tenants_do_not_see_each_others_entries(start: Start, engine: FakeEngine) -> None:
    api = start(**KEYS)
    salted = {"cache": {"salt": "alices-salt"}}
    assert [_outcome(api, "sk-alice-1") for _ in range(2)] == ["miss", "hit"]
    assert [_outcome(api, "sk-alice-1", **salted) for _ in range(2)] == ["miss", "hit"]
    assert _outcome(api, "sk-alice-1", cache_salt="alices-salt") == "hit"
    assert _outcome(api, "sk-bob-12") == "miss"
    assert _outcome(api, "sk-bob-12", **salted) == "miss"
    tenants = [request.tenant for request in engine.requests]
    assert tenants[0] == "alice" and tenants[2].startswith("alice+") and tenants[-1].startswith("bob+")


@pytest.mark.parametrize("salt", ["x", "+", "\0", "bob"])
def test_salt_never_names_another_tenant(salt: str) -> None:
    assert namespace("alice", salt) != namespace("bob", salt)
    assert namespace("alice", salt).startswith("alice+")
    assert namespace("a", "b\0c") != namespace("a\0b", "c")


def test_d10_store_and_service_never_unpickle() -> None:
    import pathlib
    import re

    root = pathlib.Path(__file__).parents[3]
    sources = [*root.glob("service/**/*.py"), *root.glob("store/**/*.py")]
    assert len(sources) > 20
    for source in sources:
        assert not re.search(r"torch\.load\(|import pickle|pickle\.loads?\(", source.read_text()), source
