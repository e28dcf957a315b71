"""Pictures that were seen before, so that they are not downloaded or decoded again.

Both indexes are per tenant: whether a picture is known, and how fast it answers, is nobody else's business.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from engine.messages import ImageInput
from service.images.fetch import Validators

V = TypeVar("V")

_OVERHEAD_BYTES: Final = 1024
"""What an entry costs besides its pixels, generously: tiny pictures must not make an unbounded index."""
_PIECE: Final = 1024 * 1024


class _Recent(Generic[V]):
    """Least recently used goes first when `max_bytes` are exceeded. Thread-safe."""

    def __init__(self, max_bytes: int, image_of: Callable[[V], ImageInput]) -> None:
        self._max_bytes = max_bytes
        self._image_of = image_of
        self._bytes = 0
        self._known: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
            return known

    def put(self, key: Hashable, value: V) -> None:
        """Remember, unless it is too large to be kept."""
        with self._lock:
            self._drop(key)
            if self._size(value) > self._max_bytes:
                return
            self._known[key] = value
            self._bytes += self._size(value)
            while self._bytes > self._max_bytes:
                self._drop(next(iter(self._known)))

    def drop(self, key: Hashable) -> None:
        with self._lock:
            self._drop(key)

    def _drop(self, key: Hashable) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._bytes -= self._size(known)

    def _size(self, value: V) -> int:
        return len(self._image_of(value).pixels) + _OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class KnownImage:
    validators: Validators
    image: ImageInput


class UrlIndex:
    """Pictures of URLs: a host that says "not modified" spares download and decoding."""

    def __init__(self, max_bytes: int) -> None:
        self._recent: _Recent[KnownImage] = _Recent(max_bytes, lambda known: known.image)

    def get(self, tenant: str, url: str) -> KnownImage | None:
        """What `tenant` knows of `url`."""
        return self._recent.get((tenant, url))

    def put(self, tenant: str, url: str, known: KnownImage) -> None:
        """Remember, or forget if it could not be recognised again."""
        if known.validators:
            self._recent.put((tenant, url), known)
        else:
            self._recent.drop((tenant, url))


@dataclass(frozen=True, slots=True)
class SentKey:
    """What was sent, and how it was read: the text of a data URL is no picture where base64 is expected, and a file
    that holds the text of a picture is none either. Of an upload with pages: which one."""

    form: Literal["base64", "data URL", "file", "upload"]
    digest: bytes
    page: int = 0


class UploadIndex:
    """Pictures by what was sent, a text or a file: a repeated upload is not unpacked and decoded again. (Of a text:
    hashing it costs a fraction of reading its base64.)"""

    def __init__(self, max_bytes: int) -> None:
        self._recent: _Recent[ImageInput] = _Recent(max_bytes, lambda image: image)

    def find(self, tenant: str, sent: SentKey) -> ImageInput | None:
        """The picture that `sent` was found to be."""
        return self._recent.get((tenant, sent))

    def find_or_decode(
        self, tenant: str, sent: SentKey, decode: Callable[[], ImageInput]
    ) -> tuple[ImageInput, bool]:
        """The picture in `sent`, and whether it was known. Raises what `decode` raises."""
        known = self.find(tenant, sent)
        if known is not None:
            return known, True
        image = decode()
        self.put(tenant, sent, image)
        return image, False

    def put(self, tenant: str, sent: SentKey, image: ImageInput) -> None:
        """Remember what `sent` is."""
        self._recent.put((tenant, sent), image)


def digest_of(sent: str | bytes) -> bytes:
    """SHA-256 of a text or a file. A text is taken in pieces, so that the interpreter's lock is not held for long."""
    if isinstance(sent, bytes):
        return hashlib.sha256(sent).digest()
    sha = hashlib.sha256()
    for start in range(0, len(sent), _PIECE):
        sha.update(sent[start : start + _PIECE].encode(errors="surrogatepass"))
    return sha.digest()
