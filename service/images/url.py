"""URLs as users and hosts write them -> URLs that may be fetched, as far as their text goes."""

from __future__ import annotations

import string
from typing import Final
from urllib.parse import quote

import httpx

from service.errors import ImageError

PORTS: Final = {"http": 80, "https": 443}
_LONGEST: Final = 8192
# A backslash or a zone id is read differently by different software; none of it is needed.
_NOT_IN_A_HOST: Final = frozenset("\\%@/")


def parse_url(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """`text` as a URL, relative to `base` if there is one. Raises `ImageError`; no text of it repeats the URL."""
    check_length(text)
    try:
        url = httpx.URL(text.strip()) if base is None else base.join(text.strip())
        host, port, userinfo = host_of(url), url.port, url.userinfo
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise ImageError("invalid_image_url", "its URL is malformed.") from None
    if port is not None and not 0 < port < 65536:
        raise ImageError("invalid_image_url", "the port in its URL is no port.")
    if url.scheme not in PORTS:
        raise ImageError("invalid_image_url", "its URL is neither http, https nor a data URL.")
    if userinfo:
        raise ImageError("image_url_blocked", "its URL holds a user name or password.")
    if not host or not _NOT_IN_A_HOST.isdisjoint(host) or "\\" in text:
        raise ImageError("image_url_blocked", "the host in its URL is not a plain host.")
    return url


def check_length(text: str) -> None:
    """Raises `ImageError`: even looking up a text in a table takes its time where it is long."""
    if len(text) > _LONGEST:
        raise ImageError("invalid_image_url", f"its URL is longer than {_LONGEST} characters.")


def host_of(url: httpx.URL) -> str:
    """The host as it goes over the wire: an international name in its ASCII form."""
    return url.raw_host.decode("ascii")


def port_of(url: httpx.URL) -> int:
    return url.port or PORTS[url.scheme]


def location_text(value: bytes) -> str:
    """A `location` header as it was meant. Hosts send UTF-8 unescaped; bytes that are none are escaped one by one, so
    that the host gets back what it sent."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return quote(value, safe=string.printable)
