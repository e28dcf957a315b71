"""A page of a PDF -> RGB pixels. Runs in a decoding process, as `service.images.decode` does, and is imported there
with the first PDF.

Scripts and what a PDF would fetch or launch are not part of this build of the library. A page shows what a printout
would: its content, its notes and the values of its forms.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Final

import pypdfium2
from PIL import Image
from pypdfium2 import raw

from service.errors import ImageError
from service.images.decode import PixelLimits, too_many_in_all, too_much_memory

_log = logging.getLogger(__name__)
_LOCKED: Final = frozenset({raw.FPDF_ERR_PASSWORD, raw.FPDF_ERR_SECURITY})
_POINTS_PER_INCH: Final = 72


def render_page(
    data: bytes, number: int, limits: PixelLimits, most_pages: int, dpi: float
) -> tuple[Image.Image, int]:
    """The page `number` (from 1) of `data` on white, and how many pages there are. The sizes of all are judged before
    one is drawn. Raises `ImageError` and nothing else."""
    _forget_the_last_error()
    with _in_our_words(number), closing(pypdfium2.PdfDocument(data)) as document:
        document.init_forms()  # has to come first
        count = len(document)
        _check_count(count, most_pages)
        scale = dpi / _POINTS_PER_INCH
        for place in range(count) if number == 1 else (number - 1,):
            _check_size(document, place, scale, limits)
        page = document[number - 1]
        bitmap = page.render(scale=scale, rev_byteorder=True)
        return bitmap.to_pil().convert("RGB").copy(), count


def _forget_the_last_error() -> None:
    """The library keeps the cause of the last failure, and gives it again for a PDF without pages: that one would be
    called locked because another one was. What is no PDF at all sets it to "damaged"."""
    with suppress(pypdfium2.PdfiumError):
        pypdfium2.PdfDocument(b"").close()


def _check_count(count: int, most: int) -> None:
    if count < 1:
        raise ImageError("invalid_document", "it is a PDF without pages.")
    if count > most:
        raise ImageError("too_many_pages", f"it has {count} pages; the limit is {most}.")


def _check_size(document: pypdfium2.PdfDocument, place: int, scale: float, limits: PixelLimits) -> None:
    try:
        width, height = (math.ceil(side * scale) for side in document.get_page_size(place))
    except pypdfium2.PdfiumError:
        raise ImageError("invalid_document", f"its page {place + 1} is not there.") from None
    if width < 1 or height < 1:
        raise ImageError("invalid_document", f"its page {place + 1} has no size.")
    if width * height > limits.picture:
        raise ImageError("image_too_large", f"its page {place + 1} has more than {limits.picture} pixels.")
    if width * height > limits.left:
        raise too_many_in_all(limits.request)


@contextmanager
def _in_our_words(number: int) -> Iterator[None]:
    try:
        yield
    except ImageError:
        raise
    except MemoryError:
        raise too_much_memory() from None
    except pypdfium2.PdfiumError as error:
        if error.err_code in _LOCKED:
            locked = "it is a PDF that opens with a password only: save it without one."
            raise ImageError("document_locked", locked) from None
        _log.debug("PDF not read", extra={"cause": str(error)})
        raise ImageError("invalid_document", _damaged(error, number)) from None
    except Exception as error:
        _log.debug("PDF not read", extra={"cause": type(error).__name__})
        raise ImageError("invalid_document", f"page {number} of its PDF is damaged.") from None


def _damaged(error: pypdfium2.PdfiumError, number: int) -> str:
    whole = error.err_code is not None
    return "it is a PDF that is damaged or incomplete." if whole else f"page {number} of its PDF is damaged."
