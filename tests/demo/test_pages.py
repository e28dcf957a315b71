"""Pages are plain data with one picture each."""

import io

import numpy as np
import pytest
from PIL import Image

from demo.pages import (
    CELL_PX,
    GRID,
    INKS,
    KEYS,
    MAX_PAGES,
    PAGE_PX,
    TINTS,
    Cell,
    Page,
    Place,
    decode,
    draw_pages,
    encode,
    render,
    resolve,
    to_png,
)

PAGE = Page("cyan", (Cell(3, "B", "navy", 6), Cell(20, "K", same_as="red")), grain=7)


def test_equal_seeds_draw_equal_pages_and_pictures() -> None:
    first, second = (draw_pages(np.random.default_rng(5), 4, links=0.5) for _ in range(2))
    assert first == second
    assert all(np.array_equal(render(a), render(b)) for a, b in zip(first, second, strict=True))


def test_a_picture_depends_on_the_grain() -> None:
    other = Page(PAGE.tint, PAGE.cells, grain=8)
    assert not np.array_equal(render(PAGE), render(other))


def test_the_png_holds_the_rendered_pixels() -> None:
    picture = Image.open(io.BytesIO(to_png(PAGE)))
    assert picture.mode == "RGB"
    assert picture.size == (PAGE_PX, PAGE_PX)
    assert np.array_equal(np.asarray(picture), render(PAGE))


@pytest.mark.parametrize("tint", TINTS)
def test_the_ground_has_the_tint(tint: str) -> None:
    blank = render(Page(tint, (), grain=1)).astype(int)
    # Noise is symmetric; only clipping at 255 pulls a channel down, by at most half its width.
    assert np.abs(blank.mean((0, 1)) - TINTS[tint]).max() < 6


def test_ink_is_where_the_cell_is_and_nowhere_else() -> None:
    drawn = render(PAGE).astype(int)
    blank = render(Page(PAGE.tint, (), grain=PAGE.grain)).astype(int)
    changed = np.abs(drawn - blank).max(-1) > 60
    rows, columns = np.nonzero(changed)
    cells = {int(r // CELL_PX * GRID + c // CELL_PX) for r, c in zip(rows, columns, strict=True)}
    assert cells == {3, 20}


def test_drawn_pages_have_distinct_tints_and_keys_in_alphabetical_order() -> None:
    pages = draw_pages(np.random.default_rng(1), MAX_PAGES, links=0.5)
    assert {page.tint for page in pages} == set(TINTS)
    for page in pages:
        assert [cell.position for cell in page.cells] == sorted({cell.position for cell in page.cells})
        assert [cell.key for cell in page.cells] == sorted({cell.key for cell in page.cells})
        assert all(cell.ink in INKS and 0 <= cell.digit < 8 and cell.key in KEYS for cell in page.cells)


def test_blocks_lead_to_a_digit_on_an_earlier_page() -> None:
    pages = draw_pages(np.random.default_rng(2), 5, links=0.6, shared_keys=True)
    blocks = [(i, cell.key) for i, page in enumerate(pages) for cell in page.cells if cell.same_as]
    assert blocks
    for i, key in blocks:
        place, cell = resolve(pages, i, key)
        assert place.page < i
        assert cell.same_as is None


def test_resolve_follows_one_block_and_refuses_what_leads_nowhere() -> None:
    red = Page("red", (Cell(0, "K", "black", 1),), grain=0)
    assert resolve((red, PAGE), 1, "K") == (Place(0, 0), red.cells[0])
    assert resolve((red, PAGE), 1, "B") == (Place(1, 3), PAGE.cells[0])
    for pages, key in (((PAGE,), "K"), ((PAGE,), "A")):
        with pytest.raises(KeyError):
            resolve(pages, 0, key)


def test_shared_keys_puts_the_same_keys_on_every_page() -> None:
    pages = draw_pages(np.random.default_rng(3), 6, shared_keys=True)
    assert len({tuple(cell.key for cell in page.cells) for page in pages}) == 1


@pytest.mark.parametrize("count", [0, MAX_PAGES + 1])
def test_the_number_of_pages_is_checked(count: int) -> None:
    with pytest.raises(ValueError, match="pages"):
        draw_pages(np.random.default_rng(0), count)


def test_a_page_survives_its_code() -> None:
    assert encode(PAGE) == "cyan_7_B03n6_K20-red"
    for page in (PAGE, Page("gray", (), 0), *draw_pages(np.random.default_rng(4), 8, links=0.5)):
        assert decode(encode(page)) == page


@pytest.mark.parametrize(
    "code",
    [
        "",
        "cyan",
        "pink_1",
        "cyan_-1",
        "cyan_\u0661",
        "cyan_1_",
        "cyan_1_B36n6",
        "cyan_1_Z03n6",
        "cyan_1_B03n8",
        "cyan_1_B03-pink",
        "cyan_1_K20-red_B03n6",
        "cyan_1_B03n6_B04n6",
    ],
)
def test_anything_else_is_no_page_code(code: str) -> None:
    with pytest.raises(ValueError, match=r"not a|out of order"):
        decode(code)
