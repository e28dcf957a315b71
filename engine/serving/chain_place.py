"""Chains in memory as the operator sees them: one more place where records lie."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from engine.chains.held import Held
from engine.serving.runtime import Runtime
from store.records.header import RecordInfo
from store.residency.index import Row


class ChainPlace:
    """A `Place` of the store. Thread-safe."""

    name = "chain"

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        # Every look at the figures asks for all rows.
        self._infos: WeakKeyDictionary[Held, RecordInfo] = WeakKeyDictionary()

    def rows(self) -> list[Row]:
        return [self._row(held) for held in self._runtime.chains.every()]

    def row(self, digest: bytes) -> Row | None:
        held = self._runtime.chains.of_digest(digest)
        return None if held is None else self._row(held)

    def leased(self, digest: bytes) -> bool:
        held = self._runtime.chains.of_digest(digest)
        return held is not None and held.leases > 0

    def remove(self, digest: bytes, reason: str | None = None) -> bool:
        return self._runtime.chains.evict(digest, reason or "removed")

    def _row(self, held: Held) -> Row:
        info = self._infos.get(held)
        if info is None:
            key = self._runtime.segment_key(held.tenant, held.segment.name, held.quality)
            info = self._infos[held] = RecordInfo.of(key, held.segment.tokens, held.created, 0.0)
        return Row(held.digest, info, held.nbytes, held.last_used, held.uses)
