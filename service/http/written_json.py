"""JSON of any length: what is long in an answer is written bit by bit while it comes, since the encoder holds the
interpreter, and with it the loop, for as long as it works."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Iterator
from typing import Any, Final

from starlette.responses import Response

# Stands for a list in what the encoder writes; nobody outside can know it.
_MARK: Final = uuid.uuid4().hex


class WrittenList:
    """A list that is kept as the JSON it will be."""

    def __init__(self) -> None:
        self._items: list[bytes] = []

    def __iadd__(self, items: Iterable[object]) -> WrittenList:
        self._items += map(encoded, items)
        return self

    def __len__(self) -> int:
        return len(self._items)

    def first(self, count: int | None) -> WrittenList:
        """A list of so many of its items, None for all."""
        found = WrittenList()
        found._items = self._items[:count]
        return found

    def pieces(self) -> Iterator[bytes]:
        yield b"["
        for place, item in enumerate(self._items):
            if place:
                yield b","
            yield item
        yield b"]"


def encoded(value: object) -> bytes:
    """`value` as JSON; a `WrittenList` may stand wherever a list may."""
    lists: list[WrittenList] = []

    def place(found: object) -> str:
        if not isinstance(found, WrittenList):
            raise TypeError(f"{type(found).__name__} is no JSON")
        lists.append(found)
        return _MARK

    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=place)
    if not lists:
        return text.encode()
    first, *rest = text.encode().split(b'"%s"' % _MARK.encode())
    pieces = [first]
    for found, behind in zip(lists, rest, strict=True):
        pieces += found.pieces()
        pieces.append(behind)
    return b"".join(pieces)


class WrittenResponse(Response):
    """As `JSONResponse`, of what `encoded` takes."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return encoded(content)
