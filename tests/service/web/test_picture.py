"""The refresh picture and the comparison of speed, in a real browser."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
from playwright.sync_api import Locator, expect

from engine.messages import CacheOptions
from service.app import create_app
from service.settings import Settings
from tests.service.fake_engine import FakeEngine
from tests.service.serving import serving
from tests.service.web.conftest import Open
from tests.service.web.reading import Reader

# The colour in the middle of token (row, column) of a 6 x 6 grid.
_COLOUR = """([canvas, row, column]) => {
  const [x, y] = [(column + .5) * canvas.width / 6, (row + .5) * canvas.height / 6];
  return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data];
}"""


def opened(reader: Reader) -> Locator:
    """The picture of one red image."""
    reader.add_picture((200, 0, 0))
    reader.asked("What is it?", 1).get_by_role("button", name="Refresh picture").click()
    expect(reader.at(".picture canvas")).to_have_count(1)
    return reader.at(".picture")


def colour(picture: Locator, row: int, column: int, image: int = 0) -> list[int]:
    found: list[int] = picture.page.evaluate(
        _COLOUR, [picture.locator("canvas").nth(image).element_handle(), row, column]
    )
    return found


def test_the_picture_shows_which_tokens_were_refreshed(
    api: httpx.Client, engine: FakeEngine, visit: Open
) -> None:
    picture = opened(visit(api))
    asked = engine.requests[-1].cache
    assert (asked.mode, asked.explain, asked.chain) == ("read", True, "off")
    expect(picture.locator("figcaption")).to_have_text("Image 1: 4 of 36 tokens refreshed, hit")
    expect(picture.locator(".legend")).to_have_text("reusedcompiledrefreshedexactchained")
    refreshed, reused = colour(picture, 0, 0), colour(picture, 5, 5)
    assert refreshed != reused and colour(picture, 0, 3) == refreshed and colour(picture, 0, 4) == reused
    picture.get_by_label("Opacity").fill("0")
    assert colour(picture, 0, 0) == colour(picture, 5, 5) == [200, 0, 0, 255]  # the image itself


def test_layers_sliders_and_two_settings_side_by_side(
    api: httpx.Client, engine: FakeEngine, visit: Open
) -> None:
    picture = opened(visit(api))
    picture.get_by_label("Layer", exact=True).select_option("scores")
    expect(picture.locator(".legend")).to_contain_text("what chose it")
    assert colour(picture, 0, 0) != colour(picture, 2, 0) != colour(picture, 5, 5)
    picture.get_by_label("Layer", exact=True).select_option("drift")
    expect(picture).not_to_have_attribute("aria-busy", "true")
    assert {request.cache.refresh_ratio for request in engine.requests[-2:]} == {0.1, 1.0}
    picture.get_by_label("Two side by side").check()
    expect(picture.locator("canvas")).to_have_count(2)
    second = picture.locator(".arm").nth(1)
    second.get_by_label("Policy").select_option("reuse")
    second.get_by_label("Ratio").fill("0.25")
    expect(second.locator("output")).to_have_text("0.25")
    expect(picture).not_to_have_attribute("aria-busy", "true")
    assert any(
        (request.cache.policy, request.cache.refresh_ratio) == ("reuse", 0.25) for request in engine.requests
    )
    picture.get_by_label("Two side by side").uncheck()
    expect(picture.locator("canvas")).to_have_count(1)


def test_the_picture_can_be_saved_as_png_and_json(api: httpx.Client, visit: Open, tmp_path: Path) -> None:
    picture = opened(visit(api))
    for name, start in (("PNG", b"\x89PNG"), ("JSON", b"[")):
        with picture.page.expect_download() as saved:
            picture.get_by_role("button", name=f"Save {name}").click()
        path = tmp_path / saved.value.suggested_filename
        saved.value.save_as(path)
        assert path.name == f"refresh.{name.lower()}" and path.read_bytes().startswith(start)
    (report,) = json.loads((tmp_path / "refresh.json").read_text())
    assert report["images"][0]["explained"]["grid"] == [6, 6]


def test_speed_is_the_median_of_three_with_a_word_on_the_shipped_model(
    engine: FakeEngine, visit: Open
) -> None:
    app = create_app(Settings(model="models/page-reader"), engine)
    with serving(app) as served, httpx.Client(base_url=served.url, trust_env=False) as api:
        reader = visit(api)
        reader.add_picture()
        answer = reader.asked("How fast?", 1)
        answer.get_by_role("button", name="Measure speed").click()
        speed = reader.at(".speed")
        expect(speed).to_contain_text("median of 3")
        expect(speed).to_contain_text("full prefill3.0 ms")
        expect(speed.locator(".note")).to_contain_text("too small to gain")
    caches = [request.cache for request in engine.requests[2:]]
    full = CacheOptions(mode="bypass", policy="full", chain="off")
    assert caches[0::2] == [full] * 3 and caches[1::2] == [CacheOptions(chain="off")] * 3


def test_what_goes_wrong_with_the_picture_is_said_there(
    api: httpx.Client, engine: FakeEngine, visit: Open
) -> None:
    reader = visit(api)
    picture = opened(reader)
    reader.page.route(
        "**/v1/chat",
        lambda route: route.fulfill(
            status=400, json={"error": {"message": "Too much.", "code": "too_much_to_explain"}}
        ),
    )
    picture.get_by_label("Use chains").check()
    expect(picture.get_by_role("alert")).to_have_text("Too much.")
    reader.page.unroute("**/v1/chat")
    picture.get_by_label("Use chains").uncheck()
    expect(picture.locator(".error")).to_be_hidden()
    picture.get_by_role("button", name="Close").click()
    expect(picture).to_have_count(0)
