"""PNG by the letter of its specification, one sample after the other: how pictures are packed into rows, filtered and
interlaced, and what colour each pixel shows. Slow and plain; only for small pictures."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

GREY, RGB, PALETTE, GREY_ALPHA, RGBA = 0, 2, 3, 4, 6
SAMPLES = {GREY: 1, RGB: 3, PALETTE: 1, GREY_ALPHA: 2, RGBA: 4}
DEPTHS = {GREY: (1, 2, 4, 8, 16), RGB: (8, 16), PALETTE: (1, 2, 4, 8), GREY_ALPHA: (8, 16), RGBA: (8, 16)}
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))

Pixel = tuple[int, ...]
Rows = Sequence[Sequence[Pixel]]
"""Samples at the file's own depth, of each pixel of each row."""


@dataclass(frozen=True)
class Png:
    """A picture as its file has it."""

    depth: int
    colour: int
    rows: Rows
    palette: Sequence[tuple[int, int, int]] = ()
    key: bytes | None = None
    interlaced: bool = False

    @property
    def size(self) -> tuple[int, int]:
        return len(self.rows[0]), len(self.rows)

    def file(self, *extra: bytes, behind: bytes = b"") -> bytes:
        """The file; `extra` are chunks in front of everything but the header, `behind` comes after the data."""
        header = struct.pack(">IIBBBBB", *self.size, self.depth, self.colour, 0, 0, self.interlaced)
        chunks = [chunk(b"IHDR", header), *extra]
        if self.palette:
            chunks.append(chunk(b"PLTE", bytes(value for colour in self.palette for value in colour)))
        if self.key is not None:
            chunks.append(chunk(b"tRNS", self.key))
        data = zlib.compress(b"".join(self._filtered()))
        half = len(data) // 2
        chunks += [chunk(b"IDAT", data[:half]), chunk(b"IDAT", data[half:]), behind, chunk(b"IEND", b"")]
        return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)

    def shown(self) -> bytes:
        """RGB on white, rounded once at the end."""
        return bytes(value for row in self.rows for pixel in row for value in self._shown(pixel))

    def _shown(self, pixel: Pixel) -> tuple[int, int, int]:
        most = (1 << self.depth) - 1
        alpha = Fraction(1)
        if self.colour == PALETTE:
            colour: Pixel = self.palette[pixel[0]] if pixel[0] < len(self.palette) else (0, 0, 0)
            most = 255
            if self.key is not None and pixel[0] < len(self.key):
                alpha = Fraction(self.key[pixel[0]], 255)
        elif self.colour in (GREY_ALPHA, RGBA):
            colour, alpha = pixel[:-1], Fraction(pixel[-1], most)
        else:
            colour = pixel
            if self.key is not None and pixel == self._key_samples():
                alpha = Fraction(0)
        red, green, blue = colour * 3 if len(colour) == 1 else colour
        return tuple(round((Fraction(value, most) * alpha + 1 - alpha) * 255) for value in (red, green, blue))  # type: ignore[return-value]

    def _key_samples(self) -> Pixel:
        assert self.key is not None
        values = struct.unpack(f">{len(self.key) // 2}H", self.key)
        return tuple(value & ((1 << self.depth) - 1) for value in values)

    def _filtered(self) -> Iterator[bytes]:
        if not self.interlaced:
            yield from self._lines(self.rows)
            return
        for left, top, right, down in _PASSES:
            reduced = [row[left::right] for row in self.rows[top::down]]
            if reduced and reduced[0]:
                yield from self._lines(reduced)

    def _lines(self, rows: Rows) -> Iterator[bytes]:
        """Rows of one pass, each with the next of the five filters."""
        step = max(1, SAMPLES[self.colour] * self.depth // 8)
        above = b""
        for number, row in enumerate(rows):
            line = self._packed(row)
            above = above or bytes(len(line))
            kind = number % 5
            yield bytes([kind]) + bytes(
                (value - _predicted(kind, line, above, place, step)) & 0xFF
                for place, value in enumerate(line)
            )
            above = line

    def _packed(self, row: Sequence[Pixel]) -> bytes:
        samples = [sample for pixel in row for sample in pixel]
        bits = "".join(f"{sample:0{self.depth}b}" for sample in samples)
        bits += "0" * (-len(bits) % 8)
        return int(bits, 2).to_bytes(len(bits) // 8)


def _predicted(kind: int, line: bytes, above: bytes, place: int, step: int) -> int:
    left = line[place - step] if place >= step else 0
    up = above[place]
    corner = above[place - step] if place >= step else 0
    estimate = left + up - corner
    nearest = min((left, up, corner), key=lambda value: abs(estimate - value))
    return (0, left, up, (left + up) // 2, nearest)[kind]


def chunk(kind: bytes, content: bytes, wrong: int = 0) -> bytes:
    """A chunk; `wrong` is added to its checksum."""
    checksum = (zlib.crc32(kind + content) + wrong) & 0xFFFFFFFF
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
