"""The chunks of a PNG, read and written."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from service.images.formats.picture import too_many

GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
HEADER: Final = struct.Struct(">IIBBBBB")
# A 20 MiB file in chunks of 8 KiB, as the common library writes them, has 2,560.
MOST_CHUNKS: Final = 65_536

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_HEAD: Final = struct.Struct(">I4s")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of `data` whose content is at `start` to `end`."""

    kind: bytes
    data: bytes
    start: int
    end: int

    @property
    def content(self) -> bytes:
        return self.data[self.start : self.end]

    @property
    def intact(self) -> bool:
        """False if its checksum is another one. Where the file ends before it, there is nothing to compare."""
        told = self.data[self.end : self.end + 4]
        return len(told) < 4 or zlib.crc32(self.content, zlib.crc32(self.kind)) == int.from_bytes(told)


def read_chunks(data: bytes) -> Iterator[Chunk]:
    """The chunks of a file up to its end, the last one cut where the file is. Raises `ImageError` if there are too
    many."""
    place = len(_SIGNATURE)
    for _ in range(MOST_CHUNKS):
        if place + _HEAD.size > len(data):
            return
        length, kind = _HEAD.unpack_from(data, place)
        start = place + _HEAD.size
        end = min(start + length, len(data))
        yield Chunk(kind, data, start, end)
        if kind == b"IEND":
            return
        place = end + 4
    raise too_many("PNG chunks", MOST_CHUNKS)


@dataclass(frozen=True, slots=True)
class Raster:
    """`body`: the packed rows of a picture of `size` whose samples are laid out like that."""

    size: tuple[int, int]
    depth: int
    colour: int
    interlace: int
    body: bytes

    def file(self, *others: tuple[bytes, bytes]) -> bytes:
        """A PNG of it and nothing else; `others` are kinds and contents of chunks in front of its data."""
        header = HEADER.pack(*self.size, self.depth, self.colour, 0, 0, self.interlace)
        chunks = ((b"IHDR", header), *others, (b"IDAT", self.body), (b"IEND", b""))
        return _SIGNATURE + b"".join(piece for chunk in chunks for piece in _written(*chunk))


def _written(kind: bytes, content: bytes) -> tuple[bytes, ...]:
    checksum = zlib.crc32(content, zlib.crc32(kind))
    return _HEAD.pack(len(content), kind), content, checksum.to_bytes(4)
