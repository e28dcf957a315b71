"""The web page: whole in itself, and held to that."""

from __future__ import annotations

import base64
import hashlib
import re

import httpx

from service.app import create_app
from service.settings import Settings
from service.web.page import Sample
from tests.service.asking import refused
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine
from tests.service.serving import serving


def test_page_runs_its_own_script_and_nothing_else(api: httpx.Client) -> None:
    response = api.get("/").raise_for_status()
    assert response.headers["content-type"].startswith("text/html")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag in ("script", "style"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_page_loads_nothing_from_elsewhere(api: httpx.Client) -> None:
    text = api.get("/").text
    assert re.findall(r'(?:src|href)="([^"]*)"', text) == ["data:,"]
    assert "@import" not in text and "url(" not in text
    assert not re.search(r"\son\w+=|style=", text), "inline handlers and styles would be blocked"
    assert "innerHTML" not in text, "answers are text, never markup"


def test_u3_the_bar_tells_where_every_visual_token_is_from(api: httpx.Client) -> None:
    text = api.get("/").text
    shown = re.findall(r'\["(\w)", report\.(\w+)_tokens,', text)
    assert shown == [("r", "reused"), ("c", "compiled"), ("f", "refreshed"), ("h", "chained")]
    for kind, origin in shown:
        assert f".{kind} {{ --kind: var(--{origin}); }}" in text


def test_page_offers_samples(engine: FakeEngine) -> None:
    sample = Sample("Two pages", ("/demo/pages/a.png", "/demo/pages/b.png"), "What is on page 2?")
    app = create_app(Settings.model_validate({"api_keys": "alice:sk-alice-1"}), engine, samples=[sample])
    with serving(app) as served:
        offered = httpx.get(f"{served.url}/samples.json", trust_env=False).json()
    assert offered == [{"title": "Two pages", "images": list(sample.images), "question": sample.question}]


def test_page_is_open_beside_keys_and_may_be_switched_off(start: Start) -> None:
    assert start(api_keys="alice:sk-alice-1").get("/").status_code == 200
    refused(start(web_page=False).get("/"), 404, "not_found")
    refused(start(web_page=False, api_keys="alice:sk-alice-1").get("/"), 401, "invalid_api_key")
