"""Records in Redis or Valkey, shared between machines.

    vkv:{<digest>}:m      manifest, written last and removed first
    vkv:{<digest>}:<n>    piece n
    vkv:{index}:used      sorted set: digest -> last use, seconds since the epoch
    vkv:{index}:hits      hash: digest -> uses

The braces keep a record in one slot of a cluster. Pieces get a time to live when they are written, which is
taken away right after the manifest is there: what a writer that dies leaves behind goes by itself, or is a
torn record. A server that evicts on its own tears records; that shows as a missing piece. Pieces travel in
small windows, so that other clients of a server with one thread are not kept waiting and replies do not pile
up in its memory.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Any

from redis.exceptions import OutOfMemoryError

from store.errors import Rejected, TierError, TierFull, TierUnavailable
from store.records.header import parse
from store.records.record import Record
from store.residency.counters import TierCounters
from store.residency.eviction import POLICIES, HoldOf, Policy, choose, lru
from store.residency.index import Index, Row
from store.settings import StoreSettings
from store.tiers.protocol import Sink, TierKind, register
from store.tiers.redis.link import RedisLink
from store.tiers.serial import SerialThread
from store.types import TierStats

_log = logging.getLogger(__name__)

_USED = "vkv:{index}:used"
_HITS = "vkv:{index}:hits"
_WINDOW = 4
_ID_BYTES = 8
_MOST_PIECES = 4096
_UNLINK_WINDOW = 64
_LISTING_WINDOW = 256
_HALF_WRITTEN_SECONDS = 600
_WRITE_DOWN_SECONDS = 5.0
# A server slower than this is not worth waiting for: computing the entry is about as fast.
_LEAST_RATE = 32 << 20


def _manifest_key(digest: bytes) -> str:
    return f"vkv:{{{digest.hex()}}}:m"


def _piece_keys(digest: bytes, write_id: bytes, count: int) -> list[str]:
    return [f"vkv:{{{digest.hex()}}}:{write_id.hex()}:{number}" for number in range(count)]


class RedisTier:
    """`budget` bounds the bytes of all records; 0 leaves that to the server's `maxmemory`. `timeout` in
    seconds."""

    name = "redis"

    def __init__(
        self, url: str, budget: int = 0, policy: Policy = lru, *, cluster: bool = False, timeout: float = 0.25
    ) -> None:
        self._budget = budget
        self._policy = policy
        self._timeout = timeout
        self._link = RedisLink(url, cluster, timeout)
        self._index = Index()
        self._counters = TierCounters(self.name)
        self._touched: dict[bytes, int] = {}
        self._touch_lock = threading.Lock()
        self._put_lock = threading.Lock()
        self._serial = SerialThread("store-redis-uses", self._write_down, _WRITE_DOWN_SECONDS)

    def get(self, digest: bytes, sink: Sink, count: bool = True) -> bool:
        started = time.perf_counter()
        counters = self._counters if count else TierCounters(self.name)
        try:
            nbytes = self._link.run(lambda client: self._push(client, digest, sink))
        except Rejected as error:
            counters.rejected(error.reason)
            raise
        except TierUnavailable:
            counters.miss("unavailable")
            raise
        if nbytes is None:
            counters.miss("absent")
            self._index.remove(digest)
            return False
        counters.hit(nbytes, time.perf_counter() - started)
        return True

    def put(self, record: Record, when: float, hold: HoldOf, replace: bool = False) -> None:
        started = time.perf_counter()
        with self._put_lock:
            if self.contains(record.digest):
                if not replace:
                    return
                self._link.run(lambda client: self._unlink(client, record.digest))
            if self._budget:
                self._make_room(record, when, hold)
            self._link.run(lambda client: self._write(client, record, when))
            self._index.add(Row(record.digest, record.manifest.info, record.nbytes, when))
        self._counters.wrote(record.nbytes, time.perf_counter() - started)

    def delete(self, digest: bytes, reason: str | None = None) -> bool:
        found = self._link.run(lambda client: self._unlink(client, digest))
        if found and reason:
            self._counters.evicted(reason)
        return found

    def contains(self, digest: bytes) -> bool:
        return bool(self._link.run(lambda client: client.exists(_manifest_key(digest))))

    def touch(self, digest: bytes, when: float) -> None:
        """Written down every few seconds; lost if the server is away."""
        if self._index.touch(digest, when) is not None:
            with self._touch_lock:
                self._touched[digest] = self._touched.get(digest, 0) + 1
            self._serial.start()

    def row(self, digest: bytes) -> Row | None:
        if self._index.get(digest) is None:
            self._refresh()
        return self._index.get(digest)

    def rows(self) -> list[Row]:
        """What the index lists; a record that the server evicted stays listed until somebody asks for it."""
        self._refresh()
        return self._index.rows()

    def stats(self) -> TierStats:
        physical = 0
        try:
            self._refresh()
            physical = self._link.run(_used_memory)
        except TierError as error:
            _log.debug("no figures from the server: %s", error)
        return self._counters.stats(
            self._link.available, len(self._index), self._index.nbytes, physical, self._budget
        )

    def problems(self) -> tuple[str, ...]:
        return () if self._link.available else ("redis does not answer",)

    def flush(self) -> None:
        with self._touch_lock:
            touched, self._touched = self._touched, {}
        rows = [row for digest in touched if (row := self._index.get(digest)) is not None]
        if rows:
            self._link.run(lambda client: self._write_uses(client, rows, touched))

    def compact(self) -> int:
        return 0

    def close(self) -> None:
        self._write_down()
        self._serial.close()
        self._link.close()

    def _write_down(self) -> None:
        if not self._link.available:
            return
        try:
            self.flush()
        except TierError as error:
            _log.info("uses of entries are not written down: %s", error)

    def _push(self, client: Any, digest: bytes, sink: Sink) -> int | None:
        """Bytes pushed, None if there is no such record."""
        started = time.monotonic()
        head = client.get(_manifest_key(digest))
        if head is None:
            return None
        manifest = sink.manifest(memoryview(head)[_ID_BYTES:])
        keys = _piece_keys(digest, head[:_ID_BYTES], len(manifest.pieces))
        deadline = started + self._timeout + manifest.payload_bytes / _LEAST_RATE
        for first in range(0, len(keys), _WINDOW):
            if time.monotonic() > deadline:
                raise TierUnavailable("slow", f"{first} of {len(keys)} pieces in time")
            pipeline = client.pipeline(transaction=False)
            for key in keys[first : first + _WINDOW]:
                pipeline.get(key)
            for number, piece in enumerate(pipeline.execute(), first):
                if piece is not None:
                    sink.piece(piece)
                elif client.get(_manifest_key(digest)) == head:
                    raise Rejected("torn", f"piece {number} is missing")
                else:
                    # Removed or replaced meanwhile, by somebody who had every right to.
                    return None
        return manifest.payload_bytes

    def _write(self, client: Any, record: Record, when: float) -> None:
        digest, write_id = record.digest, os.urandom(_ID_BYTES)
        pieces = list(record.pieces())
        keys = _piece_keys(digest, write_id, len(pieces))
        try:
            for first in range(0, len(pieces), _WINDOW):
                pipeline = client.pipeline(transaction=False)
                for key, piece in zip(
                    keys[first : first + _WINDOW], pieces[first : first + _WINDOW], strict=True
                ):
                    pipeline.set(key, piece, ex=_HALF_WRITTEN_SECONDS)
                pipeline.execute()
            client.zadd(_USED, {digest: when})
            published = client.set(_manifest_key(digest), write_id + record.head, nx=True)
        except OutOfMemoryError:
            _unlink_all(client, keys)
            raise
        if not published:
            _unlink_all(client, keys)
            return
        pipeline = client.pipeline(transaction=False)
        for key in keys:
            pipeline.persist(key)
        pipeline.execute()

    def _unlink(self, client: Any, digest: bytes) -> bool:
        """Remove a record; False if there was none."""
        head = client.getdel(_manifest_key(digest))
        client.zrem(_USED, digest)
        client.hdel(_HITS, digest)
        self._index.remove(digest)
        if head is None:
            return False
        try:
            count = len(parse(head[_ID_BYTES:]).pieces)
        except Rejected:
            # How many pieces there are is lost with the manifest; no record has more than this.
            count = _MOST_PIECES
        _unlink_all(client, _piece_keys(digest, head[:_ID_BYTES], count))
        return True

    def _make_room(self, record: Record, when: float, hold: HoldOf) -> None:
        if record.nbytes > self._budget:
            raise TierFull("too_large", f"{record.nbytes} bytes, budget {self._budget}")
        self._refresh()
        need = self._index.nbytes + record.nbytes - self._budget
        if need <= 0:
            return
        victims = choose(self._index.rows(), need, self._policy, when, hold)
        if sum(row.bytes for row in victims) < need:
            raise TierFull("held", "all that could be evicted is in use or pinned")
        for row in victims:
            self.delete(row.digest, "budget")

    def _refresh(self) -> None:
        """Have the index agree with the server's, which other machines change."""
        rows = self._link.run(self._listed)
        self._index.reset(rows)

    def _listed(self, client: Any) -> list[Row]:
        used = dict(client.zrange(_USED, 0, -1, withscores=True))
        known = {digest: row for digest in used if (row := self._index.get(digest)) is not None}
        fresh = [digest for digest in used if digest not in known]
        for first in range(0, len(fresh), _LISTING_WINDOW):
            window = fresh[first : first + _LISTING_WINDOW]
            known |= self._fetch_rows(client, window, used)
        return list(known.values())

    def _fetch_rows(self, client: Any, digests: list[bytes], used: dict[bytes, float]) -> dict[bytes, Row]:
        pipeline = client.pipeline(transaction=False)
        for digest in digests:
            pipeline.get(_manifest_key(digest))
            pipeline.hget(_HITS, digest)
        replies = pipeline.execute()
        rows = {}
        for digest, head, hits in zip(digests, replies[::2], replies[1::2], strict=True):
            if head is None:
                # Evicted by the server, unless it is just being written: that is listed a moment before it is
                # there.
                if used[digest] < time.time() - _HALF_WRITTEN_SECONDS:
                    client.zrem(_USED, digest)
                continue
            try:
                manifest = parse(head[_ID_BYTES:])
            except Rejected as error:
                self._counters.rejected(error.reason)
                self._unlink(client, digest)
                continue
            size = len(head) - _ID_BYTES + manifest.payload_bytes
            rows[digest] = Row(digest, manifest.info, size, used[digest], int(hits or 0))
        return rows

    def _write_uses(self, client: Any, rows: list[Row], touched: dict[bytes, int]) -> None:
        pipeline = client.pipeline(transaction=False)
        # xx: a record that was removed meanwhile must not come back into the index.
        pipeline.zadd(_USED, {row.digest: row.last_used for row in rows}, xx=True, gt=True)
        for row in rows:
            pipeline.hincrby(_HITS, row.digest, touched[row.digest])
        pipeline.execute()


def _unlink_all(client: Any, keys: list[str]) -> None:
    for first in range(0, len(keys), _UNLINK_WINDOW):
        client.unlink(*keys[first : first + _UNLINK_WINDOW])


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
