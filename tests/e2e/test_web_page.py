"""The web page over a real model: what it shows is what the API says."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.e2e.live import Live
from tests.service.web.conftest import Open, browser, context, visit

PAGES = ("red_71_A05k4_C11m2_F20n7", "blue_4_B07m3_E13k1_H30n5")

__all__ = ["browser", "context", "visit"]


@pytest.mark.slow
def test_the_page_draws_what_a_request_refreshed(live: Live, visit: Open) -> None:
    reader = visit(live.api)
    for page in PAGES:
        reader.at("#url").fill(f"{live.url}/demo/pages/{page}.png")
        reader.press("Add")
    answer = reader.asked("What is B on the blue page?", 1)
    asked = {
        "prompt": "What is B on the blue page?",
        "images": [f"{live.url}/demo/pages/{page}.png" for page in PAGES],
        "cache": {"explain": True, "chain": "off", "refresh_ratio": 0.1},
        "max_tokens": 1,
    }
    report = live.api.post("/v1/chat", json=asked).raise_for_status().json()["kv_report"]
    answer.get_by_role("button", name="Refresh picture").click()
    first, second = report["images"]
    assert first["exact"] and second["refreshed"] == 4
    expect(reader.at(".picture figcaption")).to_have_text(
        ["Image 1: 0 of 36 tokens refreshed, exact, hit", "Image 2: 4 of 36 tokens refreshed, hit"]
    )
    reader.at("#to-operator").click()
    expect(reader.at("#operator-view .tier h3")).to_have_text(["decoded", "memory", "lmdb"])
    expect(reader.at("#operator-view tbody img")).to_have_count(2)
