"""Data URLs and plain base64: as tolerant as clients are different."""

from __future__ import annotations

import base64
import random
import tracemalloc
from urllib.parse import quote, unquote_to_bytes

import pytest

from service.errors import ImageError
from service.images.data_url import decode_base64, decode_data_url
from tests.service.images.pictures import plain

PNG = plain()
TOLERATED = {
    "plain": "data:image/png;base64,{b64}",
    "charset": "data:image/png;charset=utf-8;base64,{b64}",
    "upper case": "data:image/png;BASE64,{b64}",
    "upper case scheme": "DATA:image/png;base64,{b64}",
    "wrong type": "data:image/jpeg;base64,{b64}",
    "no type": "data:;base64,{b64}",
    "name": "data:image/png;name=a.png;base64,{b64}",
    "base64 first": "data:image/png;base64;charset=utf-8,{b64}",
    "unpadded": "data:image/png;base64,{unpadded}",
    "url-safe": "data:image/png;base64,{urlsafe}",
    "lines": "data:image/png;base64,{lines}",
    "percent-encoded base64": "data:image/png;base64,{quoted}",
    "percent-encoded bytes": "data:image/png,{bytes}",
    "space before the data": "data:image/png;base64, {b64}",
}


@pytest.mark.parametrize("form", TOLERATED.values(), ids=TOLERATED.keys())
def test_b15_data_urls_that_are_understood(form: str) -> None:
    b64 = base64.b64encode(PNG).decode()
    url = form.format(
        b64=b64,
        unpadded=b64.rstrip("="),
        urlsafe=base64.urlsafe_b64encode(PNG).decode(),
        lines="\r\n".join(b64[i : i + 20] for i in range(0, len(b64), 20)),
        quoted=quote(b64, safe=""),
        bytes=quote(PNG, safe=""),
    )
    assert decode_data_url(url, 10_000) == PNG


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("data:image/png;base64", "invalid_image_url"),
        ("data:", "invalid_image_url"),
        ("data:image/png;base64,!!!!", "invalid_image_url"),
        ("data:image/png;base64,AAAAA", "invalid_image_url"),
        ("data:image/png;base64,AA=A", "invalid_image_url"),
        ("data:image/png;base64,ÄÄÄÄ", "invalid_image_url"),
        ("data:image/png;base64," + "A" * 40_000, "image_too_large"),
        ("data:image/png," + "A" * 20_000, "image_too_large"),
        ("data:image/png," + "A" * 80_000, "image_too_large"),
    ],
)
def test_b15_data_urls_that_are_not(url: str, code: str) -> None:
    with pytest.raises(ImageError) as caught:
        decode_data_url(url, 10_000)
    assert caught.value.code == code


@pytest.mark.parametrize("nbytes", [49_151, 49_152, 49_153, 200_000])
def test_base64_is_read_in_pieces_and_ends_once(nbytes: int) -> None:
    data = random.Random(nbytes).randbytes(nbytes)
    text = base64.b64encode(data).decode()
    assert decode_base64(text, 1_000_000) == data
    for end in ("=", "=="):
        broken = text[: 65_536 - len(end)] + end + text[65_536:] + "AAAA"
        with pytest.raises(ImageError, match="malformed"):
            decode_base64(broken, 1_000_000)


def test_h3_a_percent_encoded_text_is_what_the_standard_library_says() -> None:
    rng = random.Random(1)
    plain = [bytes((value,)) for value in range(128) if value != ord("%")]
    for _ in range(300):
        pieces = [
            rng.choice((b"%%%02x" % rng.randrange(256), b"%%%02X" % rng.randrange(256), rng.choice(plain)))
            for _ in range(rng.randrange(80))
        ]
        text = b"".join(pieces).decode()
        assert decode_data_url(f"data:,{text}", 1000) == unquote_to_bytes(text)


@pytest.mark.parametrize("shift", range(4))
def test_h3_an_escape_may_lie_across_two_pieces(shift: int) -> None:
    text = "x" * (65_536 - shift) + "%41%42" + "y" * 65_536 + "%43"
    assert decode_data_url(f"data:,{text}", 1_000_000) == unquote_to_bytes(text)


@pytest.mark.parametrize("end", ["%", "%4", "%zz", "%4g", "%%", "%\n", "x%"])
def test_h3_broken_escapes_are_malformed(end: str) -> None:
    for text in (end, "abc" + end, "A" * 65_535 + end):
        with pytest.raises(ImageError) as caught:
            decode_data_url(f"data:image/png;base64,{text}", 1_000_000)
        assert caught.value.code == "invalid_image_url"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("data:image/png," + "%41" * 3_000_000, "image_too_large"),
        ("data:image/png;base64," + "%41" * 3_000_000, "image_too_large"),
        ("data:image/png;base64," + "%2B" * 2_000_000, "image_too_large"),
        ("data:image/png;base64," + "=" * 3_000_000, "invalid_image_url"),
        ("data:image/png;base64," + "\n" * 3_000_000, "invalid_image"),
        ("data:image/png;base64," + "A=" * 1_500_000, "invalid_image_url"),
        ("data:" + ";base64" * 1_000_000, "invalid_image_url"),
        ("data:" + ";" * 3_000_000 + ",", "invalid_image_url"),
    ],
    ids=[
        "escapes",
        "escaped base64",
        "escaped signs",
        "padding",
        "line breaks",
        "pairs",
        "parameters",
        "semicolons",
    ],
)
def test_h3_a_text_of_any_size_takes_the_memory_of_what_may_come_out(text: str, code: str) -> None:
    """Of 9 MB here; the limit is 1 MB."""
    tracemalloc.start()
    try:
        decoded = decode_data_url(text, 1_000_000)
        assert (code, decoded) == ("invalid_image", b"")
    except ImageError as error:
        assert error.code == code
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 3_000_000


def test_h3_what_comes_out_may_be_as_large_as_it_may_be_and_no_larger() -> None:
    exact = bytes(range(256)) * 400
    for text in ("".join(f"%{value:02X}" for value in exact), "".join(f"%{value:02x}" for value in exact)):
        assert decode_data_url(f"data:,{text}", len(exact)) == exact
        with pytest.raises(ImageError, match="larger than 102399 bytes"):
            decode_data_url(f"data:,{text}", len(exact) - 1)


def test_halves_of_characters_are_no_picture() -> None:
    for text in ("data:image/png;base64,\ud800AAA", "data:image/png,\ud800"):
        try:
            assert decode_data_url(text, 1000) == b"?"
        except ImageError as error:
            assert error.code == "invalid_image_url"
    with pytest.raises(ImageError):
        decode_base64("\ud800AAA", 1000)
