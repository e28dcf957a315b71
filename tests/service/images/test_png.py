"""PNG: every kind of pixel there is shows what the specification says, against a decoder written after it."""

from __future__ import annotations

import random
import struct
import zlib
from dataclasses import replace

import pytest
from PIL import Image

from tests.service.images.decoding import decoded, pixel, refusal
from tests.service.images.pictures import encode
from tests.service.images.png_reference import DEPTHS, GREY, PALETTE, RGB, SAMPLES, Png, chunk

KINDS = [(colour, depth) for colour, depths in DEPTHS.items() for depth in depths]
WHITE = (255, 255, 255)


def drawn(colour: int, depth: int, seed: int, size: tuple[int, int] = (13, 11)) -> Png:
    """Random samples, the extremes among them."""
    rng = random.Random(seed)
    most = (1 << depth) - 1

    def sample() -> int:
        return rng.choice((0, most, rng.randrange(most + 1)))

    rows = [[tuple(sample() for _ in range(SAMPLES[colour])) for _ in range(size[0])] for _ in range(size[1])]
    colours = rng.randrange(1, most + 2) if colour == PALETTE else 0
    palette = [(rng.randrange(256), rng.randrange(256), rng.randrange(256)) for _ in range(colours)]
    return Png(depth, colour, rows, palette)


def with_transparency(png: Png, seed: int) -> Png:
    """A colour of the picture is the transparent one; of a palette, some entries are more or less so."""
    rng = random.Random(seed)
    if png.colour == PALETTE:
        return replace(
            png, key=rng.randbytes(rng.randrange(1, len(png.palette) + 1)) if png.palette else None
        )
    return replace(png, key=struct.pack(f">{SAMPLES[png.colour]}H", *rng.choice(png.rows[0])))


@pytest.mark.parametrize("interlaced", [False, True], ids=["rows", "interlaced"])
@pytest.mark.parametrize("transparent", [False, True], ids=["opaque", "tRNS"])
@pytest.mark.parametrize(("colour", "depth"), KINDS)
def test_every_kind_of_pixel_is_what_the_specification_says(
    colour: int, depth: int, transparent: bool, interlaced: bool
) -> None:
    for seed, size in enumerate([(13, 11), (1, 1), (8, 3), (3, 17)]):
        png = replace(drawn(colour, depth, seed, size), interlaced=interlaced)
        png = with_transparency(png, seed) if transparent else png
        image = decoded(png.file())
        assert (image.width, image.height) == size
        assert image.pixels == png.shown()


def test_f4_white_pages_stay_readable_at_16_bits_with_a_transparent_colour() -> None:
    page = Png(16, GREY, [[(0x1234,), (0xFFFF,), (0x8080,), (0x00FF,)]], key=b"\xff\xff")
    assert [pixel(page.file(), x)[0] for x in range(4)] == [18, 255, 128, 1]


def test_f4_a_colour_that_is_near_the_transparent_one_is_seen() -> None:
    """They differ in the lower byte alone."""
    row = [(0x4000, 0x5000, 0x6000), (0x4000, 0x5000, 0x6001)]
    data = Png(16, RGB, [row], key=struct.pack(">3H", *row[0])).file()
    assert (pixel(data), pixel(data, 1)) == (WHITE, (64, 80, 96))


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_f4_the_transparent_grey_of_few_bits_is_found(depth: int) -> None:
    row = [(grey,) for grey in range(1 << depth)]
    data = Png(depth, GREY, [row], key=b"\0\1").file()
    shown = [pixel(data, x)[0] for x in range(1 << depth)]
    assert shown == [255 if x == 1 else x * 255 // ((1 << depth) - 1) for x in range(1 << depth)]


def test_bits_of_the_key_above_the_depth_do_not_count() -> None:
    assert pixel(Png(8, GREY, [[(7,)]], key=b"\xab\x07").file()) == WHITE
    assert pixel(Png(8, RGB, [[(7, 8, 9)]], key=b"\1\7\1\x08\1\x09").file()) == WHITE


@pytest.mark.parametrize("colour", [GREY, RGB, PALETTE, 4, 6])
def test_a_key_that_does_not_fit_is_as_none(colour: int) -> None:
    """Of the wrong length, where the picture has alpha already, or longer than the palette."""
    png = drawn(colour, 8, 5)
    wrong = b"\0" * (len(png.palette) + 1) if colour == PALETTE else b"\0\0\0\0\0"
    assert decoded(replace(png, key=wrong).file()).pixels == png.shown()


def test_chunks_count_where_they_belong_and_once() -> None:
    png = Png(8, GREY, [[(7,), (9,)]])
    key, other = chunk(b"tRNS", b"\0\7"), chunk(b"tRNS", b"\0\x09")
    assert decoded(png.file(behind=key)).pixels == png.shown(), "behind the data it is too late"
    first_counts = decoded(png.file(key, other)).pixels
    assert first_counts == b"\xff\xff\xff\x09\x09\x09"


def test_a_palette_is_only_needed_where_pixels_name_it() -> None:
    suggestion = chunk(b"PLTE", b"\1\2\3")
    png = drawn(RGB, 8, 6)
    assert decoded(png.file(suggestion)).pixels == png.shown()
    assert decoded(png.file(chunk(b"PLTE", b"\1\2"))).pixels == png.shown()
    assert refusal(replace(drawn(PALETTE, 8, 6), palette=()).file()).code == "invalid_image"
    assert refusal(drawn(PALETTE, 8, 6).file(chunk(b"PLTE", b"\1\2"))).code == "invalid_image"


@pytest.mark.parametrize(
    ("depth", "colour"), [(3, 0), (16, 3), (4, 2), (1, 4), (8, 1), (8, 5), (8, 7), (0, 0), (32, 2)]
)
def test_kinds_of_pixel_that_do_not_exist_are_refused(depth: int, colour: int) -> None:
    header = struct.pack(">IIBBBBB", 1, 1, depth, colour, 0, 0, 0)
    good = Png(8, GREY, [[(7,)]]).file()
    assert refusal(good[:8] + chunk(b"IHDR", header) + good[33:]).code == "invalid_image"


def test_a_wrong_checksum_of_what_makes_pixels_is_damage() -> None:
    png = drawn(PALETTE, 8, 7)
    good = png.file()
    for kind in (b"IHDR", b"PLTE", b"IDAT"):
        place = good.index(kind)
        length = int.from_bytes(good[place - 4 : place])
        broken = bytearray(good)
        broken[place + 4 + length] ^= 1
        assert refusal(bytes(broken)).code == "invalid_image", kind


def test_data_in_a_thousand_pieces_is_one_picture() -> None:
    png = drawn(RGB, 8, 8)
    good = png.file()
    start, end = good.index(b"IDAT") - 4, good.index(b"IEND") - 4
    bodies = [part[:-8] for part in good[start:end].split(b"IDAT")[1:]]
    bodies[-1] = good[start:end].split(b"IDAT")[-1][:-4]
    body = b"".join(bodies)
    pieces = b"".join(chunk(b"IDAT", body[i : i + 1]) + chunk(b"IDAT", b"") for i in range(len(body)))
    assert decoded(good[:start] + pieces + good[end:]).pixels == png.shown()


def test_the_end_may_be_missing_where_all_pixels_are_there() -> None:
    png = drawn(RGB, 8, 9)
    good = png.file()
    for cut in (12, 16, 10):  # IEND; the last checksum too; half of IEND
        assert decoded(good[:-cut]).pixels == png.shown()
    assert refusal(good[: good.rindex(b"IDAT") + 8]).code == "invalid_image"


def test_a_bomb_of_data_behind_the_last_row_is_not_unpacked() -> None:
    packer = zlib.compressobj(9)
    body = (
        packer.compress(b"\0\7")
        + b"".join(packer.compress(bytes(1 << 20)) for _ in range(64))
        + packer.flush()
    )
    png = Png(8, GREY, [[(7,)]])
    good = png.file()
    data = good[: good.index(b"IDAT") - 4] + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    assert decoded(data).pixels == png.shown()


@pytest.mark.parametrize("tag", range(1, 9))
def test_b2_the_old_way_to_write_exif_turns_too(tag: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = tag
    block = exif.tobytes()
    hex_lines = "\n".join(block.hex()[i : i + 72] for i in range(0, len(block.hex()), 72))
    text = f"\nexif\n{len(block):8}\n{hex_lines}\n".encode()
    png = drawn(RGB, 8, 10, (3, 2))
    for note in (
        chunk(b"tEXt", b"Raw profile type exif\0" + text),
        chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text)),
    ):
        expected = decoded(encode(Image.frombytes("RGB", (3, 2), png.shown()), exif=exif))
        assert decoded(png.file(note)) == expected
