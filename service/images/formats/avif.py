"""AVIF, which an operator may allow: the codec reads the whole file, within the limits of its process."""

from __future__ import annotations

import io
from typing import Final

from PIL import Image

from service.images.formats.picture import Picture, to_rgb, unpacked

_ORIENTATION: Final = 0x0112


def read_avif(data: bytes) -> Picture:
    """Raises what the codec raises about a header."""
    with Image.open(io.BytesIO(data), formats=["avif"]) as image:
        size = image.size
        # Where the file turns the picture itself, the codec tells it as this.
        orientation = int(image.getexif().get(_ORIENTATION, 1))
    return Picture(*size, lambda: to_rgb(unpacked(data, "avif", size)), orientation)
