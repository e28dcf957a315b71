"""The connection without a server: what errors mean, what opens the breaker, how long is waited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from redis.exceptions import (
    AuthenticationError,
    InvalidResponse,
    OutOfMemoryError,
    RedisClusterException,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from store.errors import Rejected, TierError, TierFull, TierUnavailable
from store.settings import StoreSettings
from store.tiers.redis.link import RedisLink, WrongType, translate
from store.tiers.redis.patience import Patience
from store.tiers.redis.tier import _build, _used_memory
from tests.store.samples import Clock

URL = "redis://127.0.0.1:1"


class Client:
    """Connected already."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def link() -> RedisLink:
    link = RedisLink(URL, False, 1.0)
    link._client = Client()
    return link


def raising(error: Exception) -> Callable[[Any], None]:
    def work(_: Any) -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "kind", "reason", "opens"),
    [
        (OutOfMemoryError("OOM"), TierFull, "server_full", False),
        (MemoryError(), TierFull, "no_memory", False),
        (RedisTimeoutError("late"), TierUnavailable, "timeout", True),
        (TimeoutError(), TierUnavailable, "timeout", True),
        (RedisConnectionError("gone"), TierUnavailable, "unreachable", True),
        (ConnectionResetError(), TierUnavailable, "unreachable", True),
        (RedisClusterException("no node"), TierUnavailable, "unreachable", True),
        (AuthenticationError("WRONGPASS"), TierUnavailable, "unreachable", True),
        (ResponseError("WRONGTYPE Operation"), WrongType, "wrong_type", False),
        (ResponseError("unknown command"), TierUnavailable, "refused", False),
        (InvalidResponse("Protocol Error"), TierUnavailable, "refused", False),
        (ValueError("odd"), TierUnavailable, "failed", True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_who_refuses_is_there_and_who_does_not_answer_is_left_alone(
    link: RedisLink, error: Exception, kind: type, reason: str, opens: bool
) -> None:
    found = translate(error)
    assert (type(found), found.reason) == (kind, reason)
    for _ in range(3):
        with pytest.raises(TierError) as caught:
            link.run(raising(error))
        assert caught.value.reason == reason
    assert link.available is not opens


def test_what_a_reader_rejects_says_nothing_of_the_server(link: RedisLink) -> None:
    for _ in range(5):
        with pytest.raises(Rejected):
            link.run(raising(Rejected("corrupt", "a bit")))
    assert link.available


def test_what_is_closed_is_not_asked_and_has_closed_its_client(link: RedisLink) -> None:
    client = link._client
    link.close()
    with pytest.raises(TierUnavailable, match="closed"):
        link.run(lambda _: pytest.fail("asked"))
    assert client.closed and not link.available


def test_every_call_and_every_item_has_patience_of_its_own(link: RedisLink) -> None:
    clock = Clock(0.0)
    link._patience = Patience(1.0, 100.0, clock)

    def wait(seconds: float) -> None:
        clock.now += 0.7

    def items(_: Any) -> Iterator[int]:
        for number in range(4):
            link._patience.wait(wait)
            yield number

    assert list(link.each(items)) == [0, 1, 2, 3]
    for _ in range(4):
        link.run(lambda _: link._patience.wait(wait))


def test_memory_is_that_of_all_nodes() -> None:
    class Server:
        def __init__(self, info: dict[str, Any]) -> None:
            self._info = info

        def info(self, section: str) -> dict[str, Any]:
            assert section == "memory"
            return self._info

    assert _used_memory(Server({"used_memory": 5})) == 5
    assert _used_memory(Server({"a": {"used_memory": 3}, "b": {"used_memory": "4"}})) == 7


def test_every_setting_reaches_the_tier() -> None:
    settings = StoreSettings(redis_url=URL, redis_bytes=7, redis_cluster=True, redis_timeout=0.75)
    tier = _build(settings)
    assert tier is not None
    assert (tier._budget, tier._link._cluster, tier._link._timeout) == (7, True, 0.75)
    tier.close()
    assert _build(StoreSettings()) is None
