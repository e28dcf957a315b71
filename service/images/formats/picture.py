"""What parsing a file gives: how large its picture is, and how to get the pixels.

Every kind of file is parsed here, in a number of steps that is bounded, before a codec sees it. The codec gets a new
file of only those parts that make pixels. So what is not pixels (texts, profiles, thumbnails, checksums of these)
neither refuses a picture nor costs anything, and a codec's own way of reading such parts is never run.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from PIL import Image

from service.errors import ImageError

BACKGROUND: Final = (255, 255, 255)
"""What shows through transparent pixels: white, as paper and most web pages."""

_HIDDEN: Final = frozenset({"RGBA", "LA", "PA", "RGBa", "La"})
_16_BIT: Final = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I"})
_TO_8_BIT: Final = [round(value / 257) for value in range(65536)]
_OPAQUE: Final = frozenset({"L", "P", "1", "CMYK", "YCbCr"})


@dataclass(frozen=True, slots=True)
class Picture:
    """`width` and `height` are those of the canvas as stored, `orientation` is that of EXIF (1 to 8). `unpack` gives
    RGB of that size on the background; it raises whatever the codec trips over."""

    width: int
    height: int
    unpack: Callable[[], Image.Image]
    orientation: int = 1


def damaged(what: str) -> ImageError:
    """The error for a file whose parts do not make a picture. `what` is a kind of file, from `sniff`."""
    return ImageError("invalid_image", f"its {what} data is damaged or incomplete.")


def too_many(what: str, most: int) -> ImageError:
    """The error for a file of more parts than any program writes: its parsing would be the attack."""
    return ImageError("invalid_image", f"it has more than {most} {what}.")


def unpacked(file: bytes, kind: str, size: tuple[int, int] | None = None) -> Image.Image:
    """The codec's picture of `file`, as it stores it. `size` is what parsing found; a codec that sees another one reads
    something else than what was judged. Raises what the codec raises, `ImageError` for another size."""
    with Image.open(io.BytesIO(file), formats=[kind]) as image:
        if size is not None and image.size != size:
            raise damaged(kind)
        image.load()
    return image


def to_rgb(image: Image.Image) -> Image.Image:
    """RGB of any picture of at most 8 bits a sample, on the background. Raises `ImageError`."""
    if image.mode in _HIDDEN or "transparency" in image.info:
        return on_background(image.convert("RGBA"))
    if image.mode == "RGB":
        return image
    if image.mode not in _OPAQUE:
        raise ImageError("invalid_image", "its kind of pixels is not supported.")
    return image.convert("RGB")


def on_background(layer: Image.Image) -> Image.Image:
    """RGB of an RGBA `layer`."""
    page = Image.new("RGB", layer.size, BACKGROUND)
    page.paste(layer, mask=layer.getchannel("A"))
    return page


def on_canvas(frame: Image.Image, size: tuple[int, int], corner: tuple[int, int]) -> Image.Image:
    """`frame` (RGB or RGBA) with its upper left corner at `corner` of an empty page of `size`."""
    if frame.mode == "RGB" and frame.size == size and corner == (0, 0):
        return frame
    page = Image.new("RGB", size, BACKGROUND)
    page.paste(frame, corner, frame.getchannel("A") if frame.mode == "RGBA" else None)
    return page


def grey_of_16_bits(image: Image.Image) -> Image.Image:
    """8 bits of a grey picture of 16, scaled (the codec would cut them); any other picture as it is."""
    if image.mode not in _16_BIT:
        return image
    return image.convert("I").point(_TO_8_BIT, "L")
