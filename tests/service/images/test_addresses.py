"""Where pictures are fetched from: public addresses, in every spelling, unless the operator listed the host."""

from __future__ import annotations

import asyncio
import ipaddress
import random

import pytest

from service.errors import ImageError
from service.images.addresses import HostPolicy, is_public
from service.images.special_addresses import IPV4, IPV6
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


CLOUDS = [
    "169.254.169.254",  # most of them
    "169.254.170.2",  # Amazon, containers
    "169.254.169.123",  # Amazon, time
    "169.254.42.42",  # Scaleway
    "169.254.0.23",  # Tencent
    "192.0.0.192",  # Oracle
    "100.100.100.200",  # Alibaba
    "168.63.129.16",  # Azure
    "199.36.153.4",  # Google, restricted
    "199.36.153.11",  # Google, private
    "161.26.0.7",  # IBM
    "166.9.250.1",  # IBM
    "fd00:ec2::254",  # Amazon
    "fd20:ce::254",  # Google
    "fe80::a9fe:a9fe",  # OpenStack
]
SPECIAL = [
    *(
        "0.0.0.0",
        "0.1.2.3",
        "10.255.255.255",
        "100.64.0.0",
        "100.127.255.255",
        "127.255.255.254",
        "172.31.255.255",
    ),
    *("192.0.0.0", "192.0.0.8", "192.0.0.9", "192.0.0.10", "192.0.0.170", "192.0.0.171", "192.0.0.255"),
    *(
        "192.0.2.255",
        "192.31.196.1",
        "192.52.193.1",
        "192.88.99.0",
        "192.88.99.1",
        "192.88.99.2",
        "192.168.255.255",
    ),
    *("192.175.48.1", "198.18.0.0", "198.19.255.255", "198.51.100.1", "203.0.113.255", "224.0.0.251"),
    *("239.255.255.250", "240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::2", "::ffff:0:7f00:1", "64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::1", "100::1"),
    *(
        "100:0:0:1::1",
        "2001::1",
        "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:1::1",
        "2001:1::2",
        "2001:1::3",
    ),
    *("2001:2::1", "2001:3::1", "2001:4:112::1", "2001:10::1", "2001:20::1", "2001:30::1", "2001:1ff:ffff::"),
    *(
        "2001:db8:ffff::",
        "2002:7f00:1::",
        "2002:808:808::",
        "2620:4f:8000::1",
        "3ffe::1",
        "3fff::1",
        "3fff:fff::1",
    ),
    *(
        "5f00::1",
        "fc00::1",
        "fdff::1",
        "fe80::1",
        "febf::1",
        "fec0::1",
        "ff02::1",
        "ffff::1",
        "4000::1",
        "::1.2.3.4",
    ),
]
PUBLIC = [
    *("1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0", "126.255.255.255"),
    *(
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "191.255.255.255",
        "192.0.1.0",
    ),
    *("192.0.3.0", "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0", "198.17.255.255"),
    *("198.20.0.0", "198.51.101.0", "203.0.112.255", "203.0.114.0", "223.255.255.255", "168.63.129.15"),
    *(
        "168.63.129.17",
        "199.36.153.3",
        "199.36.153.12",
        "161.25.255.255",
        "161.27.0.0",
        "166.7.255.255",
        "166.12.0.0",
    ),
    *(
        "2000::1",
        "2001:200::1",
        "2001:4860:4860::8888",
        "2001:db7::1",
        "2001:db9::1",
        "2003::1",
        "2606:4700::1111",
    ),
    *("2620:4f:7fff::1", "2620:4f:8001::1", "3ffd::1", "3fff:1000::1", "2a00::1"),
]


@pytest.mark.parametrize("address", [*CLOUDS, *SPECIAL])
def test_m8_addresses_with_a_meaning_of_their_own_are_not_public(address: str) -> None:
    found = ipaddress.ip_address(address)
    assert not is_public(found)
    if isinstance(found, ipaddress.IPv4Address):
        for disguise in (f"::ffff:{address}", f"::ffff:0:{address}", f"64:ff9b::{address}", f"::{address}"):
            assert not is_public(ipaddress.ip_address(disguise)), disguise
        number = int(found)
        six_to_four = ipaddress.IPv6Address(0x2002 << 112 | number << 80 | 1)
        teredo = ipaddress.IPv6Address(0x20010000 << 96 | number << 64 | number ^ 0xFFFFFFFF)
        assert not is_public(six_to_four) and not is_public(teredo)


@pytest.mark.parametrize("address", PUBLIC)
def test_m8_their_neighbours_are(address: str) -> None:
    assert is_public(ipaddress.ip_address(address))


def test_m8_whatever_the_standard_library_calls_private_is_not_public() -> None:
    """Its own list is another reading of the same registries."""
    rng = random.Random(0)
    for bits, make in ((32, ipaddress.IPv4Address), (128, ipaddress.IPv6Address)):
        networks = [network for network in (*IPV4, *IPV6) if network.max_prefixlen == bits]
        for network in networks:
            for _ in range(50):
                near = int(network[rng.randrange(min(network.num_addresses, 2**40))]) ^ (
                    1 << rng.randrange(bits)
                )
                address = make(near)
                if not address.is_global or address.is_multicast:
                    assert not is_public(address), address


@pytest.mark.parametrize("address", CLOUDS)
def test_m8_a_name_that_leads_there_is_not_dialled(address: str) -> None:
    names = Names({"innocent.test": [address]})
    assert refusal("http://innocent.test/", resolver=names, private=()).code == "image_url_blocked"


def test_m8_the_operator_may_list_one_all_the_same() -> None:
    policy = HostPolicy((), ("storage.internal",), Names({"storage.internal": ["199.36.153.8"]}))
    assert asyncio.run(policy.addresses("storage.internal", 443)) == ["199.36.153.8"]


def test_d1_a_name_with_a_thousand_addresses_is_tried_at_a_few() -> None:
    policy = HostPolicy((), (), Names({"many.test": [f"8.8.{n // 256}.{n % 256}" for n in range(1000)]}))
    assert len(asyncio.run(policy.addresses("many.test", 80))) == 8
