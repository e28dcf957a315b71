"""A real server, emptied, and a tier on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from store.tiers.redis.tier import RedisTier
from tests.store.redis_server import Server, shared_server


@pytest.fixture
def server() -> Iterator[Server]:
    server = shared_server()
    server.flush()
    yield server
    server.flush()


@pytest.fixture
def tier(server: Server) -> Iterator[RedisTier]:
    tier = RedisTier(server.url, timeout=5.0)
    yield tier
    tier.close()
