"""Which hosts may be fetched from: only public addresses, unless the operator listed the host.

A host is resolved once and every address of it is judged; the caller then dials one of exactly these. So the
spelling of an address (decimal, hexadecimal, octal, `localhost.`) does not matter, and neither does a name
server that changes its mind between the check and the connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from service.errors import ImageError
from service.images.special_addresses import IPV4, IPV6

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Unicast space handed out today. The rest of IPv6 embeds IPv4 addresses (NAT64, compatible) or is local.
_GLOBAL_V6: Final = ipaddress.IPv6Network("2000::/3")
_MOST_ADDRESSES: Final = 8
"""That are tried, one after the other."""


class Resolver(Protocol):
    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Numeric addresses of `host`. Raises `OSError` if there are none."""
        ...

    def close(self) -> None: ...


class SystemResolver:
    """The system's resolver, in its own threads: a name server that hangs must not occupy threads others wait
    for. There should be as many as there may be look-ups."""

    def __init__(self, threads: int = 8) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="resolve")

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._pool, _getaddrinfo, host, port)
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """Wait for nobody: a look-up that hangs ends by itself."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def _getaddrinfo(host: str, port: int) -> list[str]:
    return [str(item[4][0]) for item in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


def is_public(address: Address) -> bool:
    """True if `address` is one anybody on the internet could reach, and reaches nothing else in disguise."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in IPV4)
    if address.ipv4_mapped is not None:  # as the system gives an IPv4 address to who asks for both kinds
        return is_public(address.ipv4_mapped)
    return address in _GLOBAL_V6 and not any(address in network for network in IPV6)


class HostPolicy:
    """The operator's lists. An entry is a host or `host:port`; in `allowed` also `*.domain`. An empty
    `allowed` lets every public host through; a host in `private` may have any address."""

    def __init__(self, allowed: Sequence[str], private: Sequence[str], resolver: Resolver) -> None:
        self._allowed = tuple(entry.lower() for entry in allowed)
        self._private = frozenset(entry.lower() for entry in private)
        self._resolver = resolver

    async def addresses(self, host: str, port: int) -> list[str]:
        """The addresses that may be dialled for `host`. Raises `ImageError`."""
        host = host.lower().rstrip(".")
        trusted = host in self._private or _with_port(host, port) in self._private
        if not trusted and self._allowed and not self._is_allowed(host, port):
            raise _blocked()
        try:
            found = await self._resolver.resolve(host, port)
        except (OSError, UnicodeError):
            raise ImageError("image_fetch_failed", "the host of its URL was not found.") from None
        # One private answer among public ones is a trick, not a choice to be made.
        if not trusted and not all(is_public(ipaddress.ip_address(address)) for address in found):
            raise _blocked()
        return list(found[:_MOST_ADDRESSES])

    def _is_allowed(self, host: str, port: int) -> bool:
        return any(
            entry in (host, _with_port(host, port)) or (entry.startswith("*.") and host.endswith(entry[1:]))
            for entry in self._allowed
        )


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _blocked() -> ImageError:
    return ImageError("image_url_blocked", "its URL points to a host this service does not fetch from.")
