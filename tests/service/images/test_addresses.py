"""Where pictures are fetched from: public addresses, in every spelling, unless the operator listed the host."""

from __future__ import annotations

import asyncio
import ipaddress

import pytest

from service.errors import ImageError
from service.images.addresses import HostPolicy, is_public
from tests.service.images.fetching import Names, fetch, refusal
from tests.service.images.pictures import plain
from tests.service.serving import Host

PNG = plain()


BLOCKED = [
    "http://127.0.0.1:{port}/",
    "http://127.1:{port}/",
    "http://2130706433:{port}/",
    "http://0x7f000001:{port}/",
    "http://0177.0.0.1:{port}/",
    "http://localhost:{port}/",
    "http://localhost.:{port}/",
    "http://LOCALHOST:{port}/",
    "http://0.0.0.0:{port}/",
    "http://[::1]:{port}/",
    "http://[::]:{port}/",
    "http://[::ffff:127.0.0.1]:{port}/",
    "http://[::ffff:7f00:1]:{port}/",
    "http://[64:ff9b::7f00:1]/",
    "http://[2002:7f00:1::]/",
    "http://169.254.169.254/latest/meta-data/",
    "http://[fe80::1%25lo]:{port}/",
    "http://10.0.0.1/",
    "http://192.168.0.1/",
    "http://172.16.0.1/",
    "http://100.64.0.1/",
    "http://user@127.0.0.1:{port}/",
    "http://example.com:secret@127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@example.com/",
]


@pytest.mark.parametrize("url", BLOCKED)
def test_d1_private_addresses_in_every_spelling(host: Host, url: str) -> None:
    error = refusal(url.format(port=host.port), private=())
    assert error.code in {"image_url_blocked", "invalid_image_url"}
    assert host.heads == []


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700:4700::1111", True),
        ("::ffff:8.8.8.8", True),
        ("::ffff:10.0.0.1", False),
        ("224.0.0.1", False),
        ("ff02::1", False),
        ("fec0::1", False),
        ("fc00::1", False),
        ("::8.8.8.8", False),
        ("64:ff9b::808:808", False),
        ("2002:808:808::1", False),
        ("2001:db8::1", False),
        ("192.0.2.1", False),
        ("198.18.0.1", False),
        ("255.255.255.255", False),
    ],
)
def test_d1_what_is_public(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public


def test_d1_one_private_answer_among_public_ones_blocks() -> None:
    names = Names({"both.test": ["8.8.8.8", "127.0.0.1"]})
    assert refusal("http://both.test/", resolver=names, private=()).code == "image_url_blocked"


def test_d1_name_is_resolved_once_and_that_address_dialled(host: Host) -> None:
    host.serves("/a.png", PNG)
    names = Names({"pictures.test": ["127.0.0.1"]})
    url = host.url("/a.png", "pictures.test")
    assert fetch(url, resolver=names, private=("pictures.test",)) == PNG
    assert names.asked == ["pictures.test"]
    assert f"host: pictures.test:{host.port}" in host.heads[0].lower()


def test_d1_second_address_is_tried_when_the_first_is_down(host: Host) -> None:
    host.serves("/a.png", PNG)
    names = Names({"pictures.test": ["127.0.0.2", "127.0.0.1"]})
    assert fetch(host.url("/a.png", "pictures.test"), resolver=names, private=("pictures.test",)) == PNG


def test_operators_lists(host: Host) -> None:
    host.serves("/a.png", PNG)
    url = host.url("/a.png")
    names = Names({"127.0.0.1": ["127.0.0.1"], "a.cdn.test": ["8.8.8.8"], "other.test": ["8.8.8.8"]})
    assert fetch(url, private=(f"127.0.0.1:{host.port}",)) == PNG
    assert refusal(url, private=("127.0.0.1:1",)).code == "image_url_blocked"
    assert fetch(url, allowed=("*.cdn.test",)) == PNG, "a listed private host needs no second listing"
    policy = HostPolicy(("*.cdn.test",), (), names)
    assert asyncio.run(policy.addresses("a.cdn.test", 80)) == ["8.8.8.8"]
    for name in ("other.test", "cdn.test", "evilcdn.test"):
        with pytest.raises(ImageError):
            asyncio.run(policy.addresses(name, 80))


def test_international_names_are_resolved_in_ascii(host: Host) -> None:
    host.serves("/a.png", PNG)
    names = Names({"xn--bcher-kva.test": ["127.0.0.1"]})
    assert (
        fetch(host.url("/a.png", "b\u00fccher.test"), resolver=names, private=("xn--bcher-kva.test",)) == PNG
    )
    assert names.asked == ["xn--bcher-kva.test"]
