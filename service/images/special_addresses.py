"""Addresses that mean something else than a computer on the internet.

From IANA's special-purpose address registries for IPv4 and IPv6 (RFC 6890 and its updates), in full, compared on
2026-11-30 with their tables of 2026-07-18 (tests/service/images/iana/): what they get later goes here. What they call
globally reachable (relays, anycast services) is in as well: no picture is there. Also multicast, address space that was
given back, and what clouds answer to inside themselves at addresses that look public.
"""

from __future__ import annotations

import ipaddress
from typing import Final

IPV4: Final = tuple(
    map(
        ipaddress.IPv4Network,
        (
            "0.0.0.0/8",  # this network
            "10.0.0.0/8",  # private use
            "100.64.0.0/10",  # shared by providers; Alibaba's metadata at 100.100.100.200
            "127.0.0.0/8",  # loopback
            "169.254.0.0/16",  # link local; the metadata of most clouds at 169.254.169.254
            "172.16.0.0/12",  # private use
            "192.0.0.0/24",  # protocol assignments; Oracle's metadata at 192.0.0.192
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # automatic multicast tunnelling
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",  # private use
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarking
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and broadcast
            # Inside clouds.
            "161.26.0.0/16",  # IBM: services of a region
            "166.8.0.0/14",  # IBM: service endpoints
            "168.63.129.16/32",  # Azure: host agent, health, name server
            "199.36.153.4/30",  # Google: restricted.googleapis.com
            "199.36.153.8/30",  # Google: private.googleapis.com
        ),
    )
)

IPV6: Final = tuple(
    map(
        ipaddress.IPv6Network,
        (
            "::/128",  # unspecified
            "::1/128",  # loopback
            "::ffff:0:0/96",  # an IPv4 address in disguise
            "64:ff9b::/96",  # a translated IPv4 address
            "64:ff9b:1::/48",  # the same, locally
            "100::/64",  # discard
            "100:0:0:1::/64",  # dummy prefix
            "2001::/23",  # protocol assignments: Teredo, ORCHID, drone tags, anycast services, benchmarking
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4: an IPv4 address in disguise
            "2620:4f:8000::/48",  # AS112
            "3ffe::/16",  # the old test network
            "3fff::/20",  # documentation
            "5f00::/16",  # segment routing
            "fc00::/7",  # unique local; metadata of Amazon and Google
            "fe80::/10",  # link local
            "fec0::/10",  # site local
            "ff00::/8",  # multicast
        ),
    )
)
