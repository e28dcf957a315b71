"""Bytes of a picture -> upright RGB pixels and their digest.

The size is read from the header and judged before anything is unpacked. Only the format that the content shows is
tried, out of the formats that the operator allows. Of an animation the first frame counts. Colour profiles are
ignored. This runs in a process of its own (`service.images.decoder_child`), which may die or be killed over a picture.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from PIL import Image

from service.errors import ImageError
from service.images.formats.avif import read_avif
from service.images.formats.bmp import read_bmp
from service.images.formats.gif import read_gif
from service.images.formats.jpeg import read_jpeg
from service.images.formats.picture import Picture, damaged
from service.images.formats.png import read_png
from service.images.formats.tiff import read_tiff
from service.images.formats.webp import read_webp
from service.images.sniff import sniff

_log = logging.getLogger(__name__)
_READERS: Final[Mapping[str, Callable[[bytes], Picture]]] = {
    "avif": read_avif,
    "bmp": read_bmp,
    "gif": read_gif,
    "jpeg": read_jpeg,
    "png": read_png,
    "tiff": read_tiff,
    "webp": read_webp,
}
_UPRIGHT: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True)
class PixelLimits:
    """Width times height: of one picture, of all of a request, and how much of that is left."""

    picture: int
    request: int
    left: int


def decode_image(data: bytes, formats: Sequence[str], limits: PixelLimits) -> Image.Image:
    """Upright RGB of `data`. Raises `ImageError` and nothing else."""
    kind = accepted_kind(data, formats)
    try:
        return _decode(data, kind, limits)
    except ImageError:
        raise
    except MemoryError:
        raise too_much_memory() from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _too_many(limits.picture) from None
    except Exception as error:
        # The codecs raise whatever a broken file makes them trip over (OSError, SyntaxError, struct.error,
        # ...). Their text may hold addresses of memory: it goes to the log as a type, and to nobody else.
        _log.debug("picture not decoded", extra={"kind": kind, "cause": type(error).__name__})
        raise damaged(kind) from None


def accepted_kind(data: bytes, formats: Sequence[str]) -> str:
    """The kind of `data`, one of `formats`. Raises `ImageError`."""
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
    return kind


def _decode(data: bytes, kind: str, limits: PixelLimits) -> Image.Image:
    picture = _READERS[kind](data)
    pixels = picture.width * picture.height
    if pixels < 1:
        raise ImageError("invalid_image", "it has no pixels.")
    if pixels > limits.picture:
        raise _too_many(limits.picture)
    if pixels > limits.left:
        raise too_many_in_all(limits.request)
    image = picture.unpack()
    turn = _UPRIGHT.get(picture.orientation)
    return image if turn is None else image.transpose(turn)


def _too_many(most: int) -> ImageError:
    return ImageError("image_too_large", f"it has more than {most} pixels.")


def too_many_in_all(most: int) -> ImageError:
    """The error for the picture with which a request has more pixels than it may have."""
    return ImageError("image_too_large", f"with it the request has more than {most} pixels in all.")


def too_much_memory() -> ImageError:
    return ImageError("image_too_large", "it takes more memory than a picture may.")
