"""PNG: chunks walked one by one, samples compared and scaled at the file's own depth.

What the codec would do at another depth is avoided by handing it a file in which it has nothing to do: grey and palette
pictures with transparency become palettes whose colours are on the background already. Sixteen bits are in `png16`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from PIL import Image

from service.images.formats.exif import orientation_of
from service.images.formats.picture import BACKGROUND, Picture, damaged, to_rgb, unpacked
from service.images.formats.png_chunks import (
    GREY,
    GREY_ALPHA,
    HEADER,
    PALETTE,
    RGB,
    RGBA,
    Chunk,
    Raster,
    read_chunks,
)

_DEPTHS: Final = {
    GREY: (1, 2, 4, 8, 16),
    RGB: (8, 16),
    PALETTE: (1, 2, 4, 8),
    GREY_ALPHA: (8, 16),
    RGBA: (8, 16),
}
_OLD_EXIF: Final = b"Raw profile type exif\0"
_MOST_NOTE: Final = 256 * 1024

Colour = tuple[int, int, int]


@dataclass(slots=True)
class _Parts:
    """What makes pixels. `key` is the content of tRNS."""

    header: bytes | None = None
    palette: bytes = b""
    key: bytes = b""
    data: list[bytes] = field(default_factory=list)
    exif: bytes = b""

    def take(self, chunk: Chunk) -> None:
        """Raises `ImageError` if a chunk without which there is no picture is damaged. The others are left out where
        they are damaged, out of place or there already, as the common library does."""
        kind = chunk.kind
        if kind in (b"IHDR", b"PLTE", b"IDAT") and not chunk.intact:
            raise damaged("png")
        if self.header is None:
            self.header = chunk.content if kind == b"IHDR" else b""
        elif kind == b"IDAT":
            self.data.append(chunk.content)
        elif kind == b"PLTE" and not self.data:
            self.palette = self.palette or chunk.content
        elif kind == b"tRNS" and not self.data and chunk.intact:
            self.key = self.key or chunk.content
        elif kind == b"eXIf" and chunk.intact:
            self.exif = chunk.content
        elif kind in (b"zTXt", b"tEXt") and not self.exif:
            self.exif = _old_exif(chunk)


def read_png(data: bytes) -> Picture:
    """Raises `ImageError`."""
    parts = _Parts()
    for chunk in read_chunks(data):
        parts.take(chunk)
    raster = _raster(parts)
    width, height = raster.size
    key = _key(parts.key, raster)

    def unpack() -> Image.Image:
        if raster.depth == 16:
            from service.images.formats import png16  # brings numpy, which hardly a picture needs

            return png16.unpack(raster, key)
        return to_rgb(unpacked(_simple_file(raster, parts, key), "png", raster.size))

    return Picture(width, height, unpack, orientation_of(parts.exif))


def _raster(parts: _Parts) -> Raster:
    if parts.header is None or len(parts.header) < HEADER.size or not parts.data:
        raise damaged("png")
    width, height, depth, colour, packing, filters, interlace = HEADER.unpack_from(parts.header)
    if depth not in _DEPTHS.get(colour, ()) or packing or filters or interlace > 1:
        raise damaged("png")
    if colour == PALETTE and (not parts.palette or len(parts.palette) % 3):
        raise damaged("png")
    return Raster((width, height), depth, colour, interlace, b"".join(parts.data))


def _key(content: bytes, raster: Raster) -> tuple[int, ...] | None:
    """The samples that are transparent, of a picture without alpha and palette. Bits above its depth do not count."""
    count = {GREY: 1, RGB: 3}.get(raster.colour)
    if count is None or len(content) != 2 * count:
        return None
    return tuple(value & ((1 << raster.depth) - 1) for value in struct.unpack(f">{count}H", content))


def _simple_file(raster: Raster, parts: _Parts, key: tuple[int, ...] | None) -> bytes:
    """A file of at most 8 bits a sample that means the same to every decoder."""
    if raster.colour == PALETTE:
        return raster.file((b"PLTE", _palette(_colours(parts), raster.depth)))
    if raster.colour == GREY and key is not None:
        step = 255 // ((1 << raster.depth) - 1)
        shown = ((grey * step,) * 3 if grey != key[0] else BACKGROUND for grey in range(1 << raster.depth))
        return replace(raster, colour=PALETTE).file((b"PLTE", _palette(shown, raster.depth)))
    if key is not None:
        return raster.file((b"tRNS", struct.pack(">3H", *key)))
    return raster.file()


def _colours(parts: _Parts) -> Iterable[Colour]:
    """The colours of the palette as they show on the background."""
    values = parts.palette
    alphas = parts.key if len(parts.key) <= len(values) // 3 else b""
    for place, colour in enumerate(zip(values[::3], values[1::3], values[2::3], strict=True)):
        yield over_background(colour, alphas[place] if place < len(alphas) else 255)


def over_background(colour: Colour, alpha: int) -> Colour:
    """`colour` at `alpha` of 255 on the background."""
    red, green, blue = (
        (value * alpha + below * (255 - alpha) + 127) // 255
        for value, below in zip(colour, BACKGROUND, strict=True)
    )
    return red, green, blue


def _palette(colours: Iterable[Colour], depth: int) -> bytes:
    """All entries that a sample of `depth` can name; those that the file does not have are black."""
    size = 3 * (1 << depth)
    return bytes(value for colour in colours for value in colour)[:size].ljust(size, b"\0")


def _old_exif(chunk: Chunk) -> bytes:
    """EXIF as programs wrote it before PNG had a chunk for it: hex digits in a text. b"" if this is none."""
    if not chunk.data.startswith(_OLD_EXIF, chunk.start):
        return b""
    text = chunk.content[len(_OLD_EXIF) :]
    try:
        if chunk.kind == b"zTXt":
            text = zlib.decompressobj().decompress(text[1:], _MOST_NOTE)
        digits = b"".join(text[:_MOST_NOTE].split(b"\n")[3:])
        return bytes.fromhex(digits[: len(digits) // 2 * 2].decode())
    except (ValueError, zlib.error):
        return b""
