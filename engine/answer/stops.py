"""Text -> text that is final: nothing that a stop string may still take back."""

from __future__ import annotations

from collections.abc import Sequence

from engine.overlap import overlap


class StopStrings:
    """Cuts text exactly before the first stop string, also where it arrives in pieces."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found = False

    def add(self, text: str) -> str:
        """The text that can no longer become part of a stop string."""
        held = self._held + text
        at = min((i for i in (held.find(stop) for stop in self._stops) if i >= 0), default=-1)
        if at >= 0:
            self.found = True
            self._held = ""
            return held[:at]
        keep = max((overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """Held text that turned out to be no stop string: the answer ended, or a call began."""
        held, self._held = self._held, ""
        return held
