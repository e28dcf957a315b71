"""A connection to Redis or Valkey that is never waited for long, with errors in the store's terms."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, RedisClusterException, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from store.errors import StoreError, TierError, TierFull, TierUnavailable
from store.tiers.redis.breaker import Breaker
from store.tiers.redis.patience import Patience, pool_class
from store.tiers.redis.url import check

T = TypeVar("T")

_FAILURES = 3
_REST_SECONDS = 5.0
_READ_SIZE = 1 << 18
# A server slower than this is not worth waiting for: computing the entry is about as fast.
_LEAST_RATE = 32 << 20


class WrongType(TierUnavailable):
    """A key of ours holds something of another type, which only somebody else can have written."""


class RedisLink:
    """Connects at the first call. A call waits for the server `timeout` seconds at most, connecting included, and
    longer only while bytes flow at 32 MiB/s or more. Raises InvalidSettings for a URL that cannot work."""

    def __init__(self, url: str, cluster: bool, timeout: float, breaker: Breaker | None = None) -> None:
        check(url, cluster)
        self._url = url
        self._cluster = cluster
        self._timeout = timeout
        self._patience = Patience(timeout, _LEAST_RATE)
        self._breaker = breaker or Breaker(_FAILURES, _REST_SECONDS)
        self._client: Any = None
        self._lock = threading.Lock()
        self._closed = False

    @property
    def available(self) -> bool:
        return not self._closed and not self._breaker.open

    def run(self, work: Callable[[Any], T]) -> T:
        """`work` on a client. Raises TierUnavailable at once while the server does not answer, TierFull when
        it is out of memory."""
        if self._closed:
            raise TierUnavailable("closed")
        if not self._breaker.admits():
            raise TierUnavailable("breaker_open")
        self._patience.renew()
        try:
            result = work(self._connected())
        except StoreError:
            raise
        except Exception as error:
            failure = translate(error)
            if failure.reason in ("timeout", "unreachable", "failed"):
                self._breaker.failed()
            raise failure from error
        self._breaker.worked()
        return result

    def each(self, begin: Callable[[Any], Iterable[T]]) -> Iterator[T]:
        """What `begin` gives, with patience for every item."""
        items = iter(self.run(begin))
        while item := self.run(lambda _: [*_next(items)]):
            yield item[0]

    def close(self) -> None:
        self._closed = True
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _connected(self) -> Any:
        """Another thread that is connecting is waited for like the server."""
        if not self._patience.wait(lambda seconds: self._lock.acquire(timeout=seconds)):
            raise TimeoutError("connecting")
        try:
            if self._client is None:
                self._client = self._connect(protocol=3)
            return self._client
        finally:
            self._lock.release()

    def _connect(self, protocol: int) -> Any:
        """RESP3 where the server knows it."""
        options = {
            "protocol": protocol,
            "socket_timeout": self._timeout,
            "socket_connect_timeout": self._timeout,
            "socket_read_size": _READ_SIZE,
            "retry": Retry(NoBackoff(), 0),
            "maint_notifications_config": MaintNotificationsConfig(enabled=False),
        }
        pool = pool_class(self._patience)
        client: Any
        if self._cluster:
            client = redis.RedisCluster.from_url(self._url, connection_pool_class=pool, **options)
        else:
            client = redis.Redis.from_pool(pool.from_url(self._url, **options))
        try:
            client.ping()
        except ResponseError:
            client.close()
            if protocol == 2:
                raise
            return self._connect(protocol=2)
        except BaseException:
            client.close()
            raise
        return client


def translate(error: Exception) -> TierError:
    """What a driver raises, in the store's terms."""
    match error:
        case OutOfMemoryError():
            return TierFull("server_full", str(error))
        case MemoryError():
            return TierFull("no_memory")
        case RedisTimeoutError() | TimeoutError():
            return TierUnavailable("timeout", str(error))
        case RedisConnectionError() | RedisClusterException() | OSError():
            return TierUnavailable("unreachable", str(error))
        case ResponseError() if "WRONGTYPE" in str(error):
            return WrongType("wrong_type", str(error))
        case RedisError():
            return TierUnavailable("refused", str(error))
        case _:
            return TierUnavailable("failed", f"{type(error).__name__}: {error}")


def _next(items: Iterator[T]) -> Iterator[T]:
    """One item, or none."""
    for item in items:
        yield item
        return
