"""M8 against IANA's registries as IANA published them: `iana/special_registries.csv` holds every row of both
(https://www.iana.org/assignments/iana-ipv4-special-registry and .../iana-ipv6-special-registry, CSV of 2026-07-18,
whose rows agree with those of the npm package ip-address 10.7.6)."""

from __future__ import annotations

import csv
import ipaddress
import random
from pathlib import Path

import pytest

from service.images.addresses import is_public
from service.images.special_addresses import IPV4, IPV6

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
REGISTRIES = Path(__file__).parent / "iana/special_registries.csv"
ROWS: list[Network] = [
    ipaddress.ip_network(row["Address Block"]) for row in csv.DictReader(REGISTRIES.read_text().splitlines())
]
# What is in our list and in neither registry. From other registries of IANA: multicast (ipv4-address-space,
# ipv6-address-space), site local (RFC 3879) and the old test network (RFC 3701). The rest are clouds' own.
OURS = {
    *("224.0.0.0/4", "ff00::/8", "fec0::/10", "3ffe::/16"),
    *("161.26.0.0/16", "166.8.0.0/14", "168.63.129.16/32", "199.36.153.4/30", "199.36.153.8/30"),
}


def test_both_registries_are_there() -> None:
    assert [sum(row.version == version for row in ROWS) for version in (4, 6)] == [26, 25]
    assert len(set(ROWS)) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_m8_no_address_of_a_registered_block_is_public(row: Network) -> None:
    """Globally reachable or not: what is reachable is an anycast service or a relay, and no picture is there."""
    rng = random.Random(0)
    inside = {
        0,
        row.num_addresses // 2,
        row.num_addresses - 1,
        *(rng.randrange(row.num_addresses) for _ in range(50)),
    }
    mapped = ipaddress.ip_network("::ffff:0:0/96")
    for number in inside:
        # An IPv4 address in disguise is judged by what it is.
        assert row == mapped or not is_public(row[number]), row[number]


def test_m8_our_list_has_no_block_that_nobody_registered() -> None:
    listed: set[Network] = {*IPV4, *IPV6}
    within = {network for network in listed if any(_inside(network, row) for row in ROWS)}
    assert {str(network) for network in listed - within} == OURS


def _inside(network: Network, row: Network) -> bool:
    return network.version == row.version and network.subnet_of(row)  # type: ignore[arg-type]
