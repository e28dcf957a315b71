"""A stored entry as bytes: building it, and reading it back without trusting anybody.

Tiers move bytes. All checking is here: a tier pushes what it has into a `RecordReader`, which copies each
piece into memory of its own and verifies the copy, so that what was verified is what is used. No record holds a number
that is not finite: nobody could do anything with it, and it would be served for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from store.errors import Rejected
from store.records.buffers import BufferPool
from store.records.header import (
    PIECE_BYTES,
    Manifest,
    Piece,
    RecordInfo,
    TensorSpec,
    align,
    checksum,
    parse,
    piece_lengths,
)


@dataclass(frozen=True, slots=True)
class NamedBuffer:
    """Bytes of one tensor, row-major and little-endian."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a codec makes of an entry."""

    buffers: Sequence[NamedBuffer]
    attributes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Record:
    """A whole verified record. `head` are the manifest's bytes; nobody writes to `payload`."""

    manifest: Manifest
    head: bytes
    payload: memoryview

    @property
    def digest(self) -> bytes:
        return self.manifest.digest

    @property
    def nbytes(self) -> int:
        """Manifest and payload."""
        return len(self.head) + self.payload.nbytes

    def pieces(self) -> Iterator[memoryview]:
        for start in range(0, self.payload.nbytes, PIECE_BYTES):
            yield self.payload[start : start + PIECE_BYTES]


def build(digest: bytes, codec: str, encoded: Encoded, info: RecordInfo, buffers: BufferPool) -> Record:
    """Lay the tensors out in one payload and describe them."""
    tensors = []
    end = 0
    for buffer in encoded.buffers:
        tensors.append(TensorSpec(buffer.name, buffer.dtype, buffer.shape, align(end)))
        end = align(end) + buffer.data.nbytes
    payload = buffers.take(end)
    filled = 0
    for spec, buffer in zip(tensors, encoded.buffers, strict=True):
        payload[filled : spec.offset] = bytes(spec.offset - filled)
        filled = spec.offset + buffer.data.nbytes
        payload[spec.offset : filled] = buffer.data.cast("B")
    pieces = tuple(
        Piece(length, checksum(payload[i * PIECE_BYTES : i * PIECE_BYTES + length]))
        for i, length in enumerate(piece_lengths(end))
    )
    manifest = Manifest(digest, codec, tuple(tensors), end, pieces, info, encoded.attributes)
    return Record(manifest, manifest.to_bytes(), payload.toreadonly())


# Of each dtype of floating-point numbers: integers as wide, and the pattern of infinity.
_PATTERNS = {"float32": ("<u4", 0x7F800000), "float16": ("<u2", 0x7C00), "bfloat16": ("<u2", 0x7F80)}


def _floats(
    manifest: Manifest, payload: memoryview, start: int, end: int
) -> Iterator[tuple[str, np.ndarray, int]]:
    """Of each tensor of floats that reaches into those bytes: its name, what lies there as integers, infinity."""
    for spec in manifest.tensors:
        first, last = max(start, spec.offset), min(end, spec.offset + spec.nbytes)
        if spec.dtype in _PATTERNS and first < last:
            integers, infinity = _PATTERNS[spec.dtype]
            yield spec.name, np.frombuffer(payload[first:last], integers), infinity


def _finite(bits: np.ndarray, infinity: int) -> bool:
    """As integers, the patterns of what is not finite are the largest of either sign."""
    sign = 1 << (8 * bits.itemsize - 1)
    return bool(bits.max() < sign + infinity and bits.view(f"<i{bits.itemsize}").max() < infinity)


class RecordReader:
    """Takes a record piece by piece from a tier. One use.

    digest: the key that was asked for. codec: the identity that can be decoded, None for any (verifying
    only).
    """

    def __init__(self, digest: bytes, codec: str | None, buffers: BufferPool) -> None:
        self._digest = digest
        self._codec = codec
        self._buffers = buffers
        self._manifest: Manifest | None = None
        self._head = b""
        self._payload = memoryview(b"")
        self._received = 0

    def manifest(self, raw: bytes | memoryview) -> Manifest:
        """Check the manifest; its `pieces` are then due in order. Raises Rejected."""
        manifest = parse(raw)
        if manifest.digest != self._digest:
            raise Rejected("corrupt", "record of another key")
        if self._codec is not None and manifest.codec != self._codec:
            raise Rejected("outdated", f"codec {manifest.codec}, {self._codec} expected")
        self._manifest, self._head = manifest, bytes(raw)
        return manifest

    def piece(self, data: bytes | memoryview) -> None:
        """Copy and verify the next piece. Raises Rejected."""
        number = self._received
        if self._manifest is None or number >= len(self._manifest.pieces):
            raise Rejected("corrupt", "more pieces than the manifest lists")
        expected = self._manifest.pieces[number]
        size = len(data)
        if size != expected.length:
            raise Rejected("torn" if size < expected.length else "corrupt", f"piece {number} of {size} bytes")
        if not number:
            self._payload = self._buffers.take(self._manifest.payload_bytes)
        start = number * PIECE_BYTES
        # The copy is hashed, not the source: it is warm in the CPU's cache, and it is what the caller will
        # see.
        target = self._payload[start : start + size]
        target[:] = data
        if checksum(target) != expected.checksum:
            raise Rejected("corrupt", f"checksum of piece {number}")
        for name, bits, infinity in _floats(self._manifest, self._payload, start, start + size):
            if not _finite(bits, infinity):
                raise Rejected("outdated", f"{name} are not finite")
        self._received = number + 1

    @property
    def complete(self) -> bool:
        return self._manifest is not None and self._received == len(self._manifest.pieces)

    def record(self) -> Record:
        """The record, if all of it came. Raises Rejected."""
        if self._manifest is None or not self.complete:
            raise Rejected("torn", f"{self._received} pieces received")
        return Record(self._manifest, self._head, self._payload)
