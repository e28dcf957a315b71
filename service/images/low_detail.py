"""`detail: "low"`: a small picture, and so an entry of its own of few visual tokens."""

from __future__ import annotations

from typing import Final

from PIL import Image

from engine.messages import ImageInput
from store.records.keys import pixel_digest

LOW_EDGE: Final = 512
"""Pixels of the longer edge, as elsewhere."""


def at_low_detail(image: ImageInput) -> ImageInput:
    """`image` with no edge longer than `LOW_EDGE`; itself where none is."""
    longest = max(image.width, image.height)
    if longest <= LOW_EDGE:
        return image
    width, height = (max(1, round(edge * LOW_EDGE / longest)) for edge in (image.width, image.height))
    picture = Image.frombuffer("RGB", (image.width, image.height), image.pixels)
    pixels = picture.resize((width, height), Image.Resampling.LANCZOS).tobytes()
    return ImageInput(pixel_digest(width, height, pixels), width, height, pixels)
