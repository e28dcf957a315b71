"""Group B of the public faults: what pictures become, and what is no picture."""

from __future__ import annotations

import os
import struct
from typing import Any

import pytest
from PIL import Image, ImageFile

from service.errors import ImageError
from service.images.decode import PixelLimits, decode_image
from tests.service.images.decoding import FORMATS, decoded, pixel, refusal
from tests.service.images.pictures import encode, noisy, plain, png_header

RED, WHITE = (255, 0, 0), (255, 255, 255)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_formats_become_rgb(kind: str) -> None:
    image = decoded(plain(RED, (8, 6), kind))
    assert (image.width, image.height, len(image.pixels)) == (8, 6, 8 * 6 * 3)
    assert image.pixels[0] > 240 and max(image.pixels[1:3]) < 15


def test_a1_same_bytes_in_another_shape_are_another_image() -> None:
    raw = bytes(range(256)) * 54  # 13824 bytes: 96x48 and 48x96
    wide, tall = (encode(Image.frombytes("RGB", size, raw)) for size in ((96, 48), (48, 96)))
    first, second = decoded(wide), decoded(tall)
    assert first.pixels == second.pixels
    assert first.digest != second.digest


def test_a2_palette_is_part_of_the_image() -> None:
    pictures = []
    for colour in ((255, 0, 0), (0, 0, 255)):
        image = Image.new("P", (4, 4), 1)
        image.putpalette([0, 0, 0, *colour])
        pictures.append(decoded(encode(image)))
    assert pictures[0].digest != pictures[1].digest
    assert pictures[0].pixels[:3] == bytes((255, 0, 0))


def test_a10_same_pixels_in_other_files_are_one_image() -> None:
    image = Image.effect_noise((16, 16), 60).convert("RGB")
    files = [encode(image, compress_level=1), encode(image, compress_level=9), encode(image, "BMP")]
    assert len(set(files)) == 3
    assert len({decoded(data).digest for data in files}) == 1


@pytest.mark.parametrize("size", [(12_000, 12_000), (20_000, 20_000), (2**31 - 1, 1)])
def test_b1_bomb_is_refused_by_its_header(size: tuple[int, int]) -> None:
    data = png_header(*size)
    assert len(data) < 200
    assert refusal(data).code == "image_too_large"


def test_b1_jpeg_with_a_scan_for_every_few_bytes() -> None:
    picture = encode(Image.effect_noise((64, 64), 60).convert("RGB"), "JPEG", progressive=True)
    scan = picture[picture.rindex(b"\xff\xda") : -2]
    assert decoded(picture[:-2] + scan * 20 + picture[-2:]).width == 64
    assert "scans" in refusal(picture[:-2] + scan * 120 + picture[-2:]).message


def test_b1_limit_is_exact() -> None:
    assert decoded(plain(size=(8, 5)), pixels=40).width == 8
    with pytest.raises(ImageError, match="more than 39 pixels"):
        decoded(plain(size=(8, 5)), pixels=39)


def _with_orientation(tag: int, kind: str = "JPEG") -> bytes:
    """24x16 with red on the side that orientation `tag` turns to the top."""
    upright = Image.new("RGB", (16, 24) if tag >= 5 else (24, 16), WHITE)
    upright.paste(RED, (0, 0, upright.width, 4))
    # What undoes each orientation; 6 and 8 undo each other.
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    stored = upright.transpose(undo[tag]) if tag in undo else upright
    exif = Image.Exif()
    exif[0x0112] = tag
    options = {"quality": 95} if kind == "JPEG" else {}
    return encode(stored, kind, exif=exif, **options)


@pytest.mark.parametrize("tag", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_b2_pictures_are_turned_upright(tag: int, kind: str) -> None:
    image = decoded(_with_orientation(tag, kind))
    assert (image.width, image.height) == ((16, 24) if tag >= 5 else (24, 16))
    top, bottom = image.pixels[:3], image.pixels[-3:]
    assert top[0] > 200 and top[1] < 90, "red on top"
    assert min(bottom) > 200, "white below"


def test_b2_orientation_changes_the_key() -> None:
    plain_side, turned = (_with_orientation(6) for _ in range(2))
    turned = turned.replace(b"\x12\x01\x03\x00\x01\x00\x00\x00\x06", b"\x12\x01\x03\x00\x01\x00\x00\x00\x01")
    turned = turned.replace(
        b"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x06", b"\x01\x12\x00\x03\x00\x00\x00\x01\x00\x01"
    )
    assert turned != plain_side
    assert decoded(plain_side).digest != decoded(turned).digest


@pytest.mark.filterwarnings("ignore::UserWarning")  # Pillow warns, and goes on
def test_b2_broken_exif_leaves_the_picture_as_it_stands() -> None:
    data = encode(Image.new("RGB", (24, 16), RED), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    assert decoded(data).width == 24


@pytest.mark.parametrize("alpha", [0, 128, 255])
def test_b5_alpha_shows_the_background_not_what_is_hidden(alpha: int) -> None:
    found = pixel(encode(Image.new("RGBA", (1, 1), (*RED, alpha))))
    assert found == (255, 255 - alpha, 255 - alpha)


def test_b5_transparent_palette_and_grey() -> None:
    palette = Image.new("P", (2, 2), 1)
    palette.putpalette([0, 0, 0, *RED])
    assert pixel(encode(palette, transparency=1)) == WHITE
    assert pixel(encode(palette, "GIF", transparency=1)) == WHITE
    assert pixel(encode(Image.new("LA", (1, 1), (0, 0)))) == WHITE
    assert pixel(encode(Image.new("RGB", (2, 2), RED), transparency=RED)) == WHITE
    assert pixel(encode(Image.new("L", (2, 2), 7), transparency=7)) == WHITE
    assert pixel(encode(Image.new("RGBA", (4, 4), (*RED, 0)), "WEBP", lossless=True)) == WHITE


MODES: dict[str, tuple[Image.Image, str, tuple[int, int, int], int]] = {
    "1": (Image.new("1", (8, 8), 1), "PNG", WHITE, 0),
    "L": (Image.new("L", (8, 8), 77), "PNG", (77, 77, 77), 0),
    "LA": (Image.new("LA", (8, 8), (77, 255)), "PNG", (77, 77, 77), 0),
    "P": (Image.new("RGB", (8, 8), RED).quantize(4), "PNG", RED, 0),
    "CMYK": (Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", RED, 30),
    "YCbCr": (Image.new("RGB", (8, 8), RED).convert("YCbCr"), "JPEG", RED, 6),
    "16 bit": (Image.new("I;16", (8, 8), 0x8080), "PNG", (128, 128, 128), 0),
    "16 bit white": (Image.new("I;16", (8, 8), 0xFFFF), "PNG", WHITE, 0),
    "grey JPEG": (Image.new("L", (8, 8), 77), "JPEG", (77, 77, 77), 2),
}


@pytest.mark.parametrize(("image", "kind", "expected", "tolerance"), MODES.values(), ids=MODES.keys())
def test_b7_every_mode_becomes_rgb(
    image: Image.Image, kind: str, expected: tuple[int, int, int], tolerance: int
) -> None:
    found = pixel(encode(image, kind))
    assert all(abs(a - b) <= tolerance for a, b in zip(found, expected, strict=True)), found


def test_b7_16_bit_rgb_is_scaled() -> None:
    rows = b"\0" + struct.pack(">6H", 0xFFFF, 0, 0x8080, 0xFFFF, 0, 0x8080)
    assert pixel(_png(2, 1, 16, 2, rows)) == (255, 0, 128)


def _png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    import zlib

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


TRUNCATED = {
    "jpeg": encode(Image.effect_noise((256, 256), 80).convert("RGB"), "JPEG")[:-128],
    **{f"png at {cut}": noisy()[:cut] for cut in (10, 30, 500)},
    "gif": noisy(kind="GIF")[:300],
    "webp": noisy(kind="WEBP")[:300],
    "bmp": noisy(kind="BMP")[:300],
}


@pytest.mark.parametrize("data", TRUNCATED.values(), ids=TRUNCATED.keys())
def test_b8_truncated_files_are_invalid(data: bytes) -> None:
    assert refusal(data).code == "invalid_image"


def test_b9_message_holds_no_address_and_no_payload() -> None:
    error = refusal(b"notanimage")
    assert error.code == "invalid_image"
    assert "notanimage" not in error.message and "BytesIO" not in error.message


FOREIGN = {
    "jpeg 2000": b"\x00\x00\x00\x0cjP  \r\n\x87\n" + b"\0" * 64,
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n",
    "wmf": b"\xd7\xcd\xc6\x9a" + b"\0" * 64,
    "psd": b"8BPS\0\1" + b"\0" * 64,
    "tiff": encode(Image.new("RGB", (4, 4)), "TIFF"),
    "icns": b"icns\0\0\0\x08",
    "ico": encode(Image.new("RGB", (16, 16)), "ICO"),
    "pdf": b"%PDF-1.7\n",
    "svg": b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>',
    "heic": b"\0\0\0\x18ftypheic\0\0\0\0" + b"\0" * 32,
    "avif": encode(Image.new("RGB", (4, 4)), "AVIF"),
    "html": b"<!DOCTYPE html><html></html>",
    "zip": b"PK\x03\x04" + b"\0" * 32,
}


@pytest.mark.parametrize(("name", "data"), FOREIGN.items(), ids=FOREIGN.keys())
def test_b10_b13_formats_outside_the_list_are_refused_by_name(name: str, data: bytes) -> None:
    error = refusal(data)
    assert error.code == "unsupported_image_format"
    assert name in error.message


def test_b10_only_the_sniffed_format_is_tried() -> None:
    assert refusal(b"\x89PNG\r\n\x1a\n" + encode(Image.new("RGB", (4, 4)), "TIFF")).code == "invalid_image"


def test_b13_operator_may_allow_more() -> None:
    for name in ("tiff", "avif"):
        assert decoded(FOREIGN[name], (*FORMATS, name)).width == 4


def test_first_frame_of_an_animation_counts() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in (RED, (0, 0, 255))]
    for kind in ("GIF", "WEBP", "PNG"):
        options: dict[str, Any] = {"lossless": True} if kind == "WEBP" else {}
        data = encode(frames[0], kind, save_all=True, append_images=frames[1:], **options)
        assert pixel(data) == RED, kind


def test_b12_nothing_and_next_to_nothing() -> None:
    for data in (b"", b"\x89", png_header(0, 5), png_header(5, 0), b"BM", b"GIF89a"):
        assert refusal(data).code == "invalid_image", data


def test_random_damage_is_refused_or_decoded_never_raised() -> None:
    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):
        whole = noisy((24, 24), kind)
        for _ in range(60):
            broken = bytearray(whole)
            for _ in range(4):
                broken[int.from_bytes(os.urandom(4)) % len(broken)] = os.urandom(1)[0]
            try:
                decoded(bytes(broken), pixels=10_000)
            except ImageError as error:
                assert error.code in {"invalid_image", "image_too_large", "unsupported_image_format"}


@pytest.mark.parametrize(
    "fault",
    [
        OSError("x"),
        ValueError("x"),
        SyntaxError("x"),
        struct.error("x"),
        KeyError(1),
        RecursionError(),
        SystemError("x"),
    ],
    ids=lambda fault: type(fault).__name__,
)
@pytest.mark.parametrize("place", ["open", "load", "convert"])
def test_whatever_a_codec_raises_is_an_error_of_the_picture(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, place: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise fault

    owner = {"open": Image, "load": ImageFile.ImageFile, "convert": Image.Image}[place]
    data = encode(Image.new("L", (4, 4)), "GIF")
    monkeypatch.setattr(owner, place, fail)
    assert refusal(data).message == "its gif data is damaged or incomplete."


def test_too_little_memory_is_said_to_be_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    assert refusal(plain()).code == "image_too_large"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"])
def test_b1_the_size_is_judged_by_the_header_far_below_the_codecs_own_limit(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """(They refuse 179 megapixels themselves.)"""

    def fail(*_: object) -> None:
        raise AssertionError("something was unpacked")

    data = noisy((10, 10), kind)
    formats = (*FORMATS, "tiff", "avif")
    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    monkeypatch.setattr(Image.Image, "load", fail)
    assert refusal(data, formats, pixels=99).message == "it has more than 99 pixels."
    limits = PixelLimits(picture=100, request=1000, left=99)
    with pytest.raises(ImageError, match="with it the request has more than 1000 pixels in all"):
        decode_image(data, formats, limits)
    with pytest.raises(ImageError, match="damaged"):
        decode_image(data, formats, PixelLimits(100, 1000, 100))
