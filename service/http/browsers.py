"""What a page of somebody else may make a browser do, where a service asks for no key: nothing.

A browser sends requests wherever a page tells it to, also to an address that only its user can reach. It says so in
headers that no page can forge: which name was asked for (a name of the page's own that leads to this machine, for
instance), and which site asks.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

_HARMLESS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITE: Final = frozenset({"same-origin", "none"})


class BrowserGuard:
    """`trusted` are names beside those of loopback that the service may be asked by: `host`, `host:port`,
    `*.domain`. Addresses need no list: a page can only have a name lead here, not an address. Pages of `origins` may
    ask as our own do."""

    def __init__(self, trusted: Sequence[str], origins: Sequence[str] = ()) -> None:
        self._trusted = tuple(name.lower() for name in trusted)
        self._origins = frozenset(origins)

    def refusal(self, method: str, headers: Headers) -> str | None:
        """The code of the error, None for what no page of somebody else has asked for."""
        hosts = headers.getlist("host")
        if len(hosts) > 1 or not all(self._is_ours(host) for host in hosts):
            return "host_not_allowed"
        if method in _HARMLESS or headers.get("origin", "").lower() in self._origins:
            return None
        return "origin_not_allowed" if _asked_by_another_site(headers) else None

    def _is_ours(self, host: str) -> bool:
        name = _name(host)
        if not host or name == "localhost" or name.endswith(".localhost") or _is_address(name):
            return True
        return any(
            name.endswith(trusted[1:]) if trusted.startswith("*.") else trusted in (name, host.lower())
            for trusted in self._trusted
        )


def _asked_by_another_site(headers: Headers) -> bool:
    if (site := headers.get("sec-fetch-site")) is not None:
        return site.strip().lower() not in _OWN_SITE
    origin = headers.get("origin")
    return origin is not None and _netloc(origin) != headers.get("host", "").lower()


def _netloc(origin: str) -> str:
    """`host[:port]` of an origin as a browser writes it, "" if it has none (`null`)."""
    return origin.lower().partition("://")[2]


def _name(host: str) -> str:
    """The name in `host[:port]`, "" where it cannot be read."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
