"""BMP of every kind that is taken, put together by hand."""

from __future__ import annotations

import struct

import pytest

from tests.service.images.decoding import decoded, pixel, refusal

PALETTE = ((10, 20, 30), (200, 100, 50), (0, 255, 0), (255, 0, 255))
ROWS = [[0, 1, 2], [3, 2, 1]]


def bmp(
    bits: int,
    rows: list[bytes],
    size: tuple[int, int] = (3, 2),
    colours: int = 0,
    compression: int = 0,
    masks: bytes = b"",
    palette: bytes = b"",
    header: int = 40,
) -> bytes:
    """`rows` from the top down, unpadded; a negative height stores them like that."""
    width, height = size
    if header == 12:
        head = struct.pack("<IHHHH", 12, width, height, 1, bits)
    else:
        fields = struct.pack("<IiiHHIIiiII", header, width, height, 1, bits, compression, 0, 0, 0, colours, 0)
        head = (fields + masks).ljust(header, b"\0") if header > 40 else fields + masks
    stored = rows if height < 0 else rows[::-1]
    body = (
        b"".join(row + b"\0" * (-len(row) % 4) for row in stored) if not compression & 1 or masks else rows[0]
    )
    offset = 14 + len(head) + len(palette)
    return b"BM" + struct.pack("<IHHI", offset + len(body), 0, 0, offset) + head + palette + body


def table(entry: int = 4) -> bytes:
    return b"".join(bytes(colour[::-1]) + b"\0" * (entry - 3) for colour in PALETTE)


def packed(indices: list[int], bits: int) -> bytes:
    text = "".join(f"{index:0{bits}b}" for index in indices)
    text += "0" * (-len(text) % 8)
    return int(text, 2).to_bytes(len(text) // 8)


def expected() -> bytes:
    return bytes(value for row in ROWS for index in row for value in PALETTE[index])


def colours(rows: list[list[int]]) -> list[list[tuple[int, int, int]]]:
    return [[PALETTE[index] for index in row] for row in rows]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("height", [2, -2])
def test_pictures_with_a_palette(bits: int, height: int) -> None:
    rows = [packed(row, bits) for row in ROWS]
    assert decoded(bmp(bits, rows, (3, height), 4, palette=table())).pixels == expected()


def test_pictures_of_two_colours() -> None:
    data = bmp(1, [packed([0, 1, 1], 1)], (3, 1), 2, palette=table()[:8])
    assert [pixel(data, x) for x in range(3)] == [PALETTE[0], PALETTE[1], PALETTE[1]]


def test_the_oldest_header() -> None:
    rows = [packed(row, 8) for row in ROWS]
    data = bmp(8, rows, palette=table(3).ljust(768, b"\0"), header=12)
    assert decoded(data).pixels == expected()


@pytest.mark.parametrize("header", [40, 52, 56, 64, 108, 124])
@pytest.mark.parametrize(("bits", "padding"), [(24, b""), (32, b"\x7f")])
def test_true_colours(bits: int, padding: bytes, header: int) -> None:
    rows = [b"".join(bytes(colour[::-1]) + padding for colour in row) for row in colours(ROWS)]
    assert decoded(bmp(bits, rows, header=header)).pixels == expected()


def test_16_bits_a_pixel() -> None:
    five_five_five = struct.pack("<3H", 0x7C00, 0x03E0, 0x001F)
    assert decoded(bmp(16, [five_five_five], (3, 1))).pixels == b"\xff\0\0\0\xff\0\0\0\xff"
    five_six_five = struct.pack("<3H", 0xF800, 0x07E0, 0x001F)
    masks = struct.pack("<3I", 0xF800, 0x07E0, 0x001F)
    assert (
        decoded(bmp(16, [five_six_five], (3, 1), compression=3, masks=masks)).pixels
        == b"\xff\0\0\0\xff\0\0\0\xff"
    )


def test_alpha_where_the_header_has_a_mask_for_it() -> None:
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    data = bmp(
        32, [b"\0\0\xff\xff" + b"\0\0\xff\0" + b"\0\0\xff\x80"], (3, 1), compression=3, masks=masks, header=56
    )
    assert [pixel(data, x) for x in range(3)] == [(255, 0, 0), (255, 255, 255), (255, 127, 127)]


RLE = {
    "8 bits, runs": (8, 1, b"\2\1\1\2\0\0" + b"\3\3\0\0\0\1", [[3, 3, 3], [1, 1, 2]]),
    "8 bits, as they are": (8, 1, b"\0\3\1\2\3\0\0\0" + b"\3\3\0\1", [[3, 3, 3], [1, 2, 3]]),
    "8 bits, a row is short": (8, 1, b"\1\1\0\0" + b"\3\3\0\1", [[3, 3, 3], [1, 0, 0]]),
    "8 bits, a jump": (8, 1, b"\1\1\0\2\1\1\1\2\0\1", [[0, 0, 2], [1, 0, 0]]),
    "4 bits, runs": (4, 2, b"\3\x12\0\0" + b"\3\x33\0\1", [[3, 3, 3], [1, 2, 1]]),
    "4 bits, as they are": (4, 2, b"\0\3\x12\x30\0\0" + b"\3\x33\0\1", [[3, 3, 3], [1, 2, 3]]),
}


@pytest.mark.parametrize(("bits", "compression", "body", "rows"), RLE.values(), ids=RLE.keys())
def test_runs(bits: int, compression: int, body: bytes, rows: list[list[int]]) -> None:
    data = bmp(bits, [], colours=4, compression=0, palette=table())
    data = data[:30] + struct.pack("<I", compression) + data[34:] + body
    assert decoded(data).pixels == bytes(value for row in colours(rows) for colour in row for value in colour)


@pytest.mark.parametrize("used", [5, 300, 2**32 - 1])
def test_f9_more_colours_in_use_than_pixels_can_name_do_not_matter(used: int) -> None:
    rows = [packed(row, 4) for row in ROWS]
    data = bmp(4, rows, colours=16, palette=table().ljust(64, b"\0"))
    assert decoded(data[:46] + struct.pack("<I", used if used > 16 else 16) + data[50:]).pixels == expected()


def test_f9_resolution_and_file_size_do_not_matter() -> None:
    good = bmp(8, [packed(row, 8) for row in ROWS], colours=4, palette=table())
    for place in (2, 38, 42, 50):
        assert decoded(good[:place] + b"\xff\xff\xff\xff" + good[place + 4 :]).pixels == expected(), place
    assert decoded(good + b"trailer").pixels == expected()


def test_what_cannot_be_is_refused() -> None:
    good = bmp(24, [bytes(9), bytes(9)])
    for place, value in ((14, 41), (28, 7), (30, 4), (30, 99)):
        assert refusal(good[:place] + struct.pack("<H", value) + good[place + 2 :]).code == "invalid_image", (
            place
        )
    assert refusal(good[:-4]).code == "invalid_image"
    for size in ((0, 2), (3, 0)):
        assert refusal(bmp(24, [bytes(9)], size)).code == "invalid_image"
    assert refusal(bmp(24, [bytes(9)], (60_000, 60_000))).code == "image_too_large"
