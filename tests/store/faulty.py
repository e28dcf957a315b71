"""A tier that misbehaves on demand."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from store.errors import TierFull, TierUnavailable
from store.records.header import Manifest
from store.records.record import Record
from store.residency.eviction import HoldOf
from store.residency.index import Row
from store.tiers.protocol import Sink, Tier
from store.types import TierStats


class FaultyTier:
    """Wraps a tier and does `fault` to every call until it is set to None.

    error: unavailable. full: no room. flip: one bit of each piece read is wrong. short: the last piece is
    cut. drop: the last piece is missing. Calls to `get` and `put` wait for the gates, which are open unless a
    test clears them.
    """

    def __init__(self, inner: Tier, fault: str | None = None) -> None:
        self.inner = inner
        self.fault = fault
        self.read_gate = threading.Event()
        self.write_gate = threading.Event()
        self.read_gate.set()
        self.write_gate.set()
        self.reads = 0
        self.writes = 0

    @property
    def name(self) -> str:
        return self.inner.name

    def get(self, digest: bytes, sink: Sink, count: bool = True) -> bool:
        self.reads += 1
        self.read_gate.wait()
        self._fail()
        if self.fault in ("flip", "short", "drop"):
            return self.inner.get(digest, _DamagingSink(sink, self.fault), count)
        return self.inner.get(digest, sink, count)

    def put(self, record: Record, when: float, hold: HoldOf, replace: bool = False) -> None:
        self.writes += 1
        self.write_gate.wait()
        self._fail()
        if self.fault == "full":
            raise TierFull("full")
        self.inner.put(record, when, hold, replace)

    def delete(self, digest: bytes, reason: str | None = None) -> bool:
        self._fail()
        return self.inner.delete(digest, reason)

    def contains(self, digest: bytes) -> bool:
        self._fail()
        return self.inner.contains(digest)

    def touch(self, digest: bytes, when: float) -> None:
        self._fail()
        self.inner.touch(digest, when)

    def row(self, digest: bytes) -> Row | None:
        self._fail()
        return self.inner.row(digest)

    def rows(self) -> Iterable[Row]:
        self._fail()
        return self.inner.rows()

    def stats(self) -> TierStats:
        self._fail()
        return self.inner.stats()

    def problems(self) -> tuple[str, ...]:
        self._fail()
        return self.inner.problems()

    def flush(self) -> None:
        self._fail()
        self.inner.flush()

    def compact(self) -> int:
        self._fail()
        return self.inner.compact()

    def close(self) -> None:
        self._fail()
        self.inner.close()

    def _fail(self) -> None:
        if self.fault == "error":
            raise TierUnavailable("injected")


class _DamagingSink:
    def __init__(self, sink: Sink, fault: str) -> None:
        self._sink = sink
        self._fault = fault
        self._left = 0

    def manifest(self, raw: bytes | memoryview) -> Manifest:
        manifest = self._sink.manifest(raw)
        self._left = len(manifest.pieces)
        return manifest

    def piece(self, data: bytes | memoryview) -> None:
        self._left -= 1
        damaged = bytearray(data)
        if self._fault == "flip":
            damaged[len(damaged) // 2] ^= 1
        elif self._left == 0 and self._fault == "short":
            del damaged[-1:]
        elif self._left == 0:
            return
        self._sink.piece(bytes(damaged))
