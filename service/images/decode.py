"""Bytes of a picture -> upright RGB pixels and their digest, in a bounded pool of threads.

The size is read from the header and judged before anything is unpacked. Only the format that the content
shows is tried, out of the formats that the operator allows. Of an animation the first frame counts. Colour
profiles are ignored.
"""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from PIL import Image

from engine.messages import ImageInput
from service.errors import ImageError
from service.images.sniff import sniff
from store.records.keys import pixel_digest

BACKGROUND: Final = (255, 255, 255)
"""What shows through transparent pixels: white, as paper and most web pages."""

_log = logging.getLogger(__name__)
_ORIENTATION_TAG: Final = 0x0112
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_TO_8_BIT: Final = [round(value / 257) for value in range(65536)]
_WITH_ALPHA: Final = frozenset({"RGBA", "LA", "PA", "RGBa", "La"})
_OPAQUE: Final = frozenset({"RGB", "L", "P", "1", "CMYK", "YCbCr"})
_16_BIT: Final = frozenset({"I;16", "I;16L", "I;16B", "I;16N", "I"})
# Every scan of a JPEG goes over all its pixels and may be a few bytes long: a file within all other limits
# could keep a thread busy for hours. Encoders write about ten. (In the data itself 0xFF is followed by 0x00,
# so the marker is one.)
_JPEG_SCAN: Final = b"\xff\xda"
_MOST_SCANS: Final = 100

Result = TypeVar("Result")


class Decoder:
    """`formats` are the names of `sniff` that may be decoded; `max_pixels` is width times height."""

    def __init__(self, formats: Sequence[str], max_pixels: int, threads: int) -> None:
        self._formats = tuple(formats)
        self._max_pixels = max_pixels
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    async def run(self, work: Callable[[], Result]) -> Result:
        """`work` on one of the pool's threads, off the loop that also answers the health checks."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def decode(self, data: bytes) -> ImageInput:
        """Blocking; call it through `run`. Raises `ImageError`."""
        return decode_image(data, self._formats, self._max_pixels)

    def close(self) -> None:
        """Drop what has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def decode_image(data: bytes, formats: Sequence[str], max_pixels: int) -> ImageInput:
    """Upright RGB of `data`. Raises `ImageError` and nothing else."""
    kind = sniff(data)
    if not data:
        raise ImageError("invalid_image", "it is empty.")
    if kind == "unknown":
        raise ImageError("invalid_image", "its content is not a picture of a known kind.")
    if kind not in formats:
        accepted = ", ".join(formats)
        raise ImageError(
            "unsupported_image_format", f"its content is {kind}, which is not accepted; send {accepted}."
        )
    try:
        return _decode(data, kind, max_pixels)
    except ImageError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many_pixels(max_pixels) from None
    except Exception as error:
        # The codecs raise whatever a broken file makes them trip over (OSError, SyntaxError, struct.error,
        # ...). Their text may hold addresses of memory: it goes to the log as a type, and to nobody else.
        _log.debug("picture not decoded", extra={"kind": kind, "cause": type(error).__name__})
        raise ImageError("invalid_image", f"its {kind} data is damaged or incomplete.") from None


def _decode(data: bytes, kind: str, max_pixels: int) -> ImageInput:
    with Image.open(io.BytesIO(data), formats=[kind]) as image:
        width, height = image.size
        if width < 1 or height < 1:
            raise ImageError("invalid_image", "it has no pixels.")
        if width * height > max_pixels:
            raise _too_many_pixels(max_pixels)
        if kind == "jpeg" and data.count(_JPEG_SCAN) > _MOST_SCANS:
            raise ImageError("invalid_image", f"it is a JPEG of more than {_MOST_SCANS} scans.")
        image.load()
        upright = _turn_upright(_to_rgb(image), _orientation(image))
    pixels = upright.tobytes()
    return ImageInput(
        pixel_digest(upright.width, upright.height, pixels), upright.width, upright.height, pixels
    )


def _too_many_pixels(max_pixels: int) -> ImageError:
    return ImageError("image_too_large", f"it has more than {max_pixels} pixels.")


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:
        # Broken metadata of a picture that is whole otherwise: take it as it stands, as viewers do.
        _log.debug("unreadable EXIF")
        return 1


def _turn_upright(image: Image.Image, orientation: int) -> Image.Image:
    turn = _UPRIGHT.get(orientation)
    return image if turn is None else image.transpose(turn)


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode in _WITH_ALPHA or "transparency" in image.info:
        return _on_background(image)
    if image.mode == "RGB":
        return image
    if image.mode in _16_BIT:
        # Pillow would cut the values at 255; they are scaled.
        return image.convert("I").point(_TO_8_BIT, "L").convert("RGB")
    if image.mode in _OPAQUE:
        return image.convert("RGB")
    raise ImageError("invalid_image", "its kind of pixels is not supported.")


def _on_background(image: Image.Image) -> Image.Image:
    layer = image.convert("RGBA")
    page = Image.new("RGB", layer.size, BACKGROUND)
    page.paste(layer, mask=layer.getchannel("A"))
    return page
