"""What a reader does on the page."""

from __future__ import annotations

from dataclasses import dataclass

from playwright.sync_api import Locator, Page, expect

from tests.service.images.pictures import plain

# Lets go of a picture anywhere in the window, as a hand does.
_DROP = """([selector, bytes]) => {
  const data = new DataTransfer();
  data.items.add(new File([new Uint8Array(bytes)], "dropped.png", { type: "image/png" }));
  const target = document.querySelector(selector);
  const event = new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
  target.dispatchEvent(event);
  return event.defaultPrevented;
}"""


@dataclass(frozen=True)
class Reader:
    page: Page

    def ready(self) -> None:
        """The modules have run: the list of conversations has its first."""
        expect(self.page.locator("#histories option").first).to_be_attached()

    def at(self, selector: str) -> Locator:
        return self.page.locator(selector)

    def press(self, name: str, exact: bool = True) -> None:
        self.page.get_by_role("button", name=name, exact=exact).click()

    def add_picture(self, colour: tuple[int, int, int] = (255, 0, 0), name: str = "page.png") -> None:
        before = self.at("#attachments li").count()
        self.at("#files").set_input_files([{"name": name, "mimeType": "image/png", "buffer": plain(colour)}])
        expect(self.at("#attachments li")).to_have_count(before + 1)

    def drop(self, selector: str, content: bytes) -> bool:
        """True where the page took the drop instead of the browser."""
        taken: bool = self.page.evaluate(_DROP, [selector, list(content)])
        return taken

    def ask(self, text: str) -> None:
        """Type it and press Enter."""
        self.at("#question").fill(text)
        self.at("#question").press("Enter")

    def asked(self, text: str, answers: int) -> Locator:
        """Ask, and wait for the end of the answer, which is the `answers`-th."""
        self.ask(text)
        expect(self.at(".turn.assistant")).to_have_count(answers)
        last = self.at(".turn.assistant").last
        expect(last.get_by_role("button", name="Copy this answer")).to_be_visible()
        expect(self.at("#send")).to_be_enabled()
        return last
