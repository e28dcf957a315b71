"""Tokens -> text, piece by piece, no character split."""

from __future__ import annotations

from typing import Any

REPLACEMENT = "\ufffd"
# So many of them at the end may still become text: the bytes of an unfinished character, three at most, and those of
# the one before it, four at most, which a tokenizer with a token for each byte shows so until all of the run is whole.
UNDECIDED = 4 + 3


class Detokenizer:
    """Incremental decoding: the pieces add up to the tokenizer's decoding of all tokens, and a character whose bytes
    are spread over tokens is held until it is whole. Bytes that can never become one are shown as U+FFFD.

    The library's `DecodeStream` would do but for that last: it holds a run of such bytes until something whole follows,
    so the stream of a model that writes nothing else stands still."""

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
        final = _final(text)
        piece, self._shown = text[self._shown : final], max(self._shown, final)
        if final == len(text):
            self._start, self._clean = self._clean, len(self._ids)
            self._shown = len(self._decode())
        return piece

    def flush(self) -> str:
        """What is still held at the end, without the bytes of a character that was cut off."""
        text = self._decode()
        return text[self._shown : _final(text)]

    def _decode(self) -> str:
        text: str = self._tokenizer.decode(self._ids[self._start :], skip_special_tokens=True)
        return text


def _final(text: str) -> int:
    """How much of `text` no further token can change."""
    return len(text) - min(UNDECIDED, len(text) - len(text.rstrip(REPLACEMENT)))
