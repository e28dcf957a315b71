"""Records in this process's memory."""

from __future__ import annotations

import threading
import time

from store.errors import Rejected, TierFull, TierUnavailable
from store.records.header import PIECE_BYTES
from store.records.record import Record
from store.residency.counters import TierCounters
from store.residency.eviction import POLICIES, HoldOf, Policy, choose, lru
from store.residency.index import Index, Row
from store.settings import StoreSettings
from store.tiers.protocol import Sink, TierKind, register, sealed
from store.types import TierStats


@sealed
class MemoryTier:
    """Keeps records as bytes of its own under a byte budget that is never exceeded."""

    name = "memory"

    def __init__(self, budget: int, policy: Policy = lru) -> None:
        self._budget = budget
        self._policy = policy
        self._records: dict[bytes, tuple[bytes, bytes]] = {}
        self._index = Index()
        self._counters = TierCounters(self.name)
        self._lock = threading.Lock()
        self._closed = False

    def get(self, digest: bytes, sink: Sink, count: bool = True) -> bool:
        started = time.perf_counter()
        counters = self._counters if count else TierCounters(self.name)
        self._check_open()
        held = self._records.get(digest)
        if held is None:
            counters.miss("absent")
            return False
        head, payload = held
        try:
            sink.manifest(head)
            view = memoryview(payload)
            for start in range(0, len(payload), PIECE_BYTES):
                sink.piece(view[start : start + PIECE_BYTES])
        except Rejected as error:
            counters.rejected(error.reason)
            raise
        counters.hit(len(payload), time.perf_counter() - started)
        return True

    def put(self, record: Record, when: float, hold: HoldOf, replace: bool = False) -> None:
        started = time.perf_counter()
        self._check_open()
        if self.contains(record.digest) and not replace:
            return
        if record.nbytes > self._budget:
            raise TierFull("too_large", f"{record.nbytes} bytes, budget {self._budget}")
        payload = record.payload.tobytes()
        with self._lock:
            self._drop(record.digest)
            self._make_room(record.nbytes, when, hold)
            self._records[record.digest] = (record.head, payload)
            self._index.add(Row(record.digest, record.manifest.info, record.nbytes, when))
        self._counters.wrote(record.nbytes, time.perf_counter() - started)

    def delete(self, digest: bytes, reason: str | None = None) -> bool:
        self._check_open()
        with self._lock:
            found = self._drop(digest)
        if found and reason:
            self._counters.evicted(reason)
        return found

    def contains(self, digest: bytes) -> bool:
        self._check_open()
        return digest in self._records

    def touch(self, digest: bytes, when: float) -> None:
        self._index.touch(digest, when)

    def row(self, digest: bytes) -> Row | None:
        return self._index.get(digest)

    def rows(self) -> list[Row]:
        return self._index.rows()

    def stats(self) -> TierStats:
        used = self._index.nbytes
        return self._counters.stats(not self._closed, len(self._index), used, used, self._budget)

    def problems(self) -> tuple[str, ...]:
        return ()

    def flush(self) -> None:
        """Nothing is put off."""

    def compact(self) -> int:
        return 0

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._records.clear()
            self._index.reset(())

    def _check_open(self) -> None:
        if self._closed:
            raise TierUnavailable("closed")

    def _make_room(self, nbytes: int, now: float, hold: HoldOf) -> None:
        self._index.settle(now)
        need = self._index.nbytes + nbytes - self._budget
        if need <= 0:
            return
        victims = choose(self._index.rows(), need, self._policy, now, hold)
        if sum(row.bytes for row in victims) < need:
            raise TierFull("held", "all that could be evicted is in use or pinned")
        for row in victims:
            self._drop(row.digest)
        self._counters.evicted("budget", len(victims))

    def _drop(self, digest: bytes) -> bool:
        self._index.remove(digest)
        return self._records.pop(digest, None) is not None


def _build(settings: StoreSettings) -> MemoryTier | None:
    if not settings.memory_bytes:
        return None
    return MemoryTier(settings.memory_bytes, POLICIES[settings.eviction])


register(TierKind(MemoryTier.name, rank=0, persistent=False, build=_build))
