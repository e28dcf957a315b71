"""One safe way to get bytes from a URL that a user wrote.

Only http and https, only hosts that `HostPolicy` lets through, at most three redirects and each of them
judged anew, no cookies, no credentials, no proxies of the environment, a cap on bytes while they arrive, one
deadline for all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

import httpcore
import httpx

from service.errors import ImageError
from service.images.addresses import HostPolicy

MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_PORTS: Final = {"http": 80, "https": 443}
_MAX_URL: Final = 8192
_HEADERS: Final = (
    ("accept", "image/*,*/*;q=0.1"),
    # A body that is unpacked on the way could be far larger than what was counted.
    ("accept-encoding", "identity"),
    ("user-agent", "conduit-image-fetcher/1.0"),
    ("connection", "close"),
)


@dataclass(frozen=True, slots=True)
class Validators:
    """What a host said a copy is recognised by, and the URL it said so of (after redirects): another URL may
    use the same marks for something else."""

    url: str = ""
    etag: str | None = None
    last_modified: str | None = None

    def __bool__(self) -> bool:
        return self.etag is not None or self.last_modified is not None


@dataclass(frozen=True, slots=True)
class Fetched:
    """`data` is None if the host says that the copy which the validators describe is still right. Empty
    validators: the body may not be kept, or could not be recognised again."""

    data: bytes | None
    validators: Validators


class Fetcher:
    """`timeout` is in seconds and covers everything from the name look-up to the last byte. At most `at_once`
    downloads run, and of one host a quarter of that: a host that hangs must not take all places."""

    def __init__(
        self, hosts: HostPolicy, max_bytes: int, timeout: float, tls: ssl.SSLContext, at_once: int = 16
    ) -> None:
        self._hosts = hosts
        self._places = asyncio.Semaphore(at_once)
        self._places_per_host = max(1, at_once // 4)
        # A host's semaphore lives as long as somebody uses it.
        self._host_places: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._tls = tls

    async def fetch(self, url: str, known: Validators = Validators()) -> Fetched:
        """The body behind `url`. Raises `ImageError`; no text of it repeats the URL."""
        parsed = _parse(url)
        places = self._host_places.setdefault(_host(parsed), asyncio.Semaphore(self._places_per_host))
        try:
            async with places, self._places, asyncio.timeout(self._timeout):
                return await self._follow(parsed, known)
        except TimeoutError:
            raise ImageError(
                "image_fetch_timeout", f"its host took longer than {self._timeout:g} s."
            ) from None

    async def _follow(self, url: httpx.URL, known: Validators) -> Fetched:
        for _ in range(MAX_REDIRECTS + 1):
            conditions = known if known.url == str(url) else Validators()
            async with self._get(url, conditions) as response:
                if response.status not in _REDIRECTS:
                    return await self._read(response, url, conditions)
                location = _header(response, b"location")
            if location is None:
                raise ImageError("image_fetch_failed", "its host redirects to nowhere.")
            url = _parse(location, base=url)
        raise ImageError("image_fetch_failed", f"its host redirects more than {MAX_REDIRECTS} times.")

    @contextlib.asynccontextmanager
    async def _get(self, url: httpx.URL, known: Validators) -> AsyncIterator[httpcore.Response]:
        port = url.port or _PORTS[url.scheme]
        addresses = await self._hosts.addresses(_host(url), port)
        target = httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=port, target=url.raw_path)
        backend = _PinnedBackend(addresses, self._timeout / 2)
        headers = [("host", url.netloc.decode("ascii")), *_HEADERS, *_conditions(known)]
        try:
            async with (
                httpcore.AsyncHTTPConnection(
                    target.origin, ssl_context=self._tls, network_backend=backend
                ) as connection,
                connection.stream("GET", target, headers=headers) as response,
            ):
                yield response
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
            raise ImageError("image_fetch_failed", "the connection to its host failed.") from None

    async def _read(self, response: httpcore.Response, url: httpx.URL, known: Validators) -> Fetched:
        if response.status == 304 and known:
            return Fetched(None, known)
        if response.status != 200:
            raise ImageError("image_fetch_failed", f"its host answered with status {response.status}.")
        if (_header(response, b"content-encoding") or "identity").lower() != "identity":
            raise ImageError("image_fetch_failed", "its host sent an encoded body, which was not asked for.")
        declared = _header(response, b"content-length") or ""
        if declared.isascii() and declared.isdigit() and int(declared) > self._max_bytes:
            raise self._too_large()
        body = bytearray()
        async for chunk in response.aiter_stream():
            body += chunk
            if len(body) > self._max_bytes:
                raise self._too_large()
        return Fetched(bytes(body), _validators(response, url))

    def _too_large(self) -> ImageError:
        return ImageError("image_too_large", f"it is larger than {self._max_bytes} bytes.")


class _PinnedBackend(httpcore.AnyIOBackend):
    """Dials the addresses that were judged, whatever host the connection is for. Server name and Host header
    stay."""

    def __init__(self, addresses: list[str], timeout: float) -> None:
        self._addresses = addresses
        self._seconds_each = timeout / len(addresses)

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        for address in self._addresses[:-1]:
            with contextlib.suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return await super().connect_tcp(address, port, self._seconds_each)
        return await super().connect_tcp(self._addresses[-1], port, self._seconds_each)


def _parse(text: str, base: httpx.URL | None = None) -> httpx.URL:
    """A URL that may be fetched as far as its text goes. Raises `ImageError`."""
    if len(text) > _MAX_URL:
        raise ImageError("invalid_image_url", f"its URL is longer than {_MAX_URL} characters.")
    try:
        url = httpx.URL(text.strip()) if base is None else base.join(text.strip())
        url.raw_host.decode("ascii")
    except (httpx.InvalidURL, UnicodeError, ValueError):
        raise ImageError("invalid_image_url", "its URL is malformed.") from None
    if url.scheme not in _PORTS:
        raise ImageError("invalid_image_url", "its URL is neither http, https nor a data URL.")
    if url.userinfo:
        raise ImageError("image_url_blocked", "its URL holds a user name or password.")
    # A backslash or a zone id is read differently by different software; none of it is needed.
    if not url.host or any(c in url.host for c in "\\%@/") or "\\" in text:
        raise ImageError("image_url_blocked", "the host in its URL is not a plain host.")
    return url


def _host(url: httpx.URL) -> str:
    """The host as it goes over the wire: an international name in its ASCII form."""
    return url.raw_host.decode("ascii")


def _validators(response: httpcore.Response, url: httpx.URL) -> Validators:
    if "no-store" in (_header(response, b"cache-control") or "").lower():
        return Validators()
    marks = (_header(response, name) for name in (b"etag", b"last-modified"))
    # They are sent back as they came, which a header with other characters could not be.
    etag, last_modified = (mark if mark is not None and mark.isascii() else None for mark in marks)
    return Validators(str(url), etag, last_modified)


def _conditions(known: Validators) -> list[tuple[str, str]]:
    pairs = (("if-none-match", known.etag), ("if-modified-since", known.last_modified))
    return [(name, value) for name, value in pairs if value is not None]


def _header(response: httpcore.Response, name: bytes) -> str | None:
    for key, value in response.headers:
        if key.lower() == name:
            return value.decode("latin-1")
    return None
