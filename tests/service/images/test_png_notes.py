"""F9 and F3 for PNG: what is not pixels never decides, and its parts are counted."""

from __future__ import annotations

import struct
import zlib

import pytest

from service.images.formats import png, png_chunks
from tests.service.images.decoding import decoded, refusal
from tests.service.images.png_reference import GREY, PALETTE, RGB, Png, chunk

PICTURE = Png(8, RGB, [[(255, 0, 0), (0, 255, 0)], [(0, 0, 255), (9, 8, 7)]])
BOMB = zlib.compress(bytes(8 << 20), 9)

NOTES = {
    "zTXt of 8 MiB": chunk(b"zTXt", b"Comment\0\0" + BOMB),
    "iTXt of 8 MiB": chunk(b"iTXt", b"Comment\0\1\0\0\0" + BOMB),
    "iCCP of 8 MiB": chunk(b"iCCP", b"profile\0\0" + BOMB),
    "EXIF of 8 MiB as a text": chunk(b"zTXt", b"Raw profile type exif\0\0" + BOMB),
    "EXIF as a text of garbage": chunk(b"tEXt", b"Raw profile type exif\0\nexif\n 4\nxyz\n"),
    "EXIF as a broken stream": chunk(b"zTXt", b"Raw profile type exif\0\0xyz"),
    "iCCP of an unknown packing": chunk(b"iCCP", b"profile\0\7xyz"),
    "iCCP without a name": chunk(b"iCCP", b""),
    "zTXt without a name": chunk(b"zTXt", b""),
    "tEXt of other letters": chunk(b"tEXt", b"\xff\xfe\0\xff"),
    "iTXt cut short": chunk(b"iTXt", b"a\0"),
    "short gAMA": chunk(b"gAMA", b"\0"),
    "short cHRM": chunk(b"cHRM", bytes(31)),
    "empty cHRM": chunk(b"cHRM", b""),
    "short pHYs": chunk(b"pHYs", b"\0\0\1"),
    "short sRGB": chunk(b"sRGB", b""),
    "short bKGD": chunk(b"bKGD", b"\0"),
    "short sBIT": chunk(b"sBIT", b""),
    "short hIST": chunk(b"hIST", b"\0"),
    "short tIME": chunk(b"tIME", b"\0"),
    "short eXIf": chunk(b"eXIf", b"MM"),
    "eXIf of garbage": chunk(b"eXIf", b"II*\0\xff\xff\xff\xff"),
    "acTL of no frames": chunk(b"acTL", bytes(8)),
    "short acTL": chunk(b"acTL", b"\0"),
    "fcTL outside of the picture": chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, 9, 9, 9, 9, 0, 0, 0, 0)),
    "short fcTL": chunk(b"fcTL", b""),
    "cICP": chunk(b"cICP", b"\1\2\3"),
    "a private chunk": chunk(b"prIv", b"ate"),
    "an unknown important chunk": chunk(b"WHAT", b"ever"),
    **{
        f"{kind.decode()} with a wrong checksum": chunk(kind, b"\0\0\0\1", wrong=1)
        for kind in (b"gAMA", b"tEXt")
    },
    "eXIf with a wrong checksum": chunk(b"eXIf", b"MM*\0\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0", wrong=1),
    "a suggested palette with a wrong checksum": chunk(b"sPLT", b"x\0\x08", wrong=1),
}


@pytest.mark.parametrize("note", NOTES.values(), ids=NOTES.keys())
def test_f9_a_note_never_decides(note: bytes) -> None:
    expected = PICTURE.shown()
    assert decoded(PICTURE.file(note)).pixels == expected
    assert decoded(PICTURE.file(behind=note)).pixels == expected
    assert decoded(PICTURE.file(note, note, behind=note)).pixels == expected


def test_f9_a_transparent_colour_with_a_wrong_checksum_is_none() -> None:
    picture = Png(8, GREY, [[(7,), (9,)]])
    assert decoded(picture.file(chunk(b"tRNS", b"\0\7", wrong=1))).pixels == picture.shown()
    coloured = Png(8, PALETTE, [[(0,), (1,)]], palette=[(1, 2, 3), (4, 5, 6)])
    assert decoded(coloured.file(chunk(b"tRNS", b"\0\0", wrong=1))).pixels == coloured.shown()


def test_a_note_that_is_cut_behind_the_pixels_does_not_matter() -> None:
    whole = PICTURE.file()
    data = whole[: whole.index(b"IEND") - 4]
    for rest in (b"\0\0\0\xfftEXt", b"\x7f\xff\xff\xfftEXtabc", b"\0\0", b"garbage!" * 100):
        assert decoded(data + rest).pixels == PICTURE.shown()


def test_what_is_behind_the_end_is_not_looked_at() -> None:
    assert decoded(PICTURE.file() + chunk(b"IDAT", b"x") * 9).pixels == PICTURE.shown()


def test_f3_chunks_are_counted_before_any_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, "unpacked", None)
    for kind in (b"tEXt", b"IDAT"):
        data = PICTURE.file(chunk(kind, b"") * png_chunks.MOST_CHUNKS)
        assert f"more than {png_chunks.MOST_CHUNKS} PNG chunks" in refusal(data).message


def test_the_size_is_judged_before_anything_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(png, "unpacked", None)
    assert refusal(PICTURE.file(), pixels=3).message == "it has more than 3 pixels."
