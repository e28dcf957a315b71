"""Records in Redis or Valkey, shared between machines. `remote.py` has the layout of a record, `index.py` the
listing."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from store.errors import Rejected, TierError, TierFull
from store.records.record import Record
from store.residency.counters import TierCounters
from store.residency.eviction import POLICIES, HoldOf, Policy, choose, lru
from store.residency.index import Row
from store.settings import StoreSettings
from store.tiers.protocol import Sink, TierKind, register, sealed
from store.tiers.redis.index import SharedIndex
from store.tiers.redis.link import RedisLink, WrongType
from store.tiers.redis.remote import MANIFEST, Draft, push, record_key
from store.tiers.serial import SerialThread
from store.types import TierStats

_log = logging.getLogger(__name__)

_CHORE_SECONDS = 5.0
_REBUILD_SECONDS = 600.0


@sealed
class RedisTier:
    """`budget` bounds the bytes of all records; 0 leaves that to the server's `maxmemory`. `timeout` in
    seconds. Raises InvalidSettings for a URL that cannot work."""

    name = "redis"

    def __init__(
        self, url: str, budget: int = 0, policy: Policy = lru, *, cluster: bool = False, timeout: float = 0.25
    ) -> None:
        self._budget = budget
        self._policy = policy
        self._link = RedisLink(url, cluster, timeout)
        self._counters = TierCounters(self.name)
        self._index = SharedIndex(self._link, self._counters)
        self._put_lock = threading.Lock()
        self._serial = SerialThread("store-redis-chore", self._chore, _CHORE_SECONDS)
        self._rebuilt = time.monotonic()

    def get(self, digest: bytes, sink: Sink, count: bool = True) -> bool:
        started = time.perf_counter()
        counters = self._counters if count else TierCounters(self.name)
        try:
            nbytes = self._push(digest, sink)
        except Rejected as error:
            counters.rejected(error.reason)
            raise
        except TierError:
            counters.miss("unavailable")
            raise
        if nbytes is None:
            counters.miss("absent")
            self._index.rows.remove(digest)
            return False
        counters.hit(nbytes, time.perf_counter() - started)
        return True

    def put(self, record: Record, when: float, hold: HoldOf, replace: bool = False) -> None:
        started = time.perf_counter()
        self._serial.start()
        with self._put_lock:
            if not replace and self.contains(record.digest):
                return
            if self._budget:
                self._make_room(record, when, hold)
            self._write(record)
            self._index.add(Row(record.digest, record.manifest.info, record.nbytes, when))
        self._counters.wrote(record.nbytes, time.perf_counter() - started)

    def delete(self, digest: bytes, reason: str | None = None) -> bool:
        self._index.remove(digest)
        found = bool(self._link.run(lambda client: client.unlink(record_key(digest))))
        if found and reason:
            self._counters.evicted(reason)
        return found

    def contains(self, digest: bytes) -> bool:
        try:
            return bool(self._link.run(lambda client: client.hexists(record_key(digest), MANIFEST)))
        except WrongType:
            return False

    def touch(self, digest: bytes, when: float) -> None:
        """Written down every few seconds; lost if the server is away."""
        self._index.touch(digest, when)
        self._serial.start()

    def row(self, digest: bytes) -> Row | None:
        return self._index.look(digest)

    def rows(self) -> list[Row]:
        """What the index lists; a record that the server evicted stays listed until somebody asks for it, or for
        ten minutes."""
        self._index.refresh()
        return self._index.rows.rows()

    def stats(self) -> TierStats:
        physical = 0
        try:
            self._index.refresh()
            physical = self._link.run(_used_memory)
        except TierError as error:
            _log.debug("no figures from the server: %s", error)
        rows = self._index.rows
        return self._counters.stats(self._link.available, len(rows), rows.nbytes, physical, self._budget)

    def problems(self) -> tuple[str, ...]:
        return () if self._link.available else ("redis does not answer",)

    def flush(self) -> None:
        self._index.write_uses()

    def compact(self) -> int:
        return 0

    def close(self) -> None:
        self._attempt(self._index.write_uses)
        self._serial.close()
        self._link.close()

    def _chore(self) -> None:
        self._attempt(self._index.write_uses)
        if time.monotonic() - self._rebuilt >= _REBUILD_SECONDS:
            self._rebuilt = time.monotonic()
            self._attempt(self._index.rebuild)

    def _attempt(self, work: Callable[[], None]) -> None:
        if not self._link.available:
            return
        try:
            work()
        except TierError as error:
            _log.info("the index is not kept up: %s", error)

    def _push(self, digest: bytes, sink: Sink) -> int | None:
        """Bytes of the record, None if there is none."""
        try:
            return self._link.run(lambda client: push(client, digest, sink))
        except WrongType as error:
            raise Rejected("corrupt", "a key of another type") from error

    def _write(self, record: Record) -> None:
        draft = Draft(record)
        try:
            self._link.run(draft.send)
            self._link.run(draft.publish)
        except TierError:
            # At once where the server can be reached; else it goes by itself within the minute.
            with suppress(TierError):
                self._link.run(lambda client: client.unlink(draft.key))
            raise

    def _make_room(self, record: Record, when: float, hold: HoldOf) -> None:
        if record.nbytes > self._budget:
            raise TierFull("too_large", f"{record.nbytes} bytes, budget {self._budget}")
        self._index.refresh()
        self._index.rows.settle(when)
        rows = [row for row in self._index.rows.rows() if row.digest != record.digest]
        need = sum(row.bytes for row in rows) + record.nbytes - self._budget
        if need <= 0:
            return
        victims = choose(rows, need, self._policy, when, hold)
        if sum(row.bytes for row in victims) < need:
            raise TierFull("held", "all that could be evicted is in use or pinned")
        for row in victims:
            self.delete(row.digest, "budget")


def _used_memory(client: Any) -> int:
    """Bytes that the server, or all nodes of the cluster together, hold, ours or not."""
    info = client.info("memory")
    if "used_memory" in info:
        return int(info["used_memory"])
    return sum(int(node["used_memory"]) for node in info.values())


def _build(settings: StoreSettings) -> RedisTier | None:
    if settings.redis_url is None:
        return None
    return RedisTier(
        settings.redis_url,
        settings.redis_bytes,
        POLICIES[settings.eviction],
        cluster=settings.redis_cluster,
        timeout=settings.redis_timeout,
    )


register(TierKind(RedisTier.name, rank=2, persistent=True, build=_build))
