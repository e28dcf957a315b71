"""The process that decodes: a file comes in through one piece of shared memory, pixels go out through another.

It imports no more than the codecs need, so that a new one is there in a moment. It may die over a picture; nothing
else is in it.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from PIL import AvifImagePlugin, Image, TiffImagePlugin, WebPImagePlugin

from service.errors import ImageError
from service.images.decode import PixelLimits, decode_image, too_much_memory
from service.images.sniff import sniff
from store.records.keys import pixel_digest

ORDER: Final = struct.Struct("<QQQ")
"""Bytes of the file, pixels that the request it belongs to has left, and the page, as `decode_page` has it."""
# The hungriest are animations of WebP, and progressive JPEG of four inks.
_BYTES_A_PIXEL: Final = 24
_COPIES_OF_A_FILE: Final = 4
_BASE_BYTES: Final = 256 * 1024**2
_STRIP_BYTES: Final = 4 * 1024 * 1024
_LEAVE_SECONDS: Final = 5.0
# They are known to the codecs once they are imported; else the first such picture would import all that there are.
_PLUGINS: Final = (AvifImagePlugin, TiffImagePlugin, WebPImagePlugin)


@dataclass(frozen=True, slots=True)
class DecodeRules:
    """`formats` are the names of `sniff` that may be decoded. A picture and all of a request may have so many pixels
    (width times height); decoding one may take so many seconds, and so many bytes of memory. A PDF may have so many
    pages, which are drawn with so many dots an inch."""

    formats: tuple[str, ...]
    picture_pixels: int
    request_pixels: int
    seconds: float
    memory_bytes: int
    document_pages: int = 1000
    document_dpi: float = 144.0


def memory_needed(pixels: int, nbytes: int) -> int:
    """Bytes of memory in which every honest file of so many pixels and bytes can be decoded."""
    return _BYTES_A_PIXEL * pixels + _COPIES_OF_A_FILE * nbytes + _BASE_BYTES


def main(arguments: list[str]) -> None:
    """Serve until the other end closes the channel."""
    channel, source, target = (int(number) for number in arguments[:3])
    rules = DecodeRules(**json.loads(arguments[3]))
    _confine(rules)
    with socket.socket(fileno=channel) as orders:
        while len(order := orders.recv(ORDER.size, socket.MSG_WAITALL)) == ORDER.size:
            with _time_limit(rules.seconds + _LEAVE_SECONDS):
                answer = _answer(order, source, target, rules)
            orders.sendall(json.dumps(answer).encode() + b"\n")


def _confine(rules: DecodeRules) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; the service closes the channel
    warnings.simplefilter("ignore")
    Image.MAX_IMAGE_PIXELS = None  # `decode_image` judges
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # it would reserve memory for as many as there are processors
    Image.preinit()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it would hold somebody's picture
    if sys.platform == "linux":
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + rules.memory_bytes,) * 2)


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """The service kills this process at the deadline. If the service is gone, the clock does."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(order: bytes, source: int, target: int, rules: DecodeRules) -> dict[str, Any]:
    """What became of the file in `source`. Its pixels are then in `target`."""
    nbytes, left, page = ORDER.unpack(order)
    limits = PixelLimits(rules.picture_pixels, rules.request_pixels, left)
    try:
        image, pages = decode_page(os.pread(source, nbytes, 0), page, rules, limits)
        digest = _write(image, target).hex()
        return {"width": image.width, "height": image.height, "digest": digest, "pages": pages}
    except (MemoryError, OSError):  # the system has none for the file, or for the pixels
        error = too_much_memory()
    except ImageError as refusal:
        error = refusal
    return {"code": error.code, "message": error.message}


def decode_page(data: bytes, page: int, rules: DecodeRules, limits: PixelLimits) -> tuple[Image.Image, int]:
    """A page of `data`, from 1, and how many it has: a picture is one page. Page 0: `data` must be a picture. Raises
    `ImageError`."""
    if page and sniff(data) == "pdf":
        from service.images.pdf import render_page  # takes its time, and few need it

        return render_page(data, page, limits, rules.document_pages, rules.document_dpi)
    return decode_image(data, rules.formats, limits), 1


def _write(image: Image.Image, target: int) -> bytes:
    """Put the pixels into `target`, in strips so that they are not in memory twice; their digest."""
    row = 3 * image.width
    step = max(1, _STRIP_BYTES // row)
    os.ftruncate(target, row * image.height)
    with mmap.mmap(target, row * image.height) as pixels:
        for top in range(0, image.height, step):
            strip = image.crop((0, top, image.width, min(top + step, image.height)))
            pixels[row * top : row * (top + strip.height)] = strip.tobytes()
        with memoryview(pixels) as view:
            return pixel_digest(image.width, image.height, view)


if __name__ == "__main__":
    main(sys.argv[1:])
