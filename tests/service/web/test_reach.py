"""Everybody reaches everything: axe, keyboard, phone, light and dark."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.service.fake_engine import FakeEngine, says
from tests.service.web.conftest import Open
from tests.service.web.reading import Reader

AXE = (Path(__file__).parent / "vendor" / "axe.min.js").read_text()


def findings(page: Page) -> list[str]:
    """What axe finds wrong, rule by rule with the elements."""
    page.evaluate(AXE)  # not a script element: the page's policy holds for tests too
    found = page.evaluate("axe.run()")["violations"]
    return [f"{rule['id']}: {[node['target'] for node in rule['nodes']]}" for rule in found]


def in_use(api: httpx.Client, engine: FakeEngine, visit: Open) -> Reader:
    """A page on which everything is open."""
    engine.script = says("**Bold** and [a link](http://192.0.2.1/), `code`.")
    reader = visit(api)
    reader.add_picture()
    reader.asked("What is it?", 1).get_by_role("button", name="Regenerate this answer").click()
    answer = reader.at(".turn.assistant")
    answer.locator("summary").click()
    expect(answer.locator(".tag.hit")).to_be_visible()
    answer.get_by_role("button", name="Refresh picture").click()
    expect(reader.at(".picture canvas")).to_have_count(1)
    answer.get_by_role("button", name="Measure speed").click()
    expect(reader.at(".speed")).to_contain_text("median")
    reader.at("#settings summary").click()
    reader.at("#ratio").fill("2")
    reader.add_picture((0, 0, 255))
    reader.ask("And now?")
    expect(reader.at("#ratio-error")).to_be_visible()
    return reader


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(api: httpx.Client, engine: FakeEngine, visit: Open, scheme: str) -> None:
    reader = in_use(api, engine, visit)
    reader.page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    assert findings(reader.page) == []
    engine.cache.put("a" * 64)
    engine.cache.limits["alice"] = 1
    reader.at("#to-operator").click()
    expect(reader.at("#operator-view table")).to_have_count(2)
    assert findings(reader.page) == []
    reader.press("Key")
    expect(reader.at("#key-dialog")).to_be_visible()
    assert findings(reader.page) == []


def test_the_keyboard_is_enough(api: httpx.Client, engine: FakeEngine, visit: Open) -> None:
    reader = visit(api)
    reader.page.keyboard.press("Tab")
    expect(reader.at(".skip")).to_be_focused()
    reader.page.keyboard.press("Enter")
    reader.page.keyboard.type("By keys?")
    reader.page.keyboard.press("Shift+Enter")
    reader.page.keyboard.type("Two lines?")
    reader.page.keyboard.press("Enter")
    expect(reader.at(".turn.assistant .text")).to_have_text("The total is 42.")
    expect(reader.at("#status")).to_have_text("Answer: The total is 42.")  # what a screen reader says
    assert engine.requests[0].messages[0].parts[0].text == "By keys?\nTwo lines?"  # type: ignore[union-attr]
    engine.script = says("slow " * 300, pause=0.05)
    expect(reader.at("#send")).to_be_enabled()
    reader.ask("Go on?")
    expect(reader.at(".turn.assistant").nth(1)).to_contain_text("slow")
    reader.page.keyboard.press("Escape")
    expect(reader.at(".turn.assistant").nth(1)).to_contain_text("Stopped.")


def test_on_a_phone_the_answer_is_seen_without_scrolling(api: httpx.Client, visit: Open) -> None:
    reader = visit(api, width=360, height=640)
    for number in (1, 2, 3):
        reader.add_picture()
        answer = reader.asked(f"Question {number}?", number)
    box, composer = answer.locator(".text").bounding_box(), reader.at("#composer").bounding_box()
    assert box is not None and composer is not None
    assert box["y"] >= 0 and box["y"] + box["height"] <= composer["y"] + 1
    assert reader.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
