"""Debian's chromium, driven by Playwright, on the page of a service over the fake engine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.service.web.reading import Reader

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
Open = Callable[..., Reader]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for the tests of a file: Playwright's loop must not run beside those of other tests."""
    if CHROMIUM is None:
        pytest.skip("no browser here: install Debian's package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A browser that has never been here."""
    with browser.new_context(accept_downloads=True) as context:
        context.set_default_timeout(15_000)
        yield context


@pytest.fixture
def visit(context: BrowserContext) -> Iterator[Open]:
    """Open the page of a service; whatever the page complains about in the console fails the test."""
    complaints: list[str] = []

    def open_page(api: httpx.Client, path: str = "/", **size: int) -> Reader:
        page: Page = context.new_page()
        if size:
            page.set_viewport_size({"width": size["width"], "height": size["height"]})
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        page.goto(f"{str(api.base_url).rstrip('/')}{path}")
        reader = Reader(page)
        reader.ready()
        return reader

    yield open_page
    assert [text for text in complaints if "the server responded with a status of" not in text] == []
