"""A connection to Redis or Valkey that is never waited for long, with errors in the store's terms."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.exceptions import (
    ConnectionError as RedisConnectionError,
)
from redis.exceptions import (
    OutOfMemoryError,
    RedisClusterException,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    TimeoutError as RedisTimeoutError,
)
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from store.errors import TierFull, TierUnavailable
from store.tiers.redis.breaker import Breaker

T = TypeVar("T")

_FAILURES = 3
_REST_SECONDS = 5.0
_READ_SIZE = 1 << 18


class RedisLink:
    """Connects at the first call. `timeout` bounds each wait, for a connection and for each answer, in
    seconds."""

    def __init__(self, url: str, cluster: bool, timeout: float, breaker: Breaker | None = None) -> None:
        self._url = url
        self._cluster = cluster
        self._timeout = timeout
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
        try:
            result = work(self._connected())
        except OutOfMemoryError as error:
            raise TierFull("server_full", str(error)) from error
        except (RedisTimeoutError, RedisConnectionError, RedisClusterException, OSError) as error:
            self._breaker.failed()
            reason = "timeout" if isinstance(error, RedisTimeoutError) else "unreachable"
            raise TierUnavailable(reason, str(error)) from error
        except RedisError as error:
            raise TierUnavailable("refused", str(error)) from error
        self._breaker.worked()
        return result

    def close(self) -> None:
        self._closed = True
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _connected(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = self._connect(protocol=3)
            return self._client

    def _connect(self, protocol: int) -> Any:
        """RESP3 where the server knows it."""
        kind = redis.RedisCluster if self._cluster else redis.Redis
        client = kind.from_url(
            self._url,
            protocol=protocol,
            socket_timeout=self._timeout,
            socket_connect_timeout=self._timeout,
            socket_read_size=_READ_SIZE,
            retry=Retry(NoBackoff(), 0),
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        try:
            client.ping()
        except (RedisTimeoutError, RedisConnectionError):
            client.close()
            raise
        except ResponseError:
            client.close()
            if protocol == 2:
                raise
            return self._connect(protocol=2)
        return client
