"""TIFF, which an operator may allow: the codec reads it, once its directory has been looked through."""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass
from typing import Final

from PIL import Image

from service.images.formats.picture import Picture, damaged, grey_of_16_bits, to_rgb, too_many, unpacked

MOST_TAGS: Final = 1000

# Bytes of one value by its type.
_WIDTHS: Final = {
    **{1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8},
    **{13: 4, 16: 8, 17: 8, 18: 8},
}


@dataclass(frozen=True, slots=True)
class _Directory:
    """How a directory is written: where its place stands, its count, and type and count of an entry."""

    pointer: struct.Struct
    pointer_place: int
    count: struct.Struct
    entry: struct.Struct
    entry_size: int


def _directories(order: str) -> dict[int, _Directory]:
    """By the version number of the file: 42 is the usual one, 43 has 64-bit places."""
    small = _Directory(_struct(order, "I"), 4, _struct(order, "H"), _struct(order, "HHI"), 12)
    big = _Directory(_struct(order, "Q"), 8, _struct(order, "Q"), _struct(order, "HHQ"), 20)
    return {42: small, 43: big}


def _struct(order: str, layout: str) -> struct.Struct:
    return struct.Struct(order + layout)


def read_tiff(data: bytes) -> Picture:
    """Turned upright by the codec. Raises `ImageError`, or what the codec raises about a header."""
    _look_through(data)
    with Image.open(io.BytesIO(data), formats=["tiff"]) as image:
        size = image.size
    return Picture(*size, lambda: to_rgb(grey_of_16_bits(unpacked(data, "tiff", size))))


def _look_through(data: bytes) -> None:
    """Entries may all name the same bytes, and the codec reads them for each: together they may not be more than the
    file. Raises `ImageError`."""
    order = "<" if data[:2] == b"II" else ">"
    try:
        (version,) = struct.unpack_from(order + "H", data, 2)
        layout = _directories(order)[version]
        (place,) = layout.pointer.unpack_from(data, layout.pointer_place)
        (entries,) = layout.count.unpack_from(data, place)
        if entries > MOST_TAGS:
            raise too_many("TIFF tags", MOST_TAGS)
        first = place + layout.count.size
        heads = [layout.entry.unpack_from(data, first + layout.entry_size * n) for n in range(entries)]
    except (struct.error, KeyError, OverflowError):
        raise damaged("tiff") from None
    if sum(_WIDTHS.get(kind, 0) * count for _, kind, count in heads) > len(data):
        raise damaged("tiff")
