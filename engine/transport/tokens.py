"""Questions about a model's tokens: the HTTP side's end, which asks over a pipe or a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from engine.messages import GenerateRequest
from engine.reports import Tokenized


class TokensProxy:
    """`Tokens` by asking `call(name, arguments)` of `engine.serving.tokens`."""

    def __init__(self, call: Callable[[str, tuple[object, ...]], Awaitable[Any]]) -> None:
        self._call = call

    async def tokenize(self, request: GenerateRequest) -> Tokenized:
        sizes = tuple(replace(image, pixels=b"") for image in request.images)
        tokenized: Tokenized = await self._call("tokenize", (replace(request, images=sizes),))
        return tokenized

    async def detokenize(self, ids: Sequence[int]) -> str:
        text: str = await self._call("detokenize", (tuple(ids),))
        return text
