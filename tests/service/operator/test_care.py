"""The operator's routes that look after the store."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from engine.errors import EngineStopped
from store.errors import StoreError
from store.types import VerifyProgress
from tests.service.asking import events, refused
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, fails
from tests.service.images.pictures import data_url, plain
from tests.service.serving import eventually

KEYS = [f"{i:064x}" for i in range(3)]
RED = data_url(plain())


def test_pins_are_soft_or_hard(api: httpx.Client, engine: FakeEngine) -> None:
    engine.cache.put(KEYS[0])
    entry, pin = f"/v1/cache/entries/{KEYS[0]}", f"/v1/cache/pins/{KEYS[0]}"
    for body, pinned in (({"ttl": 60}, "soft"), ({"hard": True}, "hard")):
        assert api.post(pin, json=body).status_code == 204
        assert api.get(entry).json()["pinned"] == pinned
    assert api.delete(pin).status_code == 204
    assert api.get(entry).json()["pinned"] == ""
    refused(api.delete(pin), 404, "entry_not_found")
    refused(api.post(f"/v1/cache/pins/{KEYS[1]}", json={"hard": True}), 404, "entry_not_found")


@pytest.mark.parametrize("body", [{}, {"ttl": 5, "hard": True}, {"ttl": 0}, {"ttl": -1}, {"ttl": "long"}])
def test_pins_say_one_thing(api: httpx.Client, engine: FakeEngine, body: dict[str, Any]) -> None:
    engine.cache.put(KEYS[0])
    refused(api.post(f"/v1/cache/pins/{KEYS[0]}", json=body), 400, "invalid_request")


def test_clear_leaves_what_is_pinned_unless_told(api: httpx.Client, engine: FakeEngine) -> None:
    engine.cache.put(KEYS[0], pinned="hard")
    engine.cache.put(KEYS[1])
    engine.cache.put(KEYS[2], tenant="bob")
    cleared = api.post("/v1/cache/clear", json={"tenant": "default"}).raise_for_status().json()
    assert (cleared["keys"], cleared["skipped_pinned"]) == ([KEYS[1]], 1)
    assert len(api.post("/v1/cache/clear", json={"include_pinned": True}).json()["keys"]) == 2


def test_clear_leaves_what_is_in_use(api: httpx.Client, engine: FakeEngine) -> None:
    engine.cache.put(KEYS[0], leased=True)
    engine.cache.put(KEYS[1])
    cleared = api.post("/v1/cache/clear", json={"include_pinned": True}).raise_for_status().json()
    assert (cleared["keys"], cleared["skipped_leased"]) == ([KEYS[1]], 1)
    assert set(engine.cache.held) == {KEYS[0]}


def test_lookup_says_what_a_request_would_find(api: httpx.Client, engine: FakeEngine) -> None:
    missing = api.post("/v1/cache/lookup", json={"image": RED}).raise_for_status().json()
    assert missing["entry"] is None and (missing["width"], missing["height"]) == (8, 6)
    entry = engine.cache.put(missing["digest"])
    found = api.post("/v1/cache/lookup", json={"image": RED}).json()
    assert found["entry"]["key"] == entry.key
    for other in ({"tenant": "bob"}, {"salt": "x"}):
        assert api.post("/v1/cache/lookup", json={"image": RED, **other}).json()["entry"] is None
    refused(api.post("/v1/cache/lookup", json={"image": "/etc/hostname"}), 400, "invalid_image_url")


def test_quotas_are_set_and_lifted(api: httpx.Client) -> None:
    assert api.put("/v1/cache/quotas/alice", json={"bytes": 1000}).status_code == 204
    assert api.get("/v1/cache/quotas").json() == {"quotas": [{"tenant": "alice", "bytes": 1000, "held": 0}]}
    assert api.get("/v1/cache/quotas/alice").json() == {"tenant": "alice", "bytes": 1000, "held": 0}
    assert api.delete("/v1/cache/quotas/alice").status_code == 204
    for method in ("GET", "DELETE"):
        refused(api.request(method, "/v1/cache/quotas/alice"), 404, "entry_not_found")
    refused(api.put("/v1/cache/quotas/alice", json={"bytes": 0}), 400, "invalid_request")
    refused(api.put("/v1/cache/quotas/alice+5a17", json={"bytes": 10}), 400, "invalid_request")
    for name in ("a" * 65, "a%20b", "%C3%A9", "a%2Fb"):
        assert api.put(f"/v1/cache/quotas/{name}", json={"bytes": 10}).status_code in (400, 404), name


def test_a_store_that_fails_is_a_503_without_its_text(api: httpx.Client, engine: FakeEngine) -> None:
    engine.cache.fault = StoreError("cannot write /var/lib/somewhere")
    response = api.put("/v1/cache/quotas/alice", json={"bytes": 1000})
    refused(response, 503, "store_failed")
    assert "/var" not in response.text


def test_compact_tells_each_tier(api: httpx.Client) -> None:
    tiers = api.post("/v1/cache/compact").raise_for_status().json()["tiers"]
    assert tiers == {"memory": 0, "disk": "in use by another process"}


def test_verify_streams_progress_and_ends(api: httpx.Client, engine: FakeEngine) -> None:
    for key in KEYS:
        engine.cache.put(key)
    *reports, done = events(api.post("/v1/cache/verify"))
    assert done == "[DONE]"
    assert (reports[-1]["done"], reports[-1]["removed"]) == (True, {"corrupt": 1})


def test_verify_tells_the_last_of_every_tier(
    api: httpx.Client, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def verify() -> AsyncGenerator[VerifyProgress, None]:
        for tier, checked in (("memory", 1), ("memory", 2), ("lmdb", 1), ("lmdb", 2), ("lmdb", 3)):
            yield VerifyProgress(tier, checked, 3, 0, {})
        yield VerifyProgress("lmdb", 5, 5, 0, {}, done=True)

    monkeypatch.setattr(engine.cache, "verify", verify)
    *reports, _ = events(api.post("/v1/cache/verify"))
    told = [(report["tier"], report["checked"], report["done"]) for report in reports]
    assert told == [("memory", 2, False), ("lmdb", 3, False), ("lmdb", 5, True)]


def test_verify_pings_while_it_has_nothing_to_say(start: Start, engine: FakeEngine) -> None:
    engine.cache.put(KEYS[0])
    engine.cache.scrub_pause = 0.5
    response = start(ping_interval=0.05).post("/v1/cache/verify")
    assert response.text.count(": ping\n\n") >= 2
    assert events(response)[-1] == "[DONE]"


def test_verify_ends_with_its_client(api: httpx.Client, engine: FakeEngine) -> None:
    for key in KEYS:
        engine.cache.put(key)
    engine.cache.scrub_pause = 0.3
    with api.stream("POST", "/v1/cache/verify") as response:
        pieces = response.iter_text()
        next(pieces)
        assert engine.cache.scrubs == 1
    eventually(lambda: not engine.cache.scrubs, "the scrub ends")


@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (EngineStopped("the worker ended"), "engine_stopped"),
        (StoreError("cannot read /var/lib/somewhere"), "store_failed"),
        (RuntimeError("boom"), "store_failed"),
    ],
)
def test_f14_verify_ends_in_one_error_event_when_the_worker_dies(
    api: httpx.Client, engine: FakeEngine, fault: Exception, code: str
) -> None:
    engine.cache.put(KEYS[0])
    engine.cache.scrub_fault = fault
    response = api.post("/v1/cache/verify")
    failed, done = events(response)
    assert (failed["error"]["code"], done) == (code, "[DONE]")
    assert "/var" not in response.text and "boom" not in response.text


def test_f14_warm_tells_of_every_image_when_the_worker_dies(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = fails("engine_stopped")
    first, second, done = events(api.post("/v1/cache/warm", json={"images": [RED, RED]}))
    assert [first["failed"]["code"], second["failed"]["code"], done] == [*["engine_stopped"] * 2, "[DONE]"]


def test_many_checks_at_once_all_come_to_their_end(start: Start, engine: FakeEngine) -> None:
    engine.cache.put(KEYS[0])
    engine.cache.scrub_pause = 0.02
    api = start()
    with ThreadPoolExecutor(16) as pool:
        ends = list(pool.map(lambda _: events(api.post("/v1/cache/verify")), range(16)))
    assert all(end[-2]["done"] and end[-1] == "[DONE]" for end in ends)
    assert 1 < engine.cache.most_scrubs <= 4


def test_warm_computes_each_image_behind_everybody(api: httpx.Client, engine: FakeEngine) -> None:
    asked = {"images": [RED, "data:,broken", data_url(plain((0, 0, 9)))], "tenant": "alice"}
    first, second, third, done = events(api.post("/v1/cache/warm", json=asked))
    assert done == "[DONE]"
    assert [first["image"], second["image"], third["image"]] == [0, 1, 2]
    assert (first["outcome"], first["tokens"], third["outcome"]) == ("miss", 36, "miss")
    assert (second["failed"]["code"], second["failed"]["param"]) == ("invalid_image", "images[1]")
    assert {(r.tenant, r.sampling.max_tokens, r.priority > 0, r.cache.policy) for r in engine.requests} == {
        ("alice", 1, True, "reuse")
    }
    assert events(api.post("/v1/cache/warm", json=asked))[0]["outcome"] == "hit"


def test_warm_goes_on_after_the_engine_refused_one(api: httpx.Client, engine: FakeEngine) -> None:
    engine.script = fails("queue_full")
    first, second, _ = events(api.post("/v1/cache/warm", json={"images": [RED, RED]}))
    assert first["failed"]["code"] == second["failed"]["code"] == "queue_full"


def test_everything_needs_the_operators_key_and_is_logged(
    start: Start, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    api = start(api_keys="alice:sk-alice-1", admin_key="sk-operator")
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", f"pins/{KEYS[0]}", {"hard": True}),
        ("DELETE", f"pins/{KEYS[0]}", {}),
        ("PUT", "quotas/alice", {"bytes": 10}),
        ("DELETE", "quotas/alice", {}),
        ("POST", "clear", {}),
        ("POST", "compact", {}),
        ("POST", "verify", {}),
        ("POST", "warm", {"images": [RED], "tenant": "alice"}),
    ]
    engine.cache.put(KEYS[0])
    with caplog.at_level(logging.INFO, logger="service.observability.audit"):
        for method, path, body in calls:
            url = f"/v1/cache/{path}"
            refused(api.request(method, url, json=body), 401, "invalid_api_key")
            tenants_key = {"authorization": "Bearer sk-alice-1"}
            refused(api.request(method, url, json=body, headers=tenants_key), 403, "admin_key_required")
            operators_key = {"authorization": "Bearer sk-operator"}
            assert api.request(method, url, json=body, headers=operators_key).is_success, path
    actions = [vars(record)["action"] for record in caplog.records]
    assert actions == ["pin", "unpin", "set quota", "lift quota", "clear", "compact", "verify", "warm"]
    assert "sk-" not in json.dumps([vars(record) for record in caplog.records], default=str)
