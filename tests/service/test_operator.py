"""The operator's routes: cache, health, metrics, models, the OpenAPI document, and the log."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.observability.logs import JsonFormatter, TextFormatter
from service.version import VERSION
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine
from tests.service.images.pictures import data_url, plain
from tests.service.serving import eventually
from tests.service.test_chat_refusals import refused

KEYS = [f"{i:064x}" for i in range(5)]


def test_stats_have_every_tier(api: httpx.Client) -> None:
    stats = api.get("/v1/cache/stats").raise_for_status().json()
    assert stats["tiers"][0]["name"] == "memory"
    assert stats["tiers"][0]["misses"] == {"absent": 2}
    assert stats["decoded"]["bytes_budget"] == 100
    assert (stats["compiles"], stats["joined"], stats["degraded"]) == (2, 1, [])


def test_entries_come_in_pages(api: httpx.Client, engine: FakeEngine) -> None:
    for key in KEYS:
        engine.cache.put(key)
    found: list[str] = []
    query: dict[str, Any] = {"limit": 2}
    while query.get("cursor", "") is not None:
        page = api.get("/v1/cache/entries", params=query).json()
        assert len(page["entries"]) <= 2
        found += [entry["key"] for entry in page["entries"]]
        query["cursor"] = page["cursor"]
    assert found == KEYS


def test_entries_are_filtered(api: httpx.Client, engine: FakeEngine) -> None:
    engine.cache.put(KEYS[0], tenant="alice")
    engine.cache.put(KEYS[1], tenant="bob", bytes=10)
    for query, expected in (({"tenant": "alice"}, [KEYS[0]]), ({"min_bytes": 11}, [KEYS[0]]), ({}, KEYS[:2])):
        page = api.get("/v1/cache/entries", params=query).raise_for_status().json()
        assert [entry["key"] for entry in page["entries"]] == expected


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("limit=0", "invalid_request", "limit"),
        ("limit=many", "invalid_request", "limit"),
        ("older_than=-1", "invalid_request", "older_than"),
        ("older_than=nan", "invalid_request", "older_than"),
        ("tennant=x", "unknown_parameter", "tennant"),
    ],
)
def test_bad_queries_are_refused(api: httpx.Client, query: str, code: str, param: str) -> None:
    assert refused(api.get(f"/v1/cache/entries?{query}"), 400, code)["param"] == param


def test_one_entry_is_shown_and_deleted(api: httpx.Client, engine: FakeEngine) -> None:
    entry = engine.cache.put(KEYS[0])
    shown = api.get(f"/v1/cache/entries/{KEYS[0]}").raise_for_status().json()
    assert shown == {**dataclasses.asdict(entry), "tiers": ["memory", "disk"]}
    assert api.delete(f"/v1/cache/entries/{KEYS[0]}").status_code == 204
    refused(api.delete(f"/v1/cache/entries/{KEYS[0]}"), 404, "entry_not_found")
    refused(api.get(f"/v1/cache/entries/{KEYS[0]}"), 404, "entry_not_found")
    refused(api.get("/v1/cache/entries/short"), 404, "entry_not_found")


def test_evict_needs_to_be_told_what(api: httpx.Client, engine: FakeEngine) -> None:
    for key in KEYS[:2]:
        engine.cache.put(key)
    refused(api.post("/v1/cache/evict", json={}), 400, "invalid_request")
    refused(api.post("/v1/cache/evict", json={"tennant": "x"}), 400, "unknown_parameter")
    planned = api.post("/v1/cache/evict", json={"all": True, "dry_run": True}).raise_for_status().json()
    assert (len(planned["keys"]), planned["bytes"], planned["dry_run"]) == (2, 8192, True)
    assert len(engine.cache.held) == 2
    done = api.post("/v1/cache/evict", json={"tenant": "default"}).raise_for_status().json()
    assert (len(done["keys"]), engine.cache.held) == (2, {})


def test_changes_are_logged(api: httpx.Client, engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine.cache.put(KEYS[0])
    with caplog.at_level(logging.INFO, logger="service"):
        api.delete(f"/v1/cache/entries/{KEYS[0]}", headers={"x-request-id": "who-1"})
    (line,) = [vars(record) for record in caplog.records if record.message == "cache admin"]
    assert (line["action"], line["key"], line["request_id"]) == ("delete", KEYS[0], "who-1")


def test_f14_health_tells_the_truth(api: httpx.Client, engine: FakeEngine) -> None:
    for path in ("/livez", "/readyz", "/health"):
        assert (api.get(path).status_code, api.head(path).status_code) == (200, 200)
    engine.state = dataclasses.replace(engine.state, ready=False, reasons=("the worker died",))
    unready = api.get("/readyz")
    assert (unready.status_code, unready.json()["reasons"]) == (503, ["the worker died"])
    assert api.get("/livez").status_code == 200
    engine.state = dataclasses.replace(engine.state, ready=True, reasons=(), progress_seconds=120.0)
    assert api.get("/livez").status_code == 503
    assert api.get("/readyz").json()["reasons"] == ["the worker makes no progress"]


def test_readyz_names_what_is_wrong_with_the_store_and_stays_ready(
    api: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert api.get("/readyz").json()["degraded"] == []

    async def fail() -> None:
        raise OSError("no store")

    monkeypatch.setattr(engine.cache, "stats", fail)
    ready = api.get("/readyz")
    assert (ready.status_code, ready.json()["degraded"]) == (200, ["the store gives no answer"])


def test_a_model_that_must_not_be_reused_is_served_and_named(api: httpx.Client, engine: FakeEngine) -> None:
    engine.state = dataclasses.replace(engine.state, degraded=("reuse is refused",))
    ready = api.get("/readyz")
    assert (ready.status_code, ready.json()["degraded"]) == (200, ["reuse is refused"])
    assert "conduit_engine_degraded 1.0" in api.get("/metrics").text


def test_readyz_tells_of_a_worker_that_hangs_while_it_is_asked(
    api: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> None:
        engine.state = dataclasses.replace(engine.state, ready=False, reasons=("the worker is silent",))
        await asyncio.sleep(30)

    monkeypatch.setattr(engine.cache, "stats", hang)
    answer = api.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["the worker is silent"]
    assert answer.json()["degraded"] == ["the store gives no answer"]


def test_readyz_of_an_engine_that_gives_no_reason(api: httpx.Client, engine: FakeEngine) -> None:
    engine.state = dataclasses.replace(engine.state, ready=False)
    assert api.get("/readyz").json()["reasons"] == ["the engine is not ready"]


def test_models_name_what_can_be_sent(api: httpx.Client) -> None:
    (model,) = api.get("/v1/models").raise_for_status().json()["data"]
    assert model["id"] == "test-reader"
    assert model["architecture"]["input_modalities"] == ["text", "image"]
    assert model["policies"] == ["conduit", "full", "reuse"]
    assert api.get("/v1/models/models/test-reader").json() == model
    refused(api.get("/v1/models/gpt-4o"), 404, "model_not_found")


def test_model_may_be_given_a_name(start: Start) -> None:
    api = start(model_name="reader")
    assert api.get("/v1/models").json()["data"][0]["id"] == "reader"
    assert api.post("/v1/chat", json={"prompt": "x", "model": "reader"}).json()["model"] == "reader"


def test_version_is_that_of_the_project(api: httpx.Client) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert api.get("/version").json()["version"] == VERSION == project["version"]


def test_metrics_count_requests_tokens_and_tiers(start: Start, engine: FakeEngine) -> None:
    api = start()
    for _ in range(2):
        api.post("/v1/chat", json={"prompt": "x", "images": [data_url(plain())]}).raise_for_status()
    api.post("/v1/chat", json={"prompt": ""})
    expected = [
        'conduit_requests_total{outcome="ok"} 2.0',
        'conduit_requests_total{outcome="invalid_prompt"} 1.0',
        'conduit_image_lookups_total{outcome="miss"} 1.0',
        'conduit_image_hits_total{tier="memory"} 1.0',
        'conduit_visual_tokens_total{kind="reused"} 32.0',
        'conduit_visual_tokens_total{kind="compiled"} 32.0',
        'conduit_visual_tokens_total{kind="refreshed"} 8.0',
        "conduit_prompt_cached_tokens_total 32.0",
        "conduit_time_to_first_token_seconds_count 2.0",
        "conduit_generation_tokens_total 8.0",
        'conduit_store_bytes_budget{tier="memory"} 100.0',
        'conduit_store_evictions_total{reason="budget",tier="memory"} 1.0',
        'conduit_store_hits_total{tier="decoded"} 5.0',
        "conduit_shadow_checks_total 0.0",
        "conduit_engine_ready 1.0",
    ]
    text = api.get("/metrics").text
    assert [line for line in expected if line not in text] == []


def test_metrics_survive_a_store_that_fails(api: httpx.Client, engine: FakeEngine) -> None:
    engine.cache.fault = RuntimeError("disk on fire")
    assert "conduit_engine_ready" in api.get("/metrics").raise_for_status().text
    broken = api.get("/v1/cache/stats")
    refused(broken, 500, "internal_error")
    assert "fire" not in broken.text


def test_openapi_has_examples_and_resolves(api: httpx.Client) -> None:
    document = api.get("/openapi.json").raise_for_status().json()
    operation = document["paths"]["/v1/chat"]["post"]
    media = operation["requestBody"]["content"]["application/json"]
    for example in media["examples"].values():
        answer = api.post(
            "/v1/chat", json={**example["value"], "images": None, "messages": None, "prompt": "x"}
        )
        assert answer.status_code == 200
    for reference in _references(document):
        node: Any = document
        for part in reference.removeprefix("#/").split("/"):
            node = node[part]
    assert {"ChatRequest", "EvictRequest", "EntryPage", "StoreStats", "Error"} <= set(
        document["components"]["schemas"]
    )


def _references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [ref for value in node.values() for ref in _references(value)]
    if isinstance(node, list):
        return [ref for value in node for ref in _references(value)]
    return []


def test_requests_are_logged_with_their_id(api: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="service"):
        api.post("/v1/chat", json={"prompt": "a secret question"}, headers={"x-request-id": "mine-2"})
        eventually(lambda: any(r.message == "request" for r in caplog.records), "the access line")
    lines = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    chat = next(line for line in lines if line["message"] == "chat")
    access = next(line for line in lines if line["message"] == "request")
    assert chat["request_id"] == access["request_id"] == "mine-2"
    assert (chat["outcome"], chat["tenant"], access["status"], access["path"]) == (
        "ok",
        "default",
        200,
        "/v1/chat",
    )
    assert "secret" not in json.dumps(lines)


def test_log_lines_carry_tracebacks_and_fields() -> None:
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        import sys

        record = logging.LogRecord("a", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    record.__dict__["count"] = 3
    line = json.loads(JsonFormatter().format(record))
    assert (line["level"], line["count"]) == ("error", 3)
    assert "boom" in line["traceback"]
    record.__dict__["path"] = "/a\n2026-01-01 ERROR forged"
    text = TextFormatter().format(record)
    assert "count=3" in text and "\n2026" not in text
