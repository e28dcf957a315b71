"""JPEG: its colours against a decoder written after the specification, and what is in a file besides a picture."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from service.images.formats import jpeg
from tests.service.images import jpeg_reference
from tests.service.images.decoding import decoded, refusal
from tests.service.images.pictures import encode

Pixels = npt.NDArray[np.float64]
SIZE = (37, 21)


def drawn(mode: str = "RGB") -> Image.Image:
    """Slopes and edges, different in every channel."""
    y, x = np.mgrid[0 : SIZE[1], 0 : SIZE[0]]
    channels = [x * 6, y * 11, 255 - x * 3 - y * 4, (x // 8 + y // 8) % 2 * 200]
    layers = [Image.fromarray(np.clip(channel, 0, 255).astype(np.uint8)) for channel in channels]
    bands = {"L": 1, "RGB": 3, "CMYK": 4}[mode]
    return layers[0] if bands == 1 else Image.merge(mode, layers[:bands])


def baseline(mode: str) -> bytes:
    return encode(drawn(mode), "JPEG", quality=92, subsampling=0)


def segment(kind: int, content: bytes) -> bytes:
    return bytes((0xFF, kind)) + (len(content) + 2).to_bytes(2) + content


def with_segments(data: bytes, *found: bytes, without: tuple[int, ...] = (0xE0, 0xEE)) -> bytes:
    """`data` with `found` right at its start, and without its own segments of those kinds."""
    scan = data.index(b"\xff\xda")
    kept = [segment(kind, content) for kind, content in jpeg_reference.segments(data) if kind not in without]
    return b"".join((b"\xff\xd8", *found, *kept, data[scan:]))


JFIF = segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0")
UNDER_YCC, UNDER_NOTHING, UNDER_YCCK = (segment(0xEE, b"Adobe\0d\0\0\0\0" + bytes([t])) for t in (1, 0, 2))


def from_ycc(found: Pixels) -> Pixels:
    y, blue, red = found[..., 0], found[..., 1] - 128, found[..., 2] - 128
    rgb = np.stack((y + 1.402 * red, y - 0.344136 * blue - 0.714136 * red, y + 1.772 * blue), axis=-1)
    return np.clip(np.round(rgb), 0, 255)


def from_inks(found: Pixels) -> Pixels:
    """Cyan, magenta, yellow and black as files store them: the other way round."""
    return np.round(found[..., :3] * found[..., 3:] / 255)


def grey(found: Pixels) -> Pixels:
    return found.repeat(3, axis=-1)


def inks_from_ycck(found: Pixels) -> Pixels:
    """The inks are what the colours leave (Adobe's technical note 5116)."""
    return from_inks(np.concatenate((255 - from_ycc(found[..., :3]), found[..., 3:]), axis=-1))


MODES = {
    "grey": (baseline("L"), grey),
    "YCbCr": (baseline("RGB"), from_ycc),
    "YCbCr by Adobe": (with_segments(baseline("RGB"), UNDER_YCC), from_ycc),
    "YCbCr by its numbers": (with_segments(baseline("RGB")), from_ycc),
    "RGB by Adobe": (with_segments(baseline("RGB"), UNDER_NOTHING), lambda found: found),
    "JFIF wins over Adobe": (with_segments(baseline("RGB"), JFIF, UNDER_NOTHING), from_ycc),
    "CMYK": (with_segments(baseline("CMYK"), UNDER_NOTHING), from_inks),
    "YCCK": (with_segments(baseline("CMYK"), UNDER_YCCK), inks_from_ycck),
}


@pytest.mark.parametrize(("data", "colours"), MODES.values(), ids=MODES.keys())
def test_every_mode_shows_its_colours(data: bytes, colours: object) -> None:
    assert callable(colours)
    expected = colours(jpeg_reference.planes(data))
    image = decoded(data)
    found = np.frombuffer(image.pixels, np.uint8).reshape(image.height, image.width, 3)
    assert (image.width, image.height) == SIZE
    assert np.abs(found - expected).max() <= 3, "the inverse transform may round as it likes"


def test_progressive_files_hold_the_same_picture() -> None:
    for mode in ("L", "RGB", "CMYK"):
        plain, progressive = (
            encode(drawn(mode), "JPEG", quality=92, subsampling=0, progressive=kind) for kind in (False, True)
        )
        assert decoded(plain) == decoded(progressive)


def test_restarts_and_subsampling_are_read() -> None:
    flat = Image.new("RGB", (40, 24), (200, 40, 90))
    for options in (
        {"subsampling": 2},
        {"subsampling": 1},
        {"restart_marker_rows": 1},
        {"restart_marker_blocks": 2},
    ):
        image = decoded(encode(flat, "JPEG", quality=95, **options))
        found = np.frombuffer(image.pixels, np.uint8).reshape(-1, 3)
        assert np.abs(found.astype(int) - (200, 40, 90)).max() <= 3, options


# What is not pixels never decides (F9), and markers are counted by parsing (F10).

GOOD = baseline("RGB")
EXIF = b"Exif\0\0MM\0*\0\0\0\x08\0\1\x01\x12\0\3\0\0\0\1\0\6\0\0\0\0\0\0"
BESIDE = {
    "a short JFIF": segment(0xE0, b"JFIF\0\1"),
    "an empty JFIF": segment(0xE0, b""),
    "a short Adobe": segment(0xEE, b"Adobe\0"),
    "an empty Adobe": segment(0xEE, b""),
    "a short profile": segment(0xE2, b"ICC_PROFILE\0"),
    "a profile with a part missing": segment(0xE2, b"ICC_PROFILE\0\2\7" + bytes(99)),
    "a short EXIF": segment(0xE1, b"Exif\0\0"),
    "EXIF of garbage": segment(0xE1, b"Exif\0\0II*\0\xff\xff\xff\xff"),
    "EXIF that promises 65535 entries": segment(0xE1, b"Exif\0\0II*\0\x08\0\0\0\xff\xff"),
    "a short MPF": segment(0xE2, b"MPF\0"),
    "MPF of garbage": segment(0xE2, b"MPF\0MM\0*\xff\xff\xff\xff"),
    "short Photoshop notes": segment(0xED, b"Photoshop 3.0\x008BIM\3\xed\0\0\0\0\0\x10"),
    "an empty comment": segment(0xFE, b""),
    "a marker of its own": b"\xff\x01",
    "fill bytes": b"\xff\xff\xff",
    "a stray byte": b"\0",
    "a scan marker in a note": segment(0xEF, b"\xff\xda" * 200),
    "an end marker in a note": segment(0xE5, b"\xff\xd9\xff\xd8\xff\xd9"),
}


@pytest.mark.parametrize("beside", BESIDE.values(), ids=BESIDE.keys())
def test_f9_what_is_beside_the_pixels_never_decides(beside: bytes) -> None:
    tables, scan = GOOD.index(b"\xff\xdb"), GOOD.index(b"\xff\xda")
    assert decoded(GOOD[:tables] + beside + GOOD[tables:]) == decoded(GOOD)
    assert decoded(GOOD[:scan] + beside + GOOD[scan:]) == decoded(GOOD)
    if beside[0] == 0xFF:
        assert decoded(GOOD[:2] + beside + GOOD[2:]) == decoded(GOOD)


def test_f10_the_video_of_a_motion_photo_is_no_part_of_the_picture() -> None:
    video = b"\0\0\0\x18ftypmp42" + b"\xff\xda\xff\xc0\0\x11\x08\xff\xff\xff\xff\3" * 100_000
    assert decoded(GOOD + video) == decoded(GOOD)


def test_the_second_picture_of_a_file_is_none_of_ours() -> None:
    assert decoded(GOOD + encode(Image.new("RGB", (400, 400)), "JPEG")) == decoded(GOOD)


def test_the_first_exif_says_which_way_up() -> None:
    turned = decoded(
        GOOD[:2] + segment(0xE1, EXIF) + segment(0xE1, EXIF.replace(b"\0\6\0", b"\0\3\0")) + GOOD[2:]
    )
    assert (turned.width, turned.height) == SIZE[::-1]


# Decoding is bounded by work (F3).


def test_f3_thousands_of_tiny_notes_are_refused_before_any_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    notes = segment(0xE1, b"Exif\0\0" + bytes(65_000)) + segment(0xE1, b"Exif\0\0x") * 8000
    monkeypatch.setattr(jpeg, "unpacked", None)
    assert "more than 1000 JPEG segments" in refusal(GOOD[:2] + notes + GOOD[2:]).message


def test_hundreds_of_large_notes_are_a_picture() -> None:
    notes = segment(0xE2, bytes(65_533)) * 300
    assert decoded(GOOD[:2] + notes + GOOD[2:]) == decoded(GOOD)


def progressive(side: int, extra_scans: int, tables: bytes = b"") -> bytes:
    """A picture with the last of its scans, in front of which `tables` stand, over and over again."""
    data = encode(Image.effect_noise((side, side), 60).convert("RGB"), "JPEG", progressive=True)
    scan = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + (tables + scan) * extra_scans + data[-2:]


def test_b1_a_hundred_scans_are_taken_and_not_more() -> None:
    assert decoded(progressive(64, 20)).width == 64
    assert "more than 100 JPEG scans" in refusal(progressive(64, 120)).message


def test_b1_tables_before_every_scan_do_not_hide_them() -> None:
    restart = segment(0xDD, b"\0\0")
    assert "more than 100 JPEG scans" in refusal(progressive(64, 120, restart)).message


def test_b1_many_scans_are_for_small_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number times the pixels is the work."""
    monkeypatch.setattr(jpeg, "_MOST_PIXEL_SCANS", 64 * 64 * 30)
    usual = progressive(64, 0).count(b"\xff\xda")
    assert decoded(progressive(64, 30 - usual)).width == 64
    assert "31 scans, too many for its size" in refusal(progressive(64, 31 - usual)).message
    assert decoded(progressive(128, 20 - usual)).width == 128, "as many as programs write are always taken"


@pytest.mark.parametrize("cut", [2, 3, 100, 400])
def test_b8_without_its_end_it_is_incomplete(cut: int) -> None:
    assert refusal(GOOD[:-cut]).code == "invalid_image"


def test_broken_structure_is_refused() -> None:
    scan = GOOD.index(b"\xff\xda")
    for data in (
        GOOD[:2] + b"\xff\xe5\0\1" + GOOD[2:],  # a length that is shorter than itself
        GOOD[:2] + GOOD,  # a start within
        GOOD[:scan] + b"\xff\xd9",  # no scan
        with_segments(GOOD, without=(0xC0,)),  # no frame
        b"\xff\xd8\xff\xd9",
    ):
        assert refusal(data).code == "invalid_image"
