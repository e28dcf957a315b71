"""BMP: the header is short and read whole by the codec; one number in it is put right before."""

from __future__ import annotations

import io
import struct
from typing import Final

from PIL import Image

from service.images.formats.picture import Picture, damaged, to_rgb, unpacked

# Where the newer headers (40 bytes and more) have bits a pixel and the colours in use.
_HEADER_SIZE, _BITS, _COLOURS = 14, 28, 46
_OLD_HEADER: Final = 12


def read_bmp(data: bytes) -> Picture:
    """Raises `ImageError`, or what the codec raises about a header."""
    file = _with_possible_colours(data)
    with Image.open(io.BytesIO(file), formats=["bmp"]) as image:
        size = image.size
    return Picture(*size, lambda: to_rgb(unpacked(file, "bmp", size)))


def _with_possible_colours(data: bytes) -> bytes:
    """`data` with no more colours in use than its pixels can name: the codec refuses a file for it, though the palette
    is as long as it can be in any case."""
    if len(data) < _COLOURS + 4:
        raise damaged("bmp")
    (header_size,) = struct.unpack_from("<I", data, _HEADER_SIZE)
    (bits,) = struct.unpack_from("<H", data, _BITS)
    (colours,) = struct.unpack_from("<I", data, _COLOURS)
    if header_size == _OLD_HEADER or bits > 8 or colours <= 1 << bits:
        return data
    return data[:_COLOURS] + struct.pack("<I", 1 << bits) + data[_COLOURS + 4 :]
