"""Segments of a sequence and their names: a digest over everything from the sequence's start to the segment's end.

A name follows from content alone, never from what was asked before: text runs are cut every `TEXT_BLOCK` tokens,
counted from where the run begins, and an image is one segment. Equal names therefore mean equal tokens, equal images
and equal positions. Torch-free.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from engine.prompt.layout import ImageSpan, Ints

TEXT_BLOCK = 64

_DOMAIN = b"conduit/chain/1"
# Stands where a token id would: what follows is an image.
_IMAGE = struct.pack("<q", -1)


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What a sequence is made of. `root` (see `root_of`) is whose it is, `ids` [slots] its tokens, `digests` the
    canonical pixel digest of the image in each of `spans`."""

    root: bytes
    tenant: str
    ids: Ints
    spans: tuple[ImageSpan, ...]
    digests: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Segment:
    """Slots [start, stop) of a sequence. `name` stands for everything before `stop`, `before` for everything before
    `start` (32 bytes each)."""

    start: int
    stop: int
    before: bytes
    name: bytes
    image: bool

    @property
    def tokens(self) -> int:
        return self.stop - self.start


def root_of(namespace: str, tenant: str, model_digest: bytes) -> bytes:
    """Where names begin: sequences of other tenants (salts are part of a tenant), models or deployments share none."""
    sha = hashlib.sha256()
    for field in (_DOMAIN, namespace.encode(), tenant.encode(), model_digest):
        sha.update(struct.pack("<Q", len(field)))
        sha.update(field)
    return sha.digest()


def segments_of(content: Content, length: int) -> Iterator[Segment]:
    """Segments of the first `length` slots, in order; an image that does not end within them ends the list."""
    sha = hashlib.sha256(content.root)
    slot = 0
    for span, digest in zip(content.spans, content.digests, strict=True):
        yield from _blocks(sha, content.ids, slot, min(span.start, length))
        if span.stop > length:
            return
        before = sha.digest()
        sha.update(_IMAGE + digest + struct.pack("<2q", span.shape.rows, span.shape.advance))
        yield Segment(span.start, span.stop, before, sha.digest(), True)
        slot = span.stop
    yield from _blocks(sha, content.ids, slot, length)


def _blocks(sha: hashlib._Hash, ids: Ints, start: int, stop: int) -> Iterator[Segment]:
    for first in range(start, stop, TEXT_BLOCK):
        last = min(first + TEXT_BLOCK, stop)
        before = sha.digest()
        sha.update(np.ascontiguousarray(ids[first:last], dtype="<i8").tobytes())
        yield Segment(first, last, before, sha.digest(), False)


def common_head(ours: Ints, theirs: Ints) -> int:
    """How many tokens two text runs have in common at their beginning."""
    length = min(len(ours), len(theirs))
    differing = np.flatnonzero(ours[:length] != theirs[:length])
    return int(differing[0]) if len(differing) else length
