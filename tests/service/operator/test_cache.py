"""The operator looks at the store and removes from it."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import httpx
import pytest

from tests.service.asking import refused
from tests.service.fake_engine import FakeEngine

KEYS = [f"{i:064x}" for i in range(5)]


def test_stats_have_every_tier(api: httpx.Client) -> None:
    stats = api.get("/v1/cache/stats").raise_for_status().json()
    assert stats["tiers"][0]["name"] == "memory"
    assert stats["tiers"][0]["misses"] == {"absent": 2}
    assert stats["decoded"]["bytes_budget"] == 100
    assert (stats["compiles"], stats["joined"], stats["degraded"]) == (2, 1, [])
    assert stats["chains_by_tier"]["disk"] == {"exact": {"entries": 2, "bytes": 30}}
    assert stats["chains"]["lost"] == {}


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


def test_segments_of_chains_are_listed_and_evicted_by_kind(api: httpx.Client, engine: FakeEngine) -> None:
    engine.cache.put(KEYS[0])
    engine.cache.put(KEYS[1], kind="chain", state="refreshed", tiers=("chain", "disk"), width=0, height=0)
    (shown,) = api.get("/v1/cache/entries?kind=chain").raise_for_status().json()["entries"]
    assert (shown["key"], shown["kind"], shown["state"]) == (KEYS[1], "chain", "refreshed")
    assert len(api.get("/v1/cache/entries?tier=chain").raise_for_status().json()["entries"]) == 1
    planned = api.post("/v1/cache/evict", json={"kind": "chain", "dry_run": True}).raise_for_status().json()
    assert (planned["keys"], len(engine.cache.held)) == ([KEYS[1]], 2)
    api.post("/v1/cache/evict", json={"kind": "chain"}).raise_for_status()
    assert list(engine.cache.held) == [KEYS[0]]
    refused(api.post("/v1/cache/evict", json={"kind": "video"}), 400, "invalid_request")


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("kind=video", "invalid_request", "kind"),
        ("limit=0", "invalid_request", "limit"),
        ("limit=many", "invalid_request", "limit"),
        ("older_than=-1", "invalid_request", "older_than"),
        ("older_than=nan", "invalid_request", "older_than"),
        ("tennant=x", "unknown_parameter", "tennant"),
        ("tier=disc", "invalid_request", "tier"),
        ("tier=", "invalid_request", "tier"),
        ("cursor=garbage", "invalid_request", "cursor"),
        ("cursor=", "invalid_request", "cursor"),
        (f"cursor={'F' * 64}", "invalid_request", "cursor"),
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


def test_a_page_holds_a_hundred_unless_another_number_is_asked_for(
    api: httpx.Client, engine: FakeEngine
) -> None:
    keys = [f"{i:064x}" for i in range(101)]
    for key in keys:
        engine.cache.put(key)
    page = api.get("/v1/cache/entries").raise_for_status().json()
    assert ([entry["key"] for entry in page["entries"]], page["cursor"]) == (keys[:100], keys[99])


def test_changes_are_logged(api: httpx.Client, engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    engine.cache.put(KEYS[0])
    with caplog.at_level(logging.INFO, logger="service"):
        api.delete(f"/v1/cache/entries/{KEYS[0]}", headers={"x-request-id": "who-1"})
        api.post("/v1/cache/evict", json={"all": True, "dry_run": True}, headers={"x-request-id": "who-2"})
    deleted, planned = [vars(record) for record in caplog.records if record.message == "audit"]
    assert (deleted["action"], deleted["key"], deleted["request_id"]) == ("delete", KEYS[0], "who-1")
    assert (planned["action"], planned["dry_run"], planned["request_id"]) == ("evict", True, "who-2")
