"""Is it alive, is it ready, what does it run, how is it doing."""

from __future__ import annotations

import asyncio
import dataclasses
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from engine.figures import ChainStats
from service.version import VERSION
from store.types import StoreStats
from tests.service.asking import refused
from tests.service.conftest import Start
from tests.service.fake_engine import INFO, FakeEngine
from tests.service.images.pictures import data_url, plain


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
    start: Start, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert start().get("/readyz").json()["degraded"] == []

    async def fail() -> None:
        raise OSError("no store")

    monkeypatch.setattr(engine.cache, "stats", fail)
    ready = start().get("/readyz")
    assert (ready.status_code, ready.json()["degraded"]) == (200, ["the store gives no answer"])


def test_a_model_that_must_not_be_reused_is_served_and_named(api: httpx.Client, engine: FakeEngine) -> None:
    engine.state = dataclasses.replace(engine.state, degraded=("reuse is refused",))
    ready = api.get("/readyz")
    assert (ready.status_code, ready.json()["degraded"]) == (200, ["reuse is refused"])
    assert "conduit_engine_degraded 1.0" in api.get("/metrics").text


def test_readyz_tells_of_a_worker_that_hangs_while_it_is_asked(
    start: Start, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang() -> None:
        engine.state = dataclasses.replace(engine.state, ready=False, reasons=("the worker is silent",))
        await asyncio.sleep(30)

    monkeypatch.setattr(engine.cache, "stats", hang)
    answer = start().get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["the worker is silent"]
    assert answer.json()["degraded"] == ["the store gives no answer"]


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (
            "lmdb: unreadable: [Errno 13] Permission denied: '/srv/my store/lmdb/data.mdb'",
            "lmdb: unreadable: [Errno 13] Permission denied: data.mdb",
        ),
        ("/var/lib/conduit/lmdb/ cannot be opened", "lmdb cannot be opened"),
        ("moved (/srv/a/b.quarantine-1); see /srv/a", "moved (b.quarantine-1); see a"),
        (
            "redis: failed: Error 111 connecting to 10.1.2.3:6379. Refused.",
            "redis: failed: Error 111 connecting to its server. Refused.",
        ),
        ("redis: [::1]:6379 is gone", "redis: its server is gone"),
        ('lmdb: unreadable: Traceback\n  File "/app/store/probe.py", line 3', "lmdb: unreadable: Traceback"),
        ("data.mdb is damaged (3/4 of it); 1,000 B/s", "data.mdb is damaged (3/4 of it); 1,000 B/s"),
        ("lmdb: the file system is short of space", "lmdb: the file system is short of space"),
    ],
)
def test_f21_readyz_shows_names_and_no_paths(
    start: Start, engine: FakeEngine, trouble: str, told: str
) -> None:
    engine.cache.degraded = (trouble,)
    engine.state = dataclasses.replace(engine.state, ready=False, reasons=(trouble,), degraded=(trouble,))
    body = start(api_keys="alice:sk-alice-1").get("/readyz").json()
    assert (body["reasons"], body["degraded"]) == ([told], [told, told])


def test_a_flood_of_readyz_asks_the_store_once_a_second(
    start: Start, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    answer = engine.cache.stats

    async def counted() -> StoreStats:
        asked.append(1)
        await asyncio.sleep(0.05)
        return await answer()

    monkeypatch.setattr(engine.cache, "stats", counted)
    monkeypatch.setattr("service.operator.figures._FRESH_SECONDS", 3600.0)
    api = start()
    with ThreadPoolExecutor(8) as pool:
        assert {r.status_code for r in pool.map(lambda _: api.get("/readyz"), range(32))} == {200}
    assert len(asked) == 1
    monkeypatch.setattr("service.operator.figures._FRESH_SECONDS", 0.0)
    api.get("/readyz")
    assert len(asked) == 2


def test_readyz_of_an_engine_that_gives_no_reason(api: httpx.Client, engine: FakeEngine) -> None:
    engine.state = dataclasses.replace(engine.state, ready=False)
    assert api.get("/readyz").json()["reasons"] == ["the engine is not ready"]


def test_models_name_what_can_be_sent(api: httpx.Client) -> None:
    (model,) = api.get("/v1/models").raise_for_status().json()["data"]
    assert (model["id"], model["max_model_len"]) == ("test-reader", INFO.max_context)
    assert model["architecture"]["input_modalities"] == ["text", "image"]
    assert model["policies"] == ["conduit", "full", "reuse"]
    assert api.get("/v1/models/models/test-reader").json() == model
    refused(api.get("/v1/models/gpt-4o"), 404, "model_not_found")


def test_model_may_be_given_a_name(start: Start) -> None:
    api = start(model_name="reader")
    assert api.get("/v1/models").json()["data"][0]["id"] == "reader"
    assert api.post("/v1/chat", json={"prompt": "x", "model": "reader"}).json()["model"] == "reader"


def test_version_is_that_of_the_project(api: httpx.Client) -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert api.get("/version").json()["version"] == VERSION == project["version"]


def test_metrics_count_requests_tokens_and_tiers(start: Start, engine: FakeEngine) -> None:
    api = start()
    chains = ChainStats(loaded=3, lost={"corrupt": 2})
    engine.state = dataclasses.replace(engine.state, chains=chains)
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
        'conduit_store_chain_entries{state="exact",tier="disk"} 2.0',
        'conduit_store_chain_bytes{state="refreshed",tier="chain"} 10.0',
        "conduit_chain_loaded_total 3.0",
        'conduit_chain_lost_total{reason="corrupt"} 2.0',
        "conduit_shadow_checks_total 0.0",
        "conduit_engine_ready 1.0",
    ]
    text = api.get("/metrics").text
    assert [line for line in expected if line not in text] == []


def test_metrics_survive_a_store_that_fails(api: httpx.Client, engine: FakeEngine) -> None:
    assert "conduit_store_compiles_total 2.0" in api.get("/metrics").text
    engine.cache.fault = RuntimeError("disk on fire")
    text = api.get("/metrics").raise_for_status().text
    assert "conduit_engine_ready" in text
    assert "conduit_store_compiles_total 2.0" in text, (
        "a counter that vanishes is a reset to whoever watches it"
    )
    broken = api.get("/v1/cache/stats")
    refused(broken, 500, "internal_error")
    assert "fire" not in broken.text
