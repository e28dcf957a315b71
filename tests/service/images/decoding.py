"""One picture decoded in this process, as the decoding process does it."""

from __future__ import annotations

import pytest

from engine.messages import ImageInput
from service.errors import ImageError
from service.images.decode import PixelLimits, decode_image
from store.records.keys import pixel_digest

FORMATS = ("jpeg", "png", "webp", "gif", "bmp")
PIXELS = 40_000_000


def decoded(data: bytes, formats: tuple[str, ...] = FORMATS, pixels: int = PIXELS) -> ImageInput:
    image = decode_image(data, formats, PixelLimits(pixels, pixels, pixels))
    found = image.tobytes()
    return ImageInput(pixel_digest(image.width, image.height, found), image.width, image.height, found)


def pixel(data: bytes, x: int = 0, y: int = 0) -> tuple[int, int, int]:
    image = decoded(data)
    start = 3 * (y * image.width + x)
    return image.pixels[start], image.pixels[start + 1], image.pixels[start + 2]


def refusal(data: bytes, formats: tuple[str, ...] = FORMATS, pixels: int = PIXELS) -> ImageError:
    with pytest.raises(ImageError) as caught:
        decoded(data, formats, pixels)
    assert "0x" not in caught.value.message and "/" not in caught.value.message
    return caught.value
