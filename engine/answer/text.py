"""Tokens -> text that is final: no split character, nothing that a stop string may still take back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Incremental decoding: the pieces add up to the tokenizer's decoding of all tokens, and a character whose bytes
    are spread over tokens is held until it is whole. Bytes that can never become one are shown as U+FFFD."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        # The window that is decoded: from a token back, as context for tokenizers that treat a first token differently.
        self._start = 0
        self._clean = 0
        self._shown = 0

    def add(self, token: int) -> str:
        """The text that became final with this token."""
        self._ids.append(token)
        text = self._decode()
        # An unfinished character decodes to one U+FFFD at the very end; what stands before it cannot change any more.
        final = len(text) - text.endswith(REPLACEMENT)
        piece, self._shown = text[self._shown : final], max(self._shown, final)
        if final == len(text):
            self._start, self._clean = self._clean, len(self._ids)
            self._shown = len(self._decode())
        return piece

    def flush(self) -> str:
        """What is still held at the end, without the bytes of a character that was cut off."""
        return self._decode()[self._shown :].removesuffix(REPLACEMENT)

    def _decode(self) -> str:
        text: str = self._tokenizer.decode(self._ids[self._start :], skip_special_tokens=True)
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
