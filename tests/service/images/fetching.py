"""One fetch with the lists and limits of a test."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import Any

import pytest

from service.errors import ImageError
from service.http.admission import Shared
from service.images.addresses import HostPolicy, SystemResolver
from service.images.fetch import Fetcher


class Names:
    """A resolver with a table; counts how often it is asked."""

    def __init__(self, table: dict[str, Sequence[str]] | None = None) -> None:
        self.table = table or {}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host in self.table:
            return self.table[host]
        raise OSError("no such host")

    def close(self) -> None: ...


def fetch(
    url: str,
    resolver: Any = None,
    allowed: Sequence[str] = (),
    private: Sequence[str] = ("127.0.0.1",),
    **limits: Any,
) -> bytes:
    policy = HostPolicy(allowed, private, resolver or SystemResolver())
    options = {
        "max_bytes": 100_000,
        "timeout": 20.0,
        "tls": ssl.create_default_context(),
        "places": Shared(4, several=True),
        **limits,
    }
    data = asyncio.run(Fetcher(policy, **options).fetch(url)).data
    assert data is not None
    return data


def refusal(url: str, **options: Any) -> ImageError:
    with pytest.raises(ImageError) as caught:
        fetch(url, **options)
    assert "http" not in caught.value.message.replace("http, https", ""), "no URL in a message"
    return caught.value
