"""One safe way to get bytes from a URL that a user wrote.

Only http and https, only hosts that `HostPolicy` lets through, at most three redirects and each of them
judged anew, no cookies, no credentials, no proxies of the environment, a cap on bytes while they arrive, one
deadline for all of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakValueDictionary

import httpcore
import httpx

from service.errors import ImageError
from service.http.admission import Shared
from service.images.addresses import HostPolicy
from service.images.shares import FairPlaces, Place
from service.images.sniff import sniff
from service.images.url import host_of, location_text, parse_url, port_of

_log = logging.getLogger(__name__)

MAX_REDIRECTS: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
# A piece costs the loop as much time as a request does, and may be a single byte.
_MOST_PIECES: Final = 65_536
_PIECES_A_TURN: Final = 32
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
    """`timeout` is in seconds and covers everything from the name look-up to the last byte. As many downloads run as
    there are `places`; a quarter of them may be one caller's from one host: a host that hangs must not take all."""

    def __init__(
        self, hosts: HostPolicy, max_bytes: int, timeout: float, tls: ssl.SSLContext, places: Shared
    ) -> None:
        self._hosts = hosts
        self._places = FairPlaces(places)
        self._places_per_host = max(1, places.limit // 4)
        # The semaphore of a host and who fetches from it lives as long as somebody uses it.
        self._host_places: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._tls = tls

    async def fetch(self, url: str, caller: str = "", known: Validators = Validators()) -> Fetched:
        """The body behind `url`. Raises `ImageError`; no text of it repeats the URL."""
        parsed = parse_url(url)
        key = caller, host_of(parsed)
        of_host = self._host_places.setdefault(key, asyncio.Semaphore(self._places_per_host))
        try:
            async with of_host, self._places.place(caller) as place, asyncio.timeout(self._timeout):
                return await self._follow(parsed, known, place)
        except ImageError:
            raise
        except TimeoutError:
            took = f"its host took longer than {self._timeout:g} s."
            raise ImageError("image_fetch_timeout", took) from None
        except Exception as error:
            # Whatever a host or a network makes the libraries trip over, it is this picture that is not there.
            _log.debug("picture not fetched", extra={"cause": type(error).__name__})
            raise ImageError("image_fetch_failed", "the connection to its host failed.") from None

    async def _follow(self, url: httpx.URL, known: Validators, place: Place) -> Fetched:
        for _ in range(MAX_REDIRECTS + 1):
            conditions = known if known.url == str(url) else Validators()
            addresses = await self._addresses(url, place)
            async with self._get(url, addresses, conditions) as response:
                if response.status not in _REDIRECTS:
                    return await self._read(response, url, conditions)
                location = _header(response, b"location")
            if location is None:
                raise ImageError("image_fetch_failed", "its host redirects to nowhere.")
            url = parse_url(location_text(location), base=url)
        raise ImageError("image_fetch_failed", f"its host redirects more than {MAX_REDIRECTS} times.")

    async def _addresses(self, url: httpx.URL, place: Place) -> list[str]:
        """A look-up cannot be ended: where the name server hangs, the thread that waits for it goes on taking the
        place of who asked."""
        look_up = asyncio.ensure_future(self._hosts.addresses(host_of(url), port_of(url)))
        place.keep_until_done(look_up)
        try:
            return await asyncio.shield(look_up)
        finally:
            del look_up  # it has the error, whose traceback has this frame

    @contextlib.asynccontextmanager
    async def _get(
        self, url: httpx.URL, addresses: list[str], known: Validators
    ) -> AsyncIterator[httpcore.Response]:
        target = httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=port_of(url), target=url.raw_path
        )
        backend = _PinnedBackend(addresses, self._timeout / 2)
        headers = [("host", url.netloc.decode("ascii")), *_HEADERS, *_conditions(known)]
        async with (
            httpcore.AsyncHTTPConnection(
                target.origin, ssl_context=self._tls, network_backend=backend
            ) as connection,
            connection.stream("GET", target, headers=headers) as response,
        ):
            yield response

    async def _read(self, response: httpcore.Response, url: httpx.URL, known: Validators) -> Fetched:
        if response.status == 304 and known:
            return Fetched(None, known)
        if response.status != 200:
            raise ImageError("image_fetch_failed", f"its host answered with status {response.status}.")
        body = await self._body(response)
        # Storage hosts name encodings that they have long undone (`aws-chunked`): what the body is, it shows.
        if _header(response, b"content-encoding") is not None and sniff(body) in ("unknown", "gzip"):
            raise ImageError("image_fetch_failed", "its host sent an encoded body, which was not asked for.")
        return Fetched(body, _validators(response, url))

    async def _body(self, response: httpcore.Response) -> bytes:
        declared = _header(response, b"content-length") or b""
        if declared.isdigit() and int(declared[:20]) > self._max_bytes:
            raise self._too_large()
        body, pieces = bytearray(), 0
        async for piece in response.aiter_stream():
            body += piece
            pieces += 1
            if len(body) > self._max_bytes:
                raise self._too_large()
            if pieces > _MOST_PIECES:
                raise ImageError("image_fetch_failed", "its host sends it in too many pieces.")
            if pieces % _PIECES_A_TURN == 0:
                await asyncio.sleep(0)  # they may all have come at once
        return bytes(body)

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


def _validators(response: httpcore.Response, url: httpx.URL) -> Validators:
    if b"no-store" in (_header(response, b"cache-control") or b"").lower():
        return Validators()
    # They are sent back as they came, which a header with other characters could not be.
    etag, last_modified = (_ascii(_header(response, name)) for name in (b"etag", b"last-modified"))
    return Validators(str(url), etag, last_modified)


def _ascii(value: bytes | None) -> str | None:
    return value.decode() if value is not None and value.isascii() else None


def _conditions(known: Validators) -> list[tuple[str, str]]:
    pairs = (("if-none-match", known.etag), ("if-modified-since", known.last_modified))
    return [(name, value) for name, value in pairs if value is not None]


def _header(response: httpcore.Response, name: bytes) -> bytes | None:
    for key, value in response.headers:
        if key.lower() == name:
            return value
    return None
