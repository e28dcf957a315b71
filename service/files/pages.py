"""Which pages of a file are meant: `1-3,7,9-`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from service.errors import RequestError

_RANGE: Final = re.compile(r"(?P<first>\d{1,9})(?P<to>-(?P<last>\d{1,9})?)?", re.ASCII)


def chosen_pages(text: str | None, count: int, most: int, param: str) -> tuple[int, ...]:
    """The pages that `text` names, in its order; all `count` of the file where it is None. Those behind the first
    `most` are left out. Raises `RequestError` where the file has no page of a number."""
    return tuple(islice(_pages(text, count, param), most))


def _pages(text: str | None, count: int, param: str) -> Iterator[int]:
    if text is None:
        yield from range(1, count + 1)
        return
    for piece in text.split(","):
        found = _RANGE.fullmatch(piece.strip())
        if found is None:
            message = "'pages' must be numbers and ranges such as '1-3,7,9-'."
            raise RequestError("invalid_request", message, param=param)
        first = int(found["first"])
        last = int(found["last"] or count) if found["to"] else first
        if not 1 <= first <= last <= count:
            raise RequestError("invalid_request", f"The file has pages 1 to {count}.", param=param)
        yield from range(first, last + 1)
