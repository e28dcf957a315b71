"""Pages of PDFs, in a decoding process: what they show, and what is refused."""

from __future__ import annotations

import dataclasses
import random
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from demo.documents import pdf_of
from service.errors import ImageError
from service.images.decoder_child import DecodeRules, memory_needed
from service.images.decoder_pool import DecoderPool
from tests.service.images.pdfs import form_pdf, locked_pdf, pages_pdf, plain_pdf, written_pdf
from tests.service.images.pictures import plain
from tests.service.serving import eventually

ROOT = Path(__file__).parents[3]
MIB = 1024**2
RULES = DecodeRules(("png",), 100_000, 150_000, 20.0, memory_needed(100_000, MIB), document_pages=100)
RED, BLUE = (200, 30, 30), (20, 30, 200)
PDF = plain_pdf(RED, BLUE)
NOISE = Image.effect_noise((40, 30), 80).convert("RGB")


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    found = DecoderPool(RULES)
    yield found
    found.close()


def pixels(pool: DecoderPool, data: bytes, page: int = 1) -> np.ndarray:
    image = pool.decode_page(data, RULES.request_pixels, page).image
    return np.frombuffer(image.pixels, np.uint8).reshape(image.height, image.width, 3)


def refusal(pool: DecoderPool, data: bytes, page: int = 1, left: int = RULES.request_pixels) -> ImageError:
    with pytest.raises(ImageError) as caught:
        pool.decode_page(data, left, page)
    return caught.value


def test_a_page_is_drawn_dot_for_dot(pool: DecoderPool) -> None:
    rng = np.random.default_rng(5)
    pages = [Image.fromarray(rng.integers(0, 256, (40, 60, 3), np.uint8)) for _ in range(2)]
    data = pdf_of(pages)
    for number, page in enumerate(pages, start=1):
        found = pool.decode_page(data, RULES.request_pixels, number)
        assert found.pages == 2
        assert np.array_equal(pixels(pool, data, number), np.asarray(page))


def test_the_service_itself_never_loads_the_library() -> None:
    program = "import sys; import service.app; sys.exit('pypdfium2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT).returncode == 0


def test_a_picture_is_one_page(pool: DecoderPool) -> None:
    found = pool.decode_page(plain(), RULES.request_pixels, 1)
    assert (found.pages, found.image) == (1, pool.decode(plain(), RULES.request_pixels))


def test_a_pdf_is_a_picture_only_where_a_page_is_asked_for(pool: DecoderPool) -> None:
    with pytest.raises(ImageError) as caught:
        pool.decode(PDF, RULES.request_pixels)
    assert caught.value.code == "unsupported_image_format"


def test_the_paper_is_white_and_dots_an_inch_are_a_setting() -> None:
    coarse = DecoderPool(dataclasses.replace(RULES, document_dpi=36.0))
    try:
        found = pixels(coarse, pages_pdf(1, b"0 0 40 30"))
        assert found.shape == (15, 20, 3) and (found == 255).all()
    finally:
        coarse.close()


def test_a_page_that_lies_on_its_side_is_turned(pool: DecoderPool) -> None:
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 40 30]/Rotate 90>>"
    data = written_pdf(b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 1/Kids[3 0 R]>>", page)
    assert pixels(pool, data).shape == (80, 60, 3)


def test_a_form_shows_what_was_filled_in(pool: DecoderPool) -> None:
    found = pixels(pool, form_pdf())
    assert found.shape == (40, 40, 3)
    assert (found[15:25, 15:25] < 128).all() and (found[:8] == 255).all()


BAD = {
    "locked": (locked_pdf(), "document_locked"),
    "only its first line": (b"%PDF-1.7\n", "invalid_document"),
    "cut in the middle": (PDF[: len(PDF) // 2], "invalid_document"),
    "no pages": (pages_pdf(0), "invalid_document"),
    "a page that is not there": (pages_pdf(2, said=50), "invalid_document"),
    "too many pages": (pages_pdf(101), "too_many_pages"),
    "says it has more than it has": (pages_pdf(2, said=1000), "too_many_pages"),
    "a huge page": (pages_pdf(2, b"0 0 14400 14400"), "image_too_large"),
    "endless": (pages_pdf(1, b"0 0 1e38 1e38"), "image_too_large"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_read_is_told_by_its_code(pool: DecoderPool, name: str) -> None:
    data, code = BAD[name]
    error = refusal(pool, data)
    assert error.code == code, error.message
    assert pool.decode_page(PDF, RULES.request_pixels, 2).pages == 2


def test_a_refusal_does_not_depend_on_the_pdf_before(pool: DecoderPool) -> None:
    assert refusal(pool, locked_pdf()).code == "document_locked"
    assert refusal(pool, pages_pdf(0)).code == "invalid_document"


def test_the_sizes_of_all_pages_are_judged_with_the_first(pool: DecoderPool) -> None:
    small, large = (b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 %d 4]>>" % side for side in (4, 90_000))
    kids = b"<</Type/Pages/Count 3/Kids[3 0 R 3 0 R 4 0 R]>>"
    data = written_pdf(b"<</Type/Catalog/Pages 2 0 R>>", kids, small, large)
    assert "page 3" in refusal(pool, data).message
    assert pool.decode_page(data, RULES.request_pixels, 2).image.width == 8


def test_a_page_counts_against_what_its_request_has_left(pool: DecoderPool) -> None:
    error = refusal(pool, PDF, 1, 8 * 6 - 1)
    assert error.code == "image_too_large" and str(RULES.request_pixels) in error.message


def endless() -> bytes:
    """A page of 200 x 200 dots, each of which takes 200,000 steps of arithmetic: minutes, and next to no memory."""
    steps = b"{ add " + b"dup add 2 div " * 100_000 + b" dup dup }"
    function = b"<</FunctionType 4/Domain[0 1 0 1]/Range[0 1 0 1 0 1]/Length %d>>stream\n%b\nendstream"
    shading = b"<</ShadingType 1/ColorSpace/DeviceRGB/Matrix[100 0 0 100 0 0]/Function 4 0 R>>"
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 100 100]/Contents 5 0 R/Resources<</Shading<</S %b>>>>>>"
    return written_pdf(
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Count 1/Kids[3 0 R]>>",
        page % shading,
        function % (len(steps), steps),
        b"<</Length 5>>stream\n/S sh\nendstream",
    )


def test_a_page_that_takes_for_ever_ends_at_the_deadline_and_the_next_is_drawn() -> None:
    hasty = DecoderPool(dataclasses.replace(RULES, seconds=1.5))

    def is_drawn() -> bool:
        try:
            return bool((pixels(hasty, PDF, 2) == BLUE).all())
        except ImageError as error:
            assert error.code == "image_decode_timeout"  # a busy machine needs longer to bring the library
            return False

    try:
        eventually(is_drawn, "the library is there")
        assert refusal(hasty, endless()).code == "image_decode_timeout"
        eventually(is_drawn, "the next one is drawn")
    finally:
        hasty.close()


def huge_picture() -> bytes:
    """A small page with a picture of 40,000 x 40,000 dots, 5 GB unpacked."""
    packed = zlib.compress(b"\0" * 10_000_000)
    picture = (
        b"<</Type/XObject/Subtype/Image/Width 40000/Height 40000/BitsPerComponent 8/ColorSpace/DeviceRGB"
        b"/Filter/FlateDecode/Length %d>>stream\n%b\nendstream" % (len(packed), packed)
    )
    content = b"<</Length 20>>stream\n9 0 0 9 0 0 cm /F Do\nendstream"
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 5 0 R/Resources<</XObject<</F 4 0 R>>>>>>"
    return written_pdf(
        b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count 1/Kids[3 0 R]>>", page, picture, content
    )


def test_a_page_with_a_picture_beyond_all_memory_costs_nobody_else(pool: DecoderPool) -> None:
    """It is drawn without the picture, or its process ends over it: the next page does not notice."""
    try:
        assert pixels(pool, huge_picture()).shape == (18, 18, 3)
    except ImageError as error:
        assert error.code in ("image_decode_failed", "image_too_large", "invalid_document")
    assert (pixels(pool, PDF, 2) == BLUE).all()


def harmed(data: bytes, rng: random.Random) -> bytes:
    """Cut, or with some bits flipped."""
    if rng.random() < 0.3:
        return data[: rng.randrange(9, len(data))]
    found = bytearray(data)
    for _ in range(rng.choice((1, 4, 32))):
        found[rng.randrange(5, len(found))] ^= 1 << rng.randrange(8)
    return bytes(found)


def fuzz(pool: DecoderPool, seed: int, count: int) -> int:
    """How many of the harmed PDFs were drawn all the same; others end in an error of ours."""
    rng = random.Random(seed)
    seeds = [PDF, form_pdf(), pages_pdf(3), locked_pdf(), pdf_of([NOISE])]
    drawn = 0
    for _ in range(count):
        try:
            pool.decode_page(harmed(rng.choice(seeds), rng), RULES.request_pixels, 1)
            drawn += 1
        except ImageError as error:
            assert error.code in KNOWN, error.code
    return drawn


KNOWN = {
    "invalid_image",
    "invalid_document",
    "document_locked",
    "image_too_large",
    "too_many_pages",
    "image_decode_failed",
    "image_decode_timeout",
}


def test_harmed_pdfs_are_drawn_or_refused_in_our_words(pool: DecoderPool) -> None:
    drawn = fuzz(pool, 1, 150)
    assert 0 < drawn < 150
    assert (pixels(pool, PDF, 2) == BLUE).all()


@pytest.mark.slow
def test_thousands_of_harmed_pdfs_are_drawn_or_refused_in_our_words(pool: DecoderPool) -> None:
    fuzz(pool, 2, 5000)
    assert (pixels(pool, PDF, 2) == BLUE).all()
