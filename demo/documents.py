"""Pages as a PDF, dot for dot."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from typing import Final

import pypdfium2
from PIL import Image

DOTS_AN_INCH: Final = 144
"""As the service draws pages unless it is told otherwise: then every pixel is one dot again."""
_POINTS_AN_INCH: Final = 72
_ONE_AT_A_TIME: Final = threading.Lock()  # the library knows no threads


def pdf_of(pictures: Sequence[Image.Image]) -> bytes:
    """A PDF with a page for each picture, in its size."""
    with _ONE_AT_A_TIME:
        document = pypdfium2.PdfDocument.new()
        for picture in pictures:
            _add_page(document, picture)
        buffer = io.BytesIO()
        document.save(buffer)
        document.close()
        return buffer.getvalue()


def _add_page(document: pypdfium2.PdfDocument, picture: Image.Image) -> None:
    width, height = (_POINTS_AN_INCH * side / DOTS_AN_INCH for side in picture.size)
    page = document.new_page(width, height)
    drawn = pypdfium2.PdfImage.new(document)
    drawn.set_bitmap(pypdfium2.PdfBitmap.from_pil(picture))
    drawn.set_matrix(pypdfium2.PdfMatrix().scale(width, height))
    page.insert_obj(drawn)
    page.gen_content()
