"""The files of the web page: whole in themselves, and held to that."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

import service.web.page
from service.app import create_app
from service.settings import Settings
from service.web.page import Sample
from tests.service.asking import refused
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine
from tests.service.serving import serving

STATIC = Path(service.web.page.__file__).parent / "static"
SCRIPTS = sorted(path for path in STATIC.glob("*.js"))


def test_only_the_page_s_own_files_run(api: httpx.Client) -> None:
    response = api.get("/").raise_for_status()
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
    assert not re.search(r"\son\w+=|style=|<style|<script(?![^>]*\ssrc=)", response.text)
    linked = re.findall(r'(?:src|href)="([^"#]+)"', response.text)
    assert linked == ["data:,", "/page/style.css", "/page/app.js"]
    for path in linked[1:]:
        assert api.get(path).headers["content-security-policy"] == policy


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_imports_what_is_served_and_writes_no_markup(api: httpx.Client, path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 300 and max(map(len, text.splitlines())) <= 120
    assert "innerHTML" not in text and "insertAdjacentHTML" not in text and "eval(" not in text
    imported = re.findall(r'from "([^"]+)"', text)
    assert all(name.startswith("./") for name in imported)
    for name in imported:
        served = api.get(f"/page/{name.removeprefix('./')}").raise_for_status()
        assert served.headers["content-type"] == "text/javascript; charset=utf-8"


def test_styles_load_nothing(api: httpx.Client) -> None:
    text = api.get("/page/style.css").text
    assert "@import" not in text and "url(" not in text


@pytest.mark.parametrize(
    "name", ["../page.py", "..%2fpage.py", "%2e%2e/page.py", "vendor", "", "vendor/marked.LICENSE"]
)
def test_nothing_else_is_served(api: httpx.Client, name: str) -> None:
    refused(api.get(f"/page/{name}"), 404, "not_found")


def test_a_vendored_library_has_its_licence_beside_it() -> None:
    vendored = {path.name for path in (STATIC / "vendor").iterdir()}
    assert vendored == {"marked.esm.js", "marked.LICENSE", "purify.es.js", "dompurify.LICENSE"}


def test_page_offers_samples(engine: FakeEngine) -> None:
    sample = Sample("Two pages", ("/demo/pages/a.png", "/demo/pages/b.png"), "What is on page 2?")
    app = create_app(Settings.model_validate({"api_keys": "alice:sk-alice-1"}), engine, samples=[sample])
    with serving(app) as served:
        offered = httpx.get(f"{served.url}/samples.json", trust_env=False).json()
    assert offered == [{"title": "Two pages", "images": list(sample.images), "question": sample.question}]


def test_page_is_open_beside_keys_and_may_be_switched_off(start: Start) -> None:
    keyed = start(api_keys="alice:sk-alice-1")
    assert keyed.get("/").status_code == keyed.get("/page/app.js").status_code == 200
    refused(start(web_page=False).get("/"), 404, "not_found")
    refused(start(web_page=False, api_keys="alice:sk-alice-1").get("/page/app.js"), 401, "invalid_api_key")
