"""Text -> text that is final: nothing that a stop string may still take back."""

from __future__ import annotations

from collections.abc import Sequence

from engine.overlap import overlap


class StopStrings:
    """Cuts text exactly before the first stop string, which is `found` then, also where it arrives in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def add(self, text: str) -> str:
        """The text that can no longer become part of a stop string."""
        held = self._held + text
        places = [(held.find(stop), stop) for stop in self._stops if stop in held]
        if places:
            at, self.found = min(places, key=lambda place: place[0])
            self._held = ""
            return held[:at]
        keep = max((overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """Held text that turned out to be no stop string: the answer ended, or a call began."""
        held, self._held = self._held, ""
        return held
