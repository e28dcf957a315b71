"""Bodies read without a server."""

from __future__ import annotations

from typing import Any

import pytest

from service.errors import RequestError
from service.http.json_reader import PIECE_BYTES, JsonLimits, JsonReader

SMALL = JsonLimits(depth=4, items=10, wide=1000)


def read(body: bytes, step: int = PIECE_BYTES, limits: JsonLimits = SMALL) -> Any:
    """What `body` says, fed `step` bytes at a time."""
    reader = JsonReader(limits)
    for start in range(0, len(body), step):
        reader.feed(body[start : start + step])
    return reader.finish()


def fault(body: bytes, step: int = PIECE_BYTES, limits: JsonLimits = SMALL) -> RequestError:
    """Why `body` is refused."""
    with pytest.raises(RequestError) as caught:
        read(body, step, limits)
    return caught.value
