"""The operator's view, in a real browser."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Locator, expect

from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine
from tests.service.images.pictures import data_url, plain
from tests.service.web.conftest import Open
from tests.service.web.reading import Reader

KEYS = [f"{i}{'a' * 63}" for i in range(3)]


@pytest.fixture
def reader(api: httpx.Client, engine: FakeEngine, visit: Open) -> Reader:
    for key in KEYS:
        engine.cache.put(key)
    return visit(api, "/#operator")


def part(reader: Reader, title: str) -> Locator:
    return reader.page.get_by_role("region", name=title, exact=True)


def test_tiers_show_fill_and_hit_ratio(reader: Reader) -> None:
    tiers = part(reader, "Tiers")
    expect(tiers.locator("h3")).to_have_text(["decoded", "memory", "disk"])
    expect(tiers.locator("svg").first).to_have_attribute(
        "aria-label", "decoded over time: now 12 % full, hit ratio 71 %"
    )
    expect(tiers.locator(".tier p").first).to_have_text("1 entries, 12 B of 100 B, hit ratio 71 %")


def test_entries_can_be_pinned_and_removed(reader: Reader, engine: FakeEngine) -> None:
    listed = part(reader, "Entries")
    expect(listed.locator("tbody tr")).to_have_count(3)
    listed.get_by_role("button", name=f"Pin {KEYS[0][:16]}").click()
    expect(listed.get_by_role("button", name=f"Unpin {KEYS[0][:16]}")).to_be_visible()
    assert engine.cache.held[KEYS[0]].pinned == "hard"
    listed.get_by_role("button", name=f"Unpin {KEYS[0][:16]}").click()
    expect(listed.get_by_role("button", name=f"Pin {KEYS[0][:16]}", exact=True)).to_be_visible()
    listed.get_by_role("button", name=f"Remove {KEYS[1][:16]}").click()
    expect(listed.locator("tbody tr")).to_have_count(2)
    assert KEYS[1] not in engine.cache.held


def test_an_eviction_is_tried_dry_first(reader: Reader, engine: FakeEngine) -> None:
    evict = part(reader, "Evict")
    go = evict.get_by_role("button", name="Evict", exact=True)
    expect(go).to_be_disabled()
    evict.get_by_role("button", name="Dry run").click()
    expect(evict).to_contain_text("Would remove 3 entries, 12.0 KiB")
    assert len(engine.cache.held) == 3
    evict.get_by_label("Tenant").fill("nobody")
    expect(go).to_be_disabled()  # another question than the one that was tried
    evict.get_by_label("Tenant").fill("")
    evict.get_by_role("button", name="Dry run").click()
    go.click()
    expect(evict).to_contain_text("Removed 3 entries")
    assert engine.cache.held == {}


def test_a_condition_that_is_no_number_evicts_nothing(reader: Reader, engine: FakeEngine) -> None:
    """Sent as it is, it would be null in JSON: no condition at all."""
    evict = part(reader, "Evict")
    evict.get_by_label("Tenant").fill("default")
    evict.get_by_label("Unused for").fill("an hour")
    evict.get_by_role("button", name="Dry run").click()
    expect(evict.get_by_role("alert")).to_have_text("an hour is no number.")
    expect(evict.get_by_role("button", name="Evict", exact=True)).to_be_disabled()
    assert len(engine.cache.held) == 3


def test_warm_verify_and_quotas(reader: Reader, engine: FakeEngine) -> None:
    warm = part(reader, "Warm")
    warm.get_by_label("Addresses of pictures").fill(f"{data_url(plain())}\ndata:,x")
    warm.get_by_label("Tenant").fill("alice")
    warm.get_by_role("button", name="Warm").click()
    expect(warm).to_contain_text("2 of 2 done")
    expect(warm.get_by_role("alert")).to_be_visible()
    assert engine.requests[0].tenant == "alice"
    verify = part(reader, "Verify")
    verify.get_by_role("button").click()
    expect(verify).to_contain_text("3 records checked, 1 removed")
    quotas = part(reader, "Quotas")
    quotas.get_by_label("Tenant").fill("alice")
    quotas.get_by_label("Bytes in each tier").fill("2097152")
    quotas.get_by_role("button", name="Set").click()
    expect(quotas).to_contain_text("alice may hold 2.0 MiB in each tier")
    assert engine.cache.limits == {"alice": 2**21}
    quotas.get_by_role("button", name="Lift the quota of alice").click()
    expect(quotas).to_contain_text("No tenant has a quota.")
    quotas.get_by_label("Bytes in each tier").fill("lots")
    quotas.get_by_role("button", name="Set").click()
    expect(quotas.get_by_role("alert")).to_have_text("lots is no number.")


def test_an_entry_that_this_browser_asked_about_has_its_picture(
    api: httpx.Client, engine: FakeEngine, visit: Open
) -> None:
    reader = visit(api)
    reader.add_picture((9, 8, 7))
    reader.asked("Known?", 1)
    engine.cache.put(engine.requests[0].images[0].digest.hex())
    reader.at("#to-operator").click()
    expect(part(reader, "Entries").get_by_role("img", name="The picture")).to_have_count(1)


def test_the_operator_s_key_is_asked_for_and_a_caller_s_is_not_enough(start: Start, visit: Open) -> None:
    api = start(api_keys="alice:sk-alice-1", admin_key="sk-operator")
    reader = visit(api)
    reader.at("#key").fill("sk-alice-1")
    reader.at("#key").press("Enter")
    expect(reader.at("#model")).to_contain_text("test-reader")
    reader.at("#to-operator").click()
    expect(reader.at("#key-why")).to_contain_text("operator")
    reader.at("#key").fill("sk-operator")
    reader.at("#key").press("Enter")
    expect(part(reader, "Tiers").locator("h3").first).to_be_visible()
    reader.at("#to-ask").click()
    reader.asked("As myself?", 1)
