"""Tokens -> text that is final: no split character, nothing that a stop string may still take back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Incremental decoding. A character whose bytes are spread over tokens is held until it is whole; bytes that can
    never become one are shown as U+FFFD, as the tokenizer does."""

    # Longest run of tokens that one unfinished character may take: four bytes of UTF-8, one token each at worst.
    LONGEST_CHARACTER = 4

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = 0
        self._context = 0

    def add(self, token: int) -> str:
        """The text that became final with this token."""
        self._ids.append(token)
        known = self._decode(self._context, self._shown)
        text = self._decode(self._context, len(self._ids))
        pending = len(self._ids) - self._shown
        if text.endswith(REPLACEMENT) and pending < self.LONGEST_CHARACTER:
            return ""
        self._context, self._shown = self._shown, len(self._ids)
        return text[len(known) :]

    def flush(self) -> str:
        """What is still held at the end, without the bytes of a character that was cut off."""
        known = self._decode(self._context, self._shown)
        return self._decode(self._context, len(self._ids))[len(known) :].rstrip(REPLACEMENT)

    def _decode(self, first: int, last: int) -> str:
        ids = self._ids[first:last]
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


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
        keep = max((_overlap(held, stop) for stop in self._stops), default=0)
        self._held = held[len(held) - keep :]
        return held[: len(held) - keep]

    def flush(self) -> str:
        """Held text that turned out to be no stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest proper prefix of `stop` that `text` ends with."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
