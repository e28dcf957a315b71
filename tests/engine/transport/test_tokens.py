"""Questions about tokens over either transport: pixels stay here."""

from __future__ import annotations

import asyncio
from typing import Any

from engine.messages import GenerateRequest, ImageInput
from engine.reports import Tokenized
from engine.transport.tokens import TokensProxy


def test_pixels_do_not_travel() -> None:
    asked: list[tuple[str, tuple[Any, ...]]] = []

    async def call(name: str, arguments: tuple[Any, ...]) -> Any:
        asked.append((name, arguments))
        return Tokenized((1, 2), ()) if name == "tokenize" else "text"

    image = ImageInput(b"d", 2, 1, b"abcdef")
    proxy = TokensProxy(call)
    assert asyncio.run(proxy.tokenize(GenerateRequest("r", "t", (), (image,)))) == Tokenized((1, 2), ())
    assert asyncio.run(proxy.detokenize([3, 4])) == "text"
    (_, (sent,)), second = asked
    assert sent.images == (ImageInput(b"d", 2, 1, b""),)
    assert second == ("detokenize", ((3, 4),))
