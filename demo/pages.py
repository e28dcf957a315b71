"""Synthetic document pages: the data model, the sampler and the renderer.

A page is a 96x96 px picture of a 6x6 grid of 16 px cells on a tinted ground. A filled cell shows a key letter
and, beside it, either a digit in one of three inks or a coloured block. The block means "same as this key on
the page of that colour", so a reader has to look at another page. On every page the keys run in alphabetical
order from the top left to the bottom right.

Everything is deterministic: a page is plain data, and its picture depends on nothing else (the glyphs are bitmaps
in this file, the arithmetic is integer). A page can be written as a short URL-safe code and read back.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

GRID: Final = 6
CELL_PX: Final = 16
PAGE_PX: Final = GRID * CELL_PX
CELLS: Final = GRID * GRID

KEYS: Final = tuple("ABCDEFGHIJKL")
DIGITS: Final = 8
TINTS: Final = {
    "red": (255, 140, 140),
    "green": (140, 255, 140),
    "blue": (140, 153, 255),
    "yellow": (255, 255, 128),
    "cyan": (128, 255, 255),
    "violet": (217, 140, 255),
    "white": (255, 255, 255),
    "gray": (178, 178, 178),
}
INKS: Final = {"black": (5, 5, 5), "maroon": (158, 0, 0), "navy": (0, 0, 158)}
MAX_PAGES: Final = len(TINTS)

# Blocks are darker than the grounds, so that a block stands out on every page it may be drawn on.
_BLOCKS: Final = {
    "red": (204, 0, 0),
    "green": (0, 153, 0),
    "blue": (0, 0, 230),
    "yellow": (191, 178, 0),
    "cyan": (0, 178, 178),
    "violet": (153, 0, 204),
    "white": (255, 255, 255),
    "gray": (96, 96, 96),
}
_INK_LETTERS: Final = {"k": "black", "m": "maroon", "n": "navy"}
_GRAIN: Final = 18  # half width of the uniform noise, in 8-bit levels
_GLYPHS: Final = {
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "B": "11110 10001 10001 11110 10001 10001 11110",
    "C": "01110 10001 10000 10000 10000 10001 01110",
    "D": "11110 10001 10001 10001 10001 10001 11110",
    "E": "11111 10000 10000 11110 10000 10000 11111",
    "F": "11111 10000 10000 11110 10000 10000 10000",
    "G": "01110 10001 10000 10111 10001 10001 01110",
    "H": "10001 10001 10001 11111 10001 10001 10001",
    "I": "01110 00100 00100 00100 00100 00100 01110",
    "J": "00111 00010 00010 00010 00010 10010 01100",
    "K": "10001 10010 10100 11000 10100 10010 10001",
    "L": "10000 10000 10000 10000 10000 10000 11111",
    "0": "01110 10001 10011 10101 11001 10001 01110",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "2": "01110 10001 00001 00110 01000 10000 11111",
    "3": "11111 00010 00100 00010 00001 10001 01110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "00110 01000 10000 11110 10001 10001 01110",
    "7": "11111 00001 00010 00100 01000 01000 01000",
}


class Place(NamedTuple):
    """One cell of a prompt: index of the page in the prompt, position of the cell on it (0 = top left)."""

    page: int
    position: int


@dataclass(frozen=True, slots=True)
class Cell:
    """A filled cell. Either `digit` is drawn in `ink`, or `same_as` names the tint of the page to look at."""

    position: int
    key: str
    ink: str = "black"
    digit: int = 0
    same_as: str | None = None


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its tint, its filled cells by position, and the seed of its grain (noise and jitter)."""

    tint: str
    cells: tuple[Cell, ...]
    grain: int

    def cell(self, key: str) -> Cell | None:
        """The cell that shows `key`, or None."""
        return next((cell for cell in self.cells if cell.key == key), None)


def _glyph(symbol: str) -> NDArray[np.bool_]:
    """[16, 8] mask of a 5x7 glyph, each row drawn twice."""
    rows = [[bit == "1" for bit in row] for row in _GLYPHS[symbol].split()]
    mask = np.zeros((CELL_PX, CELL_PX // 2), dtype=np.bool_)
    mask[1:15, 1:6] = np.repeat(np.array(rows), 2, axis=0)
    return mask


_MASKS: Final = {symbol: _glyph(symbol) for symbol in _GLYPHS}


def render(page: Page) -> NDArray[np.uint8]:
    """Draw a page. Returns [96, 96, 3] RGB."""
    rng = np.random.default_rng(page.grain)
    picture = np.empty((PAGE_PX, PAGE_PX, 3), dtype=np.int16)
    picture[:] = TINTS[page.tint]
    shifts = rng.integers(-1, 2, len(page.cells)).tolist()
    for cell, shift in zip(page.cells, shifts, strict=True):
        top, left = (cell.position // GRID) * CELL_PX, (cell.position % GRID) * CELL_PX
        # Glyphs leave one free row above and below, so a shift by one row wraps nothing around.
        picture[top : top + 16, left : left + 8][np.roll(_MASKS[cell.key], shift, axis=0)] = INKS[
            "black" if cell.same_as else cell.ink
        ]
        if cell.same_as:
            picture[top + 4 + shift : top + 12 + shift, left + 9 : left + 15] = _BLOCKS[cell.same_as]
        else:
            mask = np.roll(_MASKS[str(cell.digit)], shift, axis=0)
            picture[top : top + 16, left + 8 : left + 16][mask] = INKS[cell.ink]
    picture += rng.integers(-_GRAIN, _GRAIN + 1, picture.shape, dtype=np.int8)
    return np.clip(picture, 0, 255).astype(np.uint8)


def to_image(page: Page) -> Image.Image:
    """The page as an RGB picture."""
    return Image.fromarray(render(page))


def to_png(page: Page) -> bytes:
    """The page as a PNG file."""
    buffer = io.BytesIO()
    to_image(page).save(buffer, format="PNG")
    return buffer.getvalue()


def resolve(pages: Sequence[Page], page: int, key: str) -> tuple[Place, Cell]:
    """Where the value of `key` on page number `page` is written, following one coloured block.

    Raises KeyError when the page does not show the key, or the block leads nowhere.
    """
    cell = pages[page].cell(key)
    if cell is not None and cell.same_as is not None:
        page = next((i for i, other in enumerate(pages) if other.tint == cell.same_as), page)
        cell = pages[page].cell(key)
    if cell is None or cell.same_as is not None:
        raise KeyError(key)
    return Place(page, cell.position), cell


def draw_pages(
    rng: np.random.Generator,
    count: int,
    *,
    filled: tuple[int, int] = (6, 10),
    shared_keys: bool = False,
    links: float = 0.0,
) -> tuple[Page, ...]:
    """Draw `count` random pages of distinct tints.

    filled: fewest and most filled cells of a page. shared_keys: all pages show the same keys. links: share of the
    cells that become coloured blocks, among those whose key has a digit on an earlier page.
    """
    if not 1 <= count <= MAX_PAGES:
        raise ValueError(f"between 1 and {MAX_PAGES} pages, not {count}")
    tints = [list(TINTS)[i] for i in rng.permutation(MAX_PAGES)[:count].tolist()]
    common = _draw_keys(rng, filled) if shared_keys else None
    pages: list[Page] = []
    for tint in tints:
        keys = common or _draw_keys(rng, filled)
        cells = _draw_cells(rng, keys, pages, links)
        pages.append(Page(tint, cells, int(rng.integers(1 << 31))))
    return tuple(pages)


def _draw_keys(rng: np.random.Generator, filled: tuple[int, int]) -> list[str]:
    count = int(rng.integers(filled[0], filled[1] + 1))
    return [KEYS[i] for i in sorted(rng.permutation(len(KEYS))[:count].tolist())]


def _draw_cells(
    rng: np.random.Generator, keys: list[str], earlier: list[Page], links: float
) -> tuple[Cell, ...]:
    positions = sorted(rng.permutation(CELLS)[: len(keys)].tolist())
    inks = [list(INKS)[i] for i in rng.integers(0, len(INKS), len(keys)).tolist()]
    digits = rng.integers(0, DIGITS, len(keys)).tolist()
    linked = (rng.random(len(keys)) < links).tolist()
    cells: list[Cell] = []
    for position, key, ink, digit, link in zip(positions, keys, inks, digits, linked, strict=True):
        targets = (
            [page.tint for page in earlier if (cell := page.cell(key)) and not cell.same_as] if link else []
        )
        if targets:
            cells.append(Cell(position, key, same_as=targets[int(rng.integers(len(targets)))]))
        else:
            cells.append(Cell(position, key, ink, digit))
    return tuple(cells)


def encode(page: Page) -> str:
    """A URL-safe code of the page, for instance `red_71_A05k4_C11-blue`: tint, grain, cells."""
    letters = {ink: letter for letter, ink in _INK_LETTERS.items()}
    parts = [page.tint, str(page.grain)]
    for cell in page.cells:
        value = f"-{cell.same_as}" if cell.same_as else f"{letters[cell.ink]}{cell.digit}"
        parts.append(f"{cell.key}{cell.position:02d}{value}")
    return "_".join(parts)


def decode(code: str) -> Page:
    """Read the code that `encode` wrote. Raises ValueError on anything else."""
    tint, grain, *parts = code.split("_") if code.count("_") else (code, "")
    if tint not in TINTS or not grain.isascii() or not grain.isdigit() or len(grain) > 10:
        raise ValueError(f"not a page: {code[:80]!r}")
    cells = tuple(_decode_cell(part) for part in parts)
    positions = [cell.position for cell in cells]
    if positions != sorted(set(positions)) or len({cell.key for cell in cells}) != len(cells):
        raise ValueError(f"cells out of order: {code[:80]!r}")
    return Page(tint, cells, int(grain))


def _decode_cell(part: str) -> Cell:
    key, place, value = part[:1], part[1:3], part[3:]
    if key in KEYS and len(place) == 2 and place.isascii() and place.isdigit() and int(place) < CELLS:
        if value[:1] == "-" and value[1:] in TINTS:
            return Cell(int(place), key, same_as=value[1:])
        if len(value) == 2 and value[0] in _INK_LETTERS and value[1] in "01234567":
            return Cell(int(place), key, _INK_LETTERS[value[0]], int(value[1]))
    raise ValueError(f"not a cell: {part[:20]!r}")
