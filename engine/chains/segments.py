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
_TURN = b"conduit/turn/1"
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
    `start` (32 bytes each). `position` is that of the first row. `turn` stands for what is right before a block of
    text, in whatever sequence: the text of its run so far, the run's image, and the image and run before that one (32
    bytes; empty for an image, and for text before the first image)."""

    start: int
    stop: int
    before: bytes
    name: bytes
    image: bool
    position: int = 0
    turn: bytes = b""

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
    names = _Names(content.root)
    slot = position = 0
    for span, digest in zip(content.spans, content.digests, strict=True):
        yield from _blocks(names, content.ids, slot, min(span.start, length), position)
        if span.stop > length:
            return
        position += span.start - slot
        before = names.all.digest()
        names.image(_IMAGE + digest + struct.pack("<2q", span.shape.rows, span.shape.advance))
        yield Segment(span.start, span.stop, before, names.all.digest(), True, position, b"")
        slot, position = span.stop, position + span.shape.advance
    yield from _blocks(names, content.ids, slot, length, position)


class _Names:
    """Digests at one place of a sequence: `all` of everything before it, `turn` of what is right before it (None before
    the first image)."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self.all = hashlib.sha256(root)
        self.turn: hashlib._Hash | None = None
        # The image that stands last and the text behind it, or the text at the start.
        self._run = hashlib.sha256()

    def image(self, mark: bytes) -> None:
        self.all.update(mark)
        self.turn = hashlib.sha256(_TURN + self._root + self._run.digest() + mark)
        self._run = hashlib.sha256(mark)

    def text(self, ids: bytes) -> None:
        self.all.update(ids)
        self._run.update(ids)
        if self.turn is not None:
            self.turn.update(ids)


def _blocks(names: _Names, ids: Ints, start: int, stop: int, position: int) -> Iterator[Segment]:
    for first in range(start, stop, TEXT_BLOCK):
        last = min(first + TEXT_BLOCK, stop)
        before, turn = names.all.digest(), b"" if names.turn is None else names.turn.digest()
        names.text(np.ascontiguousarray(ids[first:last], dtype="<i8").tobytes())
        yield Segment(first, last, before, names.all.digest(), False, position + first - start, turn)


def common_head(ours: Ints, theirs: Ints) -> int:
    """How many tokens two text runs have in common at their beginning."""
    length = min(len(ours), len(theirs))
    differing = np.flatnonzero(ours[:length] != theirs[:length])
    return int(differing[0]) if len(differing) else length
