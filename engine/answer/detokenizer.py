"""Tokens -> text, piece by piece, no character split."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

REPLACEMENT = "\ufffd"


class Detokenizer:
    """The library's `DecodeStream` with an end: the pieces add up to the tokenizer's decoding of all tokens, and a
    character whose bytes are spread over tokens is held until it is whole. Bytes that can never become one are shown as
    U+FFFD as soon as something whole follows.

    For tokenizers of bytes, as all served families have. One that falls back to bytes for what it does not know
    (SentencePiece) decodes a run of them as a whole; there `DecodeStream` raises on bytes that are no text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._stream = DecodeStream(skip_special_tokens=True)
        self._ids: list[int] = []
        self._shown = 0

    def add(self, token: int) -> str:
        """The text that became final with this token."""
        self._ids.append(token)
        piece = self._stream.step(self._tokenizer, token) or ""
        self._shown += len(piece)
        return piece

    def flush(self) -> str:
        """What is still held at the end, without the bytes of a character that was cut off."""
        text: str = self._tokenizer.decode(self._ids, skip_special_tokens=True)
        return text[self._shown :].removesuffix(REPLACEMENT)
