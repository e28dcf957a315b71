"""Demo mode: pages to ask about, offered by the web page, read by the service from itself."""

from __future__ import annotations

import httpx
import pytest

from demo.service_process import free_port
from service.__main__ import build_app
from service.demo_mode import demo_samples, fetching_from_itself
from service.settings import Settings
from tests.service.asking import refused
from tests.service.fake_engine import FakeEngine
from tests.service.serving import serving


def test_samples_ask_about_the_same_pages_in_several_ways() -> None:
    samples = demo_samples()
    assert samples == demo_samples()
    assert len({sample.title for sample in samples}) == len({sample.question for sample in samples}) == 3
    assert len({frozenset(sample.images) for sample in samples}) == 1
    assert samples[0].images == samples[1].images != samples[2].images


def test_only_its_own_address_is_added() -> None:
    settings = Settings(port=9000, allowed_private_hosts=("files.internal", "127.0.0.1:9000"))
    hosts = fetching_from_itself(settings).allowed_private_hosts
    assert hosts == ("files.internal", "127.0.0.1:9000", "localhost:9000")


def test_every_sample_can_be_asked(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.__main__.start_client", lambda settings: engine)
    port = free_port()
    with (
        serving(build_app(Settings(demo=True, port=port)), port) as served,
        httpx.Client(base_url=served.url, timeout=30, trust_env=False) as api,
    ):
        for sample in api.get("/samples.json").raise_for_status().json():
            for base in (served.url, f"http://localhost:{port}"):
                body = {"prompt": sample["question"], "images": [base + path for path in sample["images"]]}
                api.post("/v1/chat", json=body).raise_for_status()
    assert {len(request.images) for request in engine.requests} == {4}


def test_without_it_there_are_no_pages(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.__main__.start_client", lambda settings: engine)
    with (
        serving(build_app(Settings())) as served,
        httpx.Client(base_url=served.url, timeout=30, trust_env=False) as api,
    ):
        assert api.get("/samples.json").json() == []
        path = demo_samples()[0].images[0]
        refused(api.get(path), 404, "not_found")
        refused(
            api.post("/v1/chat", json={"prompt": "x", "images": [served.url + path]}),
            400,
            "image_url_blocked",
        )
