"""WebP: the still picture, or the first frame on a canvas of the background, without anything around it."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from PIL import Image

from service.images.formats.exif import orientation_of
from service.images.formats.picture import Picture, damaged, on_canvas, too_many, unpacked

# A frame of an animation is one.
MOST_CHUNKS: Final = 10_000

_HEAD: Final = struct.Struct("<4sI")
_FRAME_HEAD: Final = 16
_HAS_ALPHA: Final = 0x10


@dataclass(frozen=True, slots=True)
class _Chunk:
    """`whole` is False where the file ends before it does."""

    kind: bytes
    content: bytes
    whole: bool = True


@dataclass(frozen=True, slots=True)
class _Still:
    """One picture as it lies in a file: its data, and its alpha where that lies apart."""

    data: _Chunk
    alpha: _Chunk | None

    @property
    def size(self) -> tuple[int, int]:
        """Of the picture in pixels, as its own data has it. Raises `ImageError`."""
        head = self.data.content[:10]
        if self.data.kind == b"VP8L" and len(head) >= 5 and head[0] == 0x2F:
            bits = int.from_bytes(head[1:5], "little")
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        if self.data.kind == b"VP8 " and len(head) == 10 and head[3:6] == b"\x9d\x01\x2a":
            width, height = struct.unpack_from("<HH", head, 6)
            return width & 0x3FFF, height & 0x3FFF
        raise damaged("webp")

    def file(self) -> bytes:
        """A WebP of it and nothing else."""
        if self.alpha is None or self.data.kind == b"VP8L":
            return _riff(self.data)
        width, height = self.size
        canvas = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
        return _riff(_Chunk(b"VP8X", bytes((_HAS_ALPHA, 0, 0, 0)) + canvas), self.alpha, self.data)


def read_webp(data: bytes) -> Picture:
    """Raises `ImageError`."""
    first: dict[bytes, _Chunk] = {}
    for chunk in _chunks(data, 12):
        first.setdefault(chunk.kind, chunk)
    exif = first.get(b"EXIF")
    orientation = 1 if exif is None else orientation_of(exif.content)
    moving = first.get(b"ANMF")
    if moving is not None and b"VP8X" in first:
        return _first_frame(first[b"VP8X"].content, moving.content, orientation)
    return _picture(_still(first), orientation)


def _picture(still: _Still, orientation: int) -> Picture:
    size = still.size
    file = still.file()
    return Picture(*size, lambda: on_canvas(unpacked(file, "webp", size), size, (0, 0)), orientation)


def _first_frame(screen: bytes, frame: bytes, orientation: int) -> Picture:
    """The frame whose head and chunks are `frame`, on the canvas that `screen` tells."""
    if len(screen) < 10 or len(frame) < _FRAME_HEAD:
        raise damaged("webp")
    canvas = _number(screen, 4) + 1, _number(screen, 7) + 1
    left, top = 2 * _number(frame, 0), 2 * _number(frame, 3)
    still = _still({chunk.kind: chunk for chunk in _chunks(frame, _FRAME_HEAD)})
    width, height = size = still.size
    if left + width > canvas[0] or top + height > canvas[1]:
        raise damaged("webp")
    file = still.file()

    def unpack() -> Image.Image:
        return on_canvas(unpacked(file, "webp", size), canvas, (left, top))

    return Picture(*canvas, unpack, orientation)


def _still(chunks: dict[bytes, _Chunk]) -> _Still:
    data = next((chunk for chunk in chunks.values() if chunk.kind in (b"VP8 ", b"VP8L")), None)
    alpha = chunks.get(b"ALPH")
    # The codec would take what there is, and leave the rest of the picture empty.
    if data is None or not data.whole or (alpha is not None and not alpha.whole):
        raise damaged("webp")
    return _Still(data, alpha)


def _chunks(data: bytes, place: int) -> Iterator[_Chunk]:
    """The chunks from `place` on, the last one cut where the data is. Raises `ImageError` if there are too many."""
    for _ in range(MOST_CHUNKS):
        if place + _HEAD.size > len(data):
            return
        kind, length = _HEAD.unpack_from(data, place)
        place += _HEAD.size
        yield _Chunk(kind, data[place : place + length], place + length <= len(data))
        place += length + length % 2
    raise too_many("WebP chunks", MOST_CHUNKS)


def _number(data: bytes, place: int) -> int:
    return int.from_bytes(data[place : place + 3], "little")


def _riff(*chunks: _Chunk) -> bytes:
    body = b"".join(
        _HEAD.pack(chunk.kind, len(chunk.content)) + chunk.content + b"\0" * (len(chunk.content) % 2)
        for chunk in chunks
    )
    return _HEAD.pack(b"RIFF", 4 + len(body)) + b"WEBP" + body
