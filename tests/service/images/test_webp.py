"""WebP: still pictures with and without alpha, the first frame of a moving one, and what lies around them."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

from service.images.formats import webp
from tests.service.images.decoding import decoded, refusal
from tests.service.images.pictures import encode

SIZE = (23, 17)


def drawn() -> Image.Image:
    y, x = np.mgrid[0 : SIZE[1], 0 : SIZE[0]]
    channels = (x * 11, y * 15, 255 - x * 5, 40 + x * 4 + y * 5)
    return Image.merge("RGBA", [Image.fromarray(channel.astype(np.uint8)) for channel in channels])


def on_white(image: Image.Image) -> bytes:
    """By the definition of alpha, rounded once."""
    layer = np.asarray(image, np.float64)
    alpha = layer[..., 3:] / 255
    return np.floor(layer[..., :3] * alpha + 255 * (1 - alpha) + 0.5).astype(np.uint8).tobytes()


def chunks(data: bytes, place: int = 12) -> Iterator[tuple[bytes, bytes]]:
    while place < len(data):
        kind, length = struct.unpack_from("<4sI", data, place)
        yield kind, data[place + 8 : place + 8 + length]
        place += 8 + length + length % 2


def riff(*found: tuple[bytes, bytes], size: int | None = None) -> bytes:
    body = b"WEBP" + b"".join(
        struct.pack("<4sI", kind, len(content)) + content + b"\0" * (len(content) % 2)
        for kind, content in found
    )
    return b"RIFF" + struct.pack("<I", len(body) if size is None else size) + body


LOSSLESS = encode(drawn().convert("RGB"), "WEBP", lossless=True)
WITH_ALPHA = encode(drawn(), "WEBP", lossless=True, exact=True)
LOSSY = encode(drawn().convert("RGB"), "WEBP", quality=95)
LOSSY_ALPHA = encode(drawn(), "WEBP", quality=95)


def test_lossless_pictures_are_what_was_saved() -> None:
    assert decoded(LOSSLESS).pixels == drawn().convert("RGB").tobytes()
    assert decoded(WITH_ALPHA).pixels == on_white(drawn())


@pytest.mark.parametrize(("data", "alpha"), [(LOSSY, False), (LOSSY_ALPHA, True)], ids=["opaque", "alpha"])
def test_lossy_pictures_are_near_what_was_saved(data: bytes, alpha: bool) -> None:
    expected = on_white(drawn()) if alpha else drawn().convert("RGB").tobytes()
    found = np.frombuffer(decoded(data).pixels, np.uint8).astype(int)
    assert np.abs(found - np.frombuffer(expected, np.uint8)).mean() < 8


def test_lossy_pictures_are_what_the_codec_gives_for_the_whole_file() -> None:
    for data in (LOSSY, LOSSY_ALPHA):
        whole = Image.open(io.BytesIO(data))
        expected = on_white(whole.convert("RGBA"))
        assert decoded(data).pixels == expected


def moving(canvas: tuple[int, int], corner: tuple[int, int], still: bytes) -> bytes:
    """An animation whose first frame is `still` at `corner`, with a second one all black."""
    screen = struct.pack("<I", 0x12) + _three(canvas[0] - 1) + _three(canvas[1] - 1)

    def frame(file: bytes, at: tuple[int, int], size: tuple[int, int]) -> tuple[bytes, bytes]:
        head = b"".join(map(_three, (at[0] // 2, at[1] // 2, size[0] - 1, size[1] - 1, 100))) + b"\0"
        inside = b"".join(
            struct.pack("<4sI", kind, len(content)) + content + b"\0" * (len(content) % 2)
            for kind, content in chunks(file)
            if kind in (b"ALPH", b"VP8 ", b"VP8L")
        )
        return b"ANMF", head + inside

    black = encode(Image.new("RGB", canvas), "WEBP", lossless=True)
    frames = (frame(still, corner, SIZE), frame(black, (0, 0), canvas))
    return riff((b"VP8X", screen), (b"ANIM", b"\xff\0\0\xff\0\0"), *frames)


def _three(value: int) -> bytes:
    return value.to_bytes(3, "little")


@pytest.mark.parametrize(
    "still", [LOSSLESS, WITH_ALPHA, LOSSY_ALPHA], ids=["lossless", "alpha", "lossy alpha"]
)
def test_the_first_frame_lies_on_the_background(still: bytes) -> None:
    image = decoded(moving((31, 20), (4, 2), still))
    assert (image.width, image.height) == (31, 20)
    page = np.full((20, 31, 3), 255, np.uint8)
    alone = decoded(still)
    page[2 : 2 + SIZE[1], 4 : 4 + SIZE[0]] = np.frombuffer(alone.pixels, np.uint8).reshape(
        SIZE[1], SIZE[0], 3
    )
    assert image.pixels == page.tobytes()


def test_a_broken_second_frame_does_not_matter() -> None:
    good = moving((31, 20), (4, 2), LOSSLESS)
    assert decoded(good[:-10]) == decoded(good)
    assert refusal(good[:90]).code == "invalid_image"


def test_a_frame_outside_of_its_canvas_is_damage() -> None:
    assert refusal(moving(SIZE, (2, 0), LOSSLESS)).code == "invalid_image"


VP8X = (b"VP8X", bytes((0x2C, 0, 0, 0)) + _three(SIZE[0] - 1) + _three(SIZE[1] - 1))
PICTURE = next(chunks(LOSSLESS))
AROUND = {
    "a profile": (b"ICCP", b"\0"),
    "EXIF of garbage": (b"EXIF", b"II*\0\xff\xff\xff\xff"),
    "XMP": (b"XMP ", b"<x"),
    "something": (b"what", b"ever"),
    "an empty chunk": (b"none", b""),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND.keys())
def test_f9_what_is_around_the_picture_never_decides(around: tuple[bytes, bytes]) -> None:
    expected = decoded(LOSSLESS)
    assert decoded(riff(VP8X, around, PICTURE)) == expected
    assert decoded(riff(VP8X, PICTURE, around)) == expected
    assert decoded(riff(PICTURE, around)) == expected


def test_f9_lengths_that_lead_nowhere_do_not_matter() -> None:
    expected = decoded(LOSSLESS)
    for size in (0, 7, 10**6):
        assert decoded(riff(PICTURE, size=size)) == expected, "of the file"
    other_canvas = (b"VP8X", bytes(4) + _three(999) + _three(999))
    assert decoded(riff(other_canvas, PICTURE)) == expected, "of the canvas of a still picture"
    assert decoded(riff(VP8X, PICTURE) + b"EXIF\xff\xff\xff\x7f") == expected, "of a note that is cut"
    assert decoded(LOSSLESS + b"trailer" * 1000) == expected


def test_f3_chunks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webp, "unpacked", None)
    data = riff(VP8X, *[(b"what", b"")] * webp.MOST_CHUNKS, PICTURE)
    assert f"more than {webp.MOST_CHUNKS} WebP chunks" in refusal(data).message


def test_the_size_is_judged_before_anything_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webp, "unpacked", None)
    for data in (LOSSLESS, LOSSY, LOSSY_ALPHA, moving(SIZE, (0, 0), LOSSLESS)):
        assert refusal(data, pixels=SIZE[0] * SIZE[1] - 1).code == "image_too_large"


@pytest.mark.parametrize("data", [LOSSLESS, WITH_ALPHA, LOSSY, LOSSY_ALPHA])
def test_b8_incomplete_pictures_are_invalid(data: bytes) -> None:
    for cut in (2, 3, 20, len(data) - 30, len(data) - 13):
        assert refusal(data[: len(data) - cut]).code == "invalid_image", cut
