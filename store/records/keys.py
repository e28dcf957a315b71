"""Names of entries: what an entry depends on, and nothing else (promise 1).

A digest is SHA-256 over a domain tag and the fields in the order of the class, each written as an unsigned
64-bit little-endian length followed by the bytes, so that no two different field lists give the same input.
Text is UTF-8, integers are decimal ASCII, a list of integers is one field of 8 little-endian bytes each.
`docs/store.md` has a worked example for other programs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass

from store.errors import InvalidKey

FORMAT_VERSION = 1
# Kinds of records.
IMAGE = "image"
CHAIN = "chain"
DIGEST_BYTES = 32

# Stands in no tenant's own name.
_PART = "+"
_MODEL_DOMAIN = b"visual-kv/model"
_ENTRY_DOMAIN = b"visual-kv/entry"
_PIXEL_DOMAIN = b"visual-kv/pixels"


def _digest(domain: bytes, fields: Iterable[bytes]) -> bytes:
    sha = hashlib.sha256()
    for field in (domain, *fields):
        sha.update(struct.pack("<Q", len(field)))
        sha.update(field)
    return sha.digest()


def _number(value: int) -> bytes:
    if value < 0:
        raise InvalidKey(f"negative number in a key: {value}")
    return b"%d" % value


def pixel_digest(width: int, height: int, pixels: bytes | bytearray | memoryview) -> bytes:
    """Canonical digest (32 bytes) of an upright RGB image, row-major, 3 bytes a pixel.

    Mode and size go in beside the bytes: the same bytes in another shape are another image. Raises InvalidKey
    if the byte count does not fit the size.
    """
    view = memoryview(pixels)
    if width < 1 or height < 1 or view.nbytes != 3 * width * height:
        raise InvalidKey(f"{view.nbytes} bytes are no RGB image of {width} x {height}")
    sha = hashlib.sha256()
    for field in (_PIXEL_DOMAIN, b"RGB", _number(width), _number(height), view):
        sha.update(struct.pack("<Q", len(field) if isinstance(field, bytes) else field.nbytes))
        sha.update(field)
    return sha.digest()


@dataclass(frozen=True, slots=True)
class ModelKey:
    """Everything about the model side that changes an entry.

    `weights_fingerprint`: digest of the weights. `processor`: class and effective settings (sizes, mean,
    background colour) as one canonical string. `dtype`: compute and KV dtype. `codec`: name of the store's
    codec, as entries are used in decoded form. `prefix_ids`: token ids of the canonical prefix. `rope`:
    variant and parameters.
    """

    model_id: str
    revision: str
    weights_fingerprint: str
    processor: str
    dtype: str
    codec: str
    prefix_ids: tuple[int, ...]
    rope: str

    @property
    def digest(self) -> bytes:
        """32 bytes."""
        try:
            ids = struct.pack(f"<{len(self.prefix_ids)}Q", *self.prefix_ids)
        except struct.error as error:
            raise InvalidKey(f"prefix ids must be integers of 0 to 2**64 - 1: {error}") from error
        texts = (
            self.model_id,
            self.revision,
            self.weights_fingerprint,
            self.processor,
            self.dtype,
            self.codec,
        )
        return _digest(_MODEL_DOMAIN, (*(text.encode() for text in texts), ids, self.rope.encode()))


def part_of(tenant: str, part: str) -> str:
    """Name of a part of a tenant's space. Parts share no entry; `owner` says whose they are."""
    return f"{tenant}{_PART}{part}"


def owner(tenant: str) -> str:
    """Who answers for what is stored under this name: quotas and listings count the parts of his space as his."""
    return tenant.partition(_PART)[0]


@dataclass(frozen=True, slots=True)
class VisualKey:
    """Name of one entry: one image of one tenant under one model.

    `namespace` separates deployments that share a store, `pixels` is the `pixel_digest`. `kind` tells entries from
    other records (see `SegmentKey`) and leaves room for what is no single image (video frames).
    """

    namespace: str
    tenant: str
    model: ModelKey
    pixels: bytes
    width: int
    height: int
    kind: str = IMAGE
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if len(self.pixels) != DIGEST_BYTES:
            raise InvalidKey(f"a pixel digest has {DIGEST_BYTES} bytes, not {len(self.pixels)}")

    @property
    def digest(self) -> bytes:
        """32 bytes, never cut: the whole of it decides identity."""
        return _digest(
            _ENTRY_DOMAIN,
            (
                _number(self.format_version),
                self.kind.encode(),
                self.namespace.encode(),
                self.tenant.encode(),
                self.model.digest,
                self.pixels,
                _number(self.width),
                _number(self.height),
            ),
        )

    @property
    def hex(self) -> str:
        """`digest` as 64 lower-case hex digits."""
        return self.digest.hex()

    @property
    def state(self) -> str:
        """Nothing to tell: there is one way to compute an entry."""
        return ""


def segment_digest(name: bytes, quality: str, open: bool = False) -> bytes:
    """`SegmentKey.digest`, which follows from these alone."""
    fields = (_number(FORMAT_VERSION), CHAIN.encode(), name, b"open" if open else b"whole", quality.encode())
    return _digest(_ENTRY_DOMAIN, fields)


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """Name of one segment of a chain: the KV of a text or an image behind everything that comes before it.

    `name` (32 bytes) stands for all tokens and images from the start of the prompt, with namespace, tenant and model at
    its root (see `engine.chains.segments.root_of`): those up to the segment's end, or, for an `open` text that a chain
    ends with, those before it. `quality` is "" where every row is what full prefill computes, else the recipe that left
    the rows.
    """

    namespace: str
    tenant: str
    model: ModelKey
    name: bytes
    quality: str
    open: bool = False

    def __post_init__(self) -> None:
        if len(self.name) != DIGEST_BYTES:
            raise InvalidKey(f"the name of a segment has {DIGEST_BYTES} bytes, not {len(self.name)}")

    @property
    def digest(self) -> bytes:
        """32 bytes, as those of entries."""
        return segment_digest(self.name, self.quality, self.open)

    @property
    def kind(self) -> str:
        return CHAIN

    @property
    def state(self) -> str:
        return "refreshed" if self.quality else "exact"

    @property
    def width(self) -> int:
        """A segment has no size in pixels."""
        return 0

    @property
    def height(self) -> int:
        return 0


RecordKey = VisualKey | SegmentKey
