"""Pictures of URLs that were asked about before, so that a host which says "not modified" spares download and
decoding.

The index is per tenant: whether a URL is known, and how fast it answers, is nobody else's business.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from engine.messages import ImageInput
from service.images.fetch import Validators

_OVERHEAD_BYTES: Final = 1024
"""What an entry costs besides its pixels, generously: tiny pictures must not make an unbounded index."""


@dataclass(frozen=True, slots=True)
class KnownImage:
    validators: Validators
    image: ImageInput


class UrlIndex:
    """Least recently used goes first when `max_bytes` are exceeded. Used from one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: OrderedDict[tuple[str, str], KnownImage] = OrderedDict()

    def get(self, tenant: str, url: str) -> KnownImage | None:
        """What `tenant` knows of `url`."""
        known = self._known.get((tenant, url))
        if known is not None:
            self._known.move_to_end((tenant, url))
        return known

    def put(self, tenant: str, url: str, known: KnownImage) -> None:
        """Remember, or forget if it could not be recognised again or is too large to be kept."""
        self._drop((tenant, url))
        if not known.validators or _size(known) > self._max_bytes:
            return
        self._known[tenant, url] = known
        self._bytes += _size(known)
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._known)))

    def _drop(self, key: tuple[str, str]) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._bytes -= _size(known)


def _size(known: KnownImage) -> int:
    return len(known.image.pixels) + _OVERHEAD_BYTES
