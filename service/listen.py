"""The sockets that the service listens on, taken before anything is loaded: a port in use is found at once."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from service.settings import SettingsError

# `localhost` also means ::1 where there is no IPv6.
_NOT_HERE: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


@contextmanager
def bound_sockets(host: str, port: int) -> Iterator[list[socket.socket]]:
    """A socket for each address of `host`; connections come once a server listens on them. Raises `SettingsError`."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise SettingsError(f"CONDUIT_HOST: {host!r} is no address of this machine") from None
    with ExitStack() as closing:
        taken: list[socket.socket] = []
        missing = 0
        for family, _, _, _, address in dict.fromkeys(found):
            try:
                taken.append(closing.enter_context(_bound(family, address)))
            except OSError as error:
                missing = error.errno or 0
                if missing not in _NOT_HERE:
                    raise SettingsError(_refusal(host, port, missing)) from None
        if not taken:
            raise SettingsError(_refusal(host, port, missing))
        yield taken


def _bound(family: socket.AddressFamily, address: Any) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _refusal(host: str, port: int, error: int) -> str:
    return f"CONDUIT_HOST, CONDUIT_PORT: cannot listen on {host}, port {port}: {os.strerror(error).lower()}"
