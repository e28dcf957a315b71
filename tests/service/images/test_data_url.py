"""Data URLs and plain base64: as tolerant as clients are different."""

from __future__ import annotations

import base64
import random
from urllib.parse import quote

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
