"""GIF: the first frame where it belongs on its canvas, whatever lies around it. Files are put together by hand."""

from __future__ import annotations

import struct

import pytest

from service.images.formats import gif
from tests.service.images.decoding import decoded, refusal

WHITE = (255, 255, 255)
COLOURS = ((0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255))
RED, GREEN, BLUE = 1, 2, 3
NO_COLOURS: tuple[tuple[int, int, int], ...] = ()


def screen(width: int, height: int, colours: tuple[tuple[int, int, int], ...] = COLOURS) -> bytes:
    flags = 0x80 | (len(colours).bit_length() - 2) if colours else 0
    return b"GIF89a" + struct.pack("<HHBBB", width, height, flags, 0, 0) + flat(colours)


def flat(colours: tuple[tuple[int, int, int], ...]) -> bytes:
    return bytes(value for colour in colours for value in colour)


def frame(
    rows: list[list[int]],
    corner: tuple[int, int] = (0, 0),
    colours: tuple[tuple[int, int, int], ...] = NO_COLOURS,
    interlaced: bool = False,
) -> bytes:
    """A frame whose data is codes of 8 bits behind a clear code each, so that no table grows."""
    flags = (0x80 | (len(colours).bit_length() - 2) if colours else 0) | (0x40 if interlaced else 0)
    head = b"," + struct.pack("<HHHHB", *corner, len(rows[0]), len(rows), flags) + flat(colours)
    order = rows
    if interlaced:
        order = [row for start, step in ((0, 8), (4, 8), (2, 4), (1, 2)) for row in rows[start::step]]
    codes = [code for row in order for index in row for code in (128, index)] + [129]
    data = bytes(_packed(codes))
    return head + b"\7" + blocks(data)


def _packed(codes: list[int]) -> bytes:
    bits = "".join(f"{code:08b}"[::-1] for code in codes)
    return bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))


def blocks(data: bytes) -> bytes:
    pieces = (data[i : i + 255] for i in range(0, len(data), 255))
    return b"".join(bytes((len(piece),)) + piece for piece in pieces) + b"\0"


def control(transparent: int | None = None, disposal: int = 0) -> bytes:
    flags = disposal << 2 | (transparent is not None)
    return b"!\xf9\4" + bytes((flags, 10, 0, transparent or 0)) + b"\0"


def shown(data: bytes) -> list[list[tuple[int, ...]]]:
    image = decoded(data)
    pixels = [tuple(image.pixels[i : i + 3]) for i in range(0, len(image.pixels), 3)]
    return [pixels[i : i + image.width] for i in range(0, len(pixels), image.width)]


def colours_of(rows: list[list[int]]) -> list[list[tuple[int, ...]]]:
    return [[COLOURS[index] if index >= 0 else WHITE for index in row] for row in rows]


ROWS = [[RED, GREEN], [BLUE, RED]]


def test_a_frame_that_fills_its_screen() -> None:
    assert shown(screen(2, 2) + frame(ROWS) + b";") == colours_of(ROWS)


@pytest.mark.parametrize("disposal", [0, 1, 2, 3])
@pytest.mark.parametrize("transparent", [None, GREEN])
def test_f20_a_frame_smaller_than_its_screen_lies_on_the_background(
    disposal: int, transparent: int | None
) -> None:
    data = screen(4, 3) + control(transparent, disposal) + frame(ROWS, (1, 1)) + b";"
    green = GREEN if transparent is None else -1
    assert shown(data) == colours_of([[-1] * 4, [-1, RED, green, -1], [-1, BLUE, RED, -1]])


def test_a_screen_too_small_for_its_frame_is_as_large_as_it_must_be() -> None:
    for size in ((0, 0), (1, 2), (3, 1)):
        data = screen(*size) + frame(ROWS, (1, 0)) + b";"
        assert shown(data)[0][1:3] == colours_of(ROWS)[0]
        assert len(shown(data)) == 2


def test_a_frame_has_colours_of_its_own() -> None:
    own = ((9, 9, 9), (8, 8, 8))
    assert shown(screen(1, 1) + frame([[1]], colours=own) + b";") == [[(8, 8, 8)]]
    assert shown(screen(1, 1, NO_COLOURS) + frame([[1]], colours=own) + b";") == [[(8, 8, 8)]]


def test_without_any_colours_numbers_are_greys() -> None:
    assert shown(screen(2, 1, NO_COLOURS) + frame([[7, 100]]) + b";") == [[(7, 7, 7), (100, 100, 100)]]


def test_a_number_that_has_no_colour_is_black() -> None:
    assert shown(screen(2, 1) + frame([[RED, 100]]) + b";") == [[COLOURS[RED], (0, 0, 0)]]


def test_interlaced_rows_come_in_their_own_order() -> None:
    rows = [[index % 4] for index in range(19)]
    assert shown(screen(1, 19) + frame(rows, interlaced=True) + b";") == colours_of(rows)


def test_the_first_frame_counts_and_the_control_in_front_of_it() -> None:
    data = screen(2, 2) + control(RED) + control(GREEN) + frame(ROWS) + control(BLUE) + frame([[BLUE]]) + b";"
    assert shown(data) == colours_of([[RED, -1], [BLUE, RED]])


def test_a_transparent_colour_counts_only_where_the_control_says_so() -> None:
    named_without_saying_so = b"!\xf9\4\0\x0a\0" + bytes((GREEN,)) + b"\0"
    assert shown(screen(2, 2) + named_without_saying_so + frame(ROWS) + b";") == colours_of(ROWS)


AROUND = {
    "a note": b"!\xfe" + blocks(b"a note" * 100),
    "an empty note": b"!\xfe\0",
    "a loop": b"!\xff\x0bNETSCAPE2.0\3\1\0\0\0",
    "a short loop": b"!\xff\x0bNETSCAPE2.0\0",
    "an unknown block": b"!\x42" + blocks(b"what"),
    "text": b"!\1" + blocks(bytes(12)) + blocks(b"plain"),
    "a profile": b"!\xff\x0bICCRGBG1012" + blocks(bytes(3000)),
    "stray zeroes": b"\0\0\0",
    "garbage": b"\x99\x98",
    "a thousand notes": b"!\xfe\1x\0" * 1000,
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND.keys())
def test_f9_what_is_around_the_frame_never_decides(around: bytes) -> None:
    assert shown(screen(2, 2) + around + frame(ROWS) + around + b";") == colours_of(ROWS)
    assert shown(screen(2, 2) + frame(ROWS) + around) == colours_of(ROWS)


def test_f3_blocks_in_front_of_the_frame_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = b"!\xfe" + b"\1x" * (gif.MOST_BLOCKS + 1) + b"\0"
    monkeypatch.setattr(gif, "unpacked", None)
    assert f"more than {gif.MOST_BLOCKS} GIF blocks" in refusal(screen(2, 2) + notes + frame(ROWS)).message


def test_a_large_screen_is_judged_before_anything_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gif, "unpacked", None)
    assert refusal(screen(65535, 65535) + frame(ROWS) + b";").code == "image_too_large"
    assert refusal(screen(2, 2) + frame(ROWS, (65000, 65000)) + b";").code == "image_too_large"


@pytest.mark.parametrize(
    "data",
    [
        screen(2, 2),
        screen(2, 2) + b";",
        screen(2, 2) + control(),
        screen(2, 2) + frame(ROWS)[:7],
        screen(2, 2) + frame(ROWS)[:13],
        screen(2, 2) + b"!\xfe\xff",
        screen(2, 2)[:12],
        screen(2, 2) + b"," + struct.pack("<HHHHB", 0, 0, 0, 0, 0) + b"\7\0",
    ],
)
def test_b8_incomplete_files_are_invalid(data: bytes) -> None:
    assert refusal(data).code == "invalid_image"
