"""A conversation on the page, in a real browser."""

from __future__ import annotations

import httpx
from playwright.sync_api import expect

from engine.messages import TextPart
from tests.service.conftest import Start
from tests.service.fake_engine import FakeEngine, fails, says
from tests.service.images.pdfs import plain_pdf
from tests.service.images.pictures import plain
from tests.service.web.conftest import Open

MARKUP = """**Bold** and `code`

| a | b |
|---|---|
| 1 | 2 |

<img src="http://192.0.2.1/leak.png"><script>window.hacked = 1</script><a href="javascript:hacked()">x</a>
![out](http://192.0.2.1/leak.png)"""


def question_of(engine: FakeEngine, i: int = -1) -> list[str]:
    """Role and text of every message of request `i`."""
    return [
        f"{message.role}: {' '.join(part.text for part in message.parts if isinstance(part, TextPart))}"
        for message in engine.requests[i].messages
    ]


def test_a_second_question_remembers_the_first_and_images_may_come_in_any_turn(
    api: httpx.Client, engine: FakeEngine, visit: Open
) -> None:
    reader = visit(api)
    reader.add_picture()
    answer = reader.asked("What is it?", 1)
    expect(answer.locator(".text")).to_have_text("The total is 42.")
    reader.add_picture((0, 0, 255))
    reader.asked("And this?", 2)
    assert question_of(engine) == ["user: What is it?", "assistant: The total is 42.", "user: And this?"]
    assert len(engine.requests[1].images) == 2


def test_a_reload_loses_nothing_and_one_button_clears_all(api: httpx.Client, visit: Open) -> None:
    reader = visit(api)
    reader.add_picture()
    reader.asked("Is it kept?", 1)
    reader.page.reload()
    reader.ready()
    expect(reader.at(".turn.user .asked")).to_have_text("Is it kept?")
    expect(reader.at(".turn.assistant .text")).to_have_text("The total is 42.")
    reader.press("New")
    expect(reader.at(".turn")).to_have_count(0)
    reader.at("#histories").select_option(label="Is it kept?")
    expect(reader.at(".turn")).to_have_count(2)
    reader.press("Clear history")
    expect(reader.at(".turn")).to_have_count(0)
    reader.page.reload()
    reader.ready()
    expect(reader.at(".turn")).to_have_count(0)
    expect(reader.at("#histories option")).to_have_count(1)


def test_edit_and_regenerate_ask_anew_from_there(api: httpx.Client, engine: FakeEngine, visit: Open) -> None:
    reader = visit(api)
    reader.add_picture()
    reader.asked("First?", 1)
    reader.asked("Second?", 2)
    reader.at(".turn.user").first.get_by_role("button", name="Edit this question").click()
    expect(reader.at("#question")).to_have_value("First?")
    expect(reader.at("#attachments li")).to_have_count(1)
    reader.asked("First, but other?", 1)
    assert question_of(engine) == ["user: First, but other?"] and len(engine.requests[-1].images) == 1
    reader.at(".turn.assistant").get_by_role("button", name="Regenerate this answer").click()
    expect(reader.at("#send")).to_be_enabled()
    expect(reader.at(".turn.assistant")).to_have_count(1)
    assert len(engine.requests) == 4 and question_of(engine) == ["user: First, but other?"]


def test_an_answer_comes_piece_by_piece_and_can_be_stopped(
    api: httpx.Client, engine: FakeEngine, visit: Open
) -> None:
    engine.script = says("one " + "more " * 500, pause=0.05)
    reader = visit(api)
    reader.ask("Go on?")
    expect(reader.at(".turn.assistant .text")).to_contain_text("one more")
    expect(reader.at("#send")).to_be_disabled()
    reader.press("Stop")
    expect(reader.at(".turn.assistant")).to_contain_text("Stopped.")
    expect(reader.at("#send")).to_be_enabled()
    expect(reader.at(".turn.assistant .text")).to_contain_text("one more")
    engine.script = says("Yes.")
    reader.asked("Again?", 2)
    assert question_of(engine)[1].startswith("assistant: one more")


def test_markdown_is_shown_and_what_could_run_or_load_is_not(
    api: httpx.Client, engine: FakeEngine, visit: Open
) -> None:
    engine.script = says(MARKUP)
    reader = visit(api)
    fetched: list[str] = []
    reader.page.on("request", lambda request: fetched.append(request.url))
    text = reader.asked("Show?", 1).locator(".text")
    expect(text.locator("strong")).to_have_text("Bold")
    expect(text.locator("td").first).to_have_text("1")
    expect(text.locator("img, script")).to_have_count(0)
    assert reader.page.evaluate("window.hacked") is None
    assert text.locator("a[href^='javascript']").count() == 0
    assert [url for url in fetched if "192.0.2.1" in url] == []


def test_the_answer_can_be_copied(api: httpx.Client, visit: Open) -> None:
    reader = visit(api)
    reader.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer = reader.asked("Copy?", 1)
    answer.get_by_role("button", name="Copy this answer").click()
    expect(reader.at("#status")).to_have_text("Copied.")
    assert reader.page.evaluate("navigator.clipboard.readText()") == "The total is 42."


def test_a_picture_dropped_anywhere_is_taken(api: httpx.Client, visit: Open) -> None:
    reader = visit(api)
    for place in ("header", "#turns", "body"):
        assert reader.drop(place, plain()), place
    expect(reader.at("#attachments li")).to_have_count(3)
    reader.at("#attachments").get_by_role("button", name="Remove image 1").click()
    expect(reader.at("#attachments li")).to_have_count(2)


def test_a_picture_may_be_named_by_its_address(api: httpx.Client, engine: FakeEngine, visit: Open) -> None:
    reader = visit(api)
    reader.at("#url").fill("page.png")
    reader.press("Add")
    expect(reader.at("#attach-error")).to_contain_text("http://")
    assert reader.at("#url").get_attribute("aria-invalid") == "true"
    reader.at("#url").fill(f"{api.base_url}/nowhere.png")
    reader.press("Add")
    expect(reader.at("#attachments li")).to_have_count(1)
    reader.ask("What?")
    expect(reader.at(".turn.assistant .error")).to_be_visible()
    expect(reader.at(".turn.user .fault")).to_have_count(1)  # the picture at fault is marked
    assert engine.requests == []


def test_a_wrong_ratio_is_said_beside_its_field_and_any_good_one_is_sent(
    api: httpx.Client, engine: FakeEngine, visit: Open
) -> None:
    reader = visit(api)
    reader.at("#settings summary").click()
    for wrong in ("1.5", "nan", "a half", "-1"):
        reader.at("#ratio").fill(wrong)
        reader.at("#settings").evaluate("section => { section.open = false; }")
        reader.ask("What?")
        expect(reader.at("#ratio-error")).to_be_visible()
        expect(reader.at("#ratio")).to_be_focused()
    assert engine.requests == []
    for good, sent in (("0.33", 0.33), ("0,5", 0.5), ("1", 1.0)):
        reader.at("#ratio").fill(good)
        reader.ask("What?")
        expect(reader.at("#send")).to_be_enabled()
        expect(reader.at("#ratio-error")).to_be_hidden()
        assert engine.requests[-1].cache.refresh_ratio == sent
    reader.at("#ratio").fill("")
    reader.ask(" ")
    expect(reader.at("#question-error")).to_have_text("What is the question?")


def test_what_the_service_refuses_is_said_in_the_turn(
    api: httpx.Client, engine: FakeEngine, visit: Open
) -> None:
    engine.script = fails("queue_full", "Too much is going on.")
    reader = visit(api)
    answer = reader.asked("Now?", 1)
    expect(answer.locator(".error")).to_have_text("Too much is going on.")
    engine.script = says("Yes.")
    answer.get_by_role("button", name="Regenerate this answer").click()
    expect(reader.at(".turn.assistant .text")).to_have_text("Yes.")


def test_a_key_is_asked_for_when_one_is_wanted(start: Start, visit: Open) -> None:
    api = start(api_keys="alice:sk-alice-1")
    reader = visit(api)
    expect(reader.at("#key-dialog")).to_be_visible()
    reader.at("#key").fill("sk-alice-1")
    reader.at("#key").press("Enter")
    expect(reader.at("#model")).to_contain_text("test-reader")
    reader.asked("With a key?", 1)
    reader.page.reload()
    reader.ready()
    reader.asked("Still?", 2)


def test_a_miss_is_shown_as_compiled_and_a_hit_as_reused(api: httpx.Client, visit: Open) -> None:
    reader = visit(api)
    reader.add_picture((1, 2, 3))
    first = reader.asked("Cold?", 1).locator("summary")
    expect(first).to_have_text("of 36 visual tokens 32 compiled, 4 refreshed")
    reader.add_picture((1, 2, 3))
    second = reader.asked("Warm?", 2).locator("summary")
    expect(second).to_contain_text("reused")


def test_a_pdf_where_the_service_takes_none_is_told_so(start: Start, visit: Open) -> None:
    reader = visit(start())
    reader.page.route(
        "**/v1/files", lambda route: route.fulfill(status=404, json={"error": {"message": "No such route."}})
    )
    reader.at("#files").set_input_files(
        [{"name": "a.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7"}]
    )
    expect(reader.at("#attach-error")).to_have_text("a.pdf: this service takes no PDF files.")


def test_a_pdf_is_uploaded_once_and_its_pages_are_asked_about(
    api: httpx.Client, engine: FakeEngine, visit: Open
) -> None:
    reader = visit(api)
    pdf = plain_pdf((1, 0, 0), (2, 0, 0))
    reader.at("#files").set_input_files([{"name": "a.pdf", "mimeType": "application/pdf", "buffer": pdf}])
    expect(reader.at("#attachments .document")).to_have_attribute("title", "a.pdf")
    answer = reader.asked("What is on page 2?", 1)
    assert len(engine.requests[-1].images) == 2
    reader.asked("And on page 1?", 2)
    assert len(engine.requests[-1].images) == 2
    answer.get_by_role("button", name="Refresh picture").click()
    expect(answer.locator("canvas")).to_have_count(2)  # without pixels, which only the service has


def test_a_pdf_that_cannot_be_read_is_said_beside_the_pictures(api: httpx.Client, visit: Open) -> None:
    reader = visit(api)
    reader.at("#files").set_input_files(
        [{"name": "a.pdf", "mimeType": "application/pdf", "buffer": b"%PDF-1.7"}]
    )
    expect(reader.at("#attach-error")).to_contain_text("a.pdf: ")
    expect(reader.at("#attachments li")).to_have_count(0)


# As a browser does that has no room left.
FULL = """() => {
  IDBObjectStore.prototype.put = () => { throw new DOMException("full", "QuotaExceededError"); };
}"""


def test_what_this_browser_cannot_keep_is_said(api: httpx.Client, visit: Open) -> None:
    reader = visit(api)
    reader.page.evaluate(FULL)
    reader.asked("Is it kept?", 1)
    expect(reader.at("#history-error")).to_contain_text("not kept")
    expect(reader.at(".turn.assistant .text")).to_have_text("The total is 42.")
