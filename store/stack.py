"""The byte tiers as one: read in order, written behind."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal

from store.codecs.protocol import Format, Prepared
from store.errors import CodecError, Rejected, TierError
from store.reading import EntryReader
from store.records.buffers import BufferPool
from store.records.header import RecordInfo
from store.records.keys import RecordKey, owner
from store.records.record import Record, build
from store.residency.decoded import E, Slot
from store.residency.eviction import HoldOf, Policy, lru
from store.tiers.health import Health
from store.tiers.protocol import Tier
from store.tiers.quota import make_room
from store.tiers.serial import Work
from store.writer import Job, WriteBehind

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[E]):
    """An entry from a tier. `bytes` is the size of its record."""

    entry: E
    info: RecordInfo
    bytes: int
    tier: str


@dataclass(frozen=True, slots=True)
class Missed:
    outcome: Literal["miss", "outdated", "corrupt"]
    reason: str


class TierStack:
    """Nothing here raises for what a tier did: a failing tier is noted and passed over."""

    def __init__(
        self,
        tiers: Sequence[Tier],
        buffers: BufferPool,
        hold: HoldOf,
        quota: Callable[[str], int | None],
        queue_bytes: int,
        policy: Policy = lru,
        chore: Work = lambda: None,
    ) -> None:
        self.tiers = tuple(tiers)
        self.health = Health()
        self.writer: WriteBehind[Slot[Any]] = WriteBehind(queue_bytes, chore)
        self._buffers = buffers
        self._hold = hold
        self._quota = quota
        self._policy = policy
        self._dropped: Counter[str] = Counter()
        self._lock = threading.Lock()

    def load(self, key: RecordKey, codec: Format[E], layout: object, when: float) -> Loaded[E] | Missed:
        """From the first tier that has a sound record of that layout (None: any); it is written to those before in the
        background, and what was not sound is removed there."""
        missed = Missed("miss", "absent")
        for place, tier in enumerate(self.tiers):
            reader = EntryReader(key, codec, layout, self._buffers)
            try:
                found = tier.get(reader.digest, reader)
                self.health.worked(tier.name)
                if found:
                    entry, record = reader.loaded()
                    self._promote(record, when, self.tiers[:place])
                    return Loaded(entry, record.manifest.info, record.nbytes, tier.name)
            except Rejected as error:
                missed = _worse(missed, tier, error.reason, str(error))
                self._discard(tier, reader.digest)
            except TierError as error:
                self.health.failed(tier.name, error)
                if missed.outcome == "miss":
                    missed = Missed("miss", f"{tier.name} {error.reason}")
        return missed

    def store(
        self, slot: Slot[E], codec: Format[E], prepared: Prepared[E], replace: bool, yielding: bool = False
    ) -> bool:
        """Queue an entry for all tiers; False if there is no room to wait. `yielding`: half of it is left to others."""

        def write() -> None:
            try:
                record = build(slot.digest, codec.identity, prepared.pack(), slot.info, self._buffers)
            except CodecError as error:
                _log.error("entry %s cannot be encoded: %s", slot.digest.hex(), error)
                self._drop("codec")
                return
            except MemoryError:
                self._drop("no_memory")
                return
            self._put(record, slot.last_used, self.tiers, replace)

        full = yielding and self.writer.crowded
        taken = not self.tiers or (not full and self.writer.offer(Job(slot.digest, slot.bytes, write, slot)))
        if not taken:
            self._drop("queue_full")
        return taken

    def refuse(self, slot: Slot[E]) -> None:
        """Not store an entry that may not be kept."""
        _log.error("entry %s is not finite", slot.digest.hex())
        self._drop("not_finite")

    def discard(self, digest: bytes) -> None:
        """In the background, from all tiers."""
        for tier in self.tiers:
            self._discard(tier, digest)

    def contains(self, digest: bytes) -> bool:
        """Whether a tier has it: counts as no miss."""
        for tier in self.tiers:
            with self.health.noting(tier.name):
                if tier.contains(digest):
                    return True
        return False

    def remove(self, digest: bytes, tiers: Sequence[Tier], reason: str | None = None) -> bool:
        """Now, from all of `tiers`."""
        found = False
        for tier in tiers:
            with self.health.noting(tier.name):
                found |= tier.delete(digest, reason)
        return found

    def touch(self, digest: bytes, when: float) -> None:
        for tier in self.tiers:
            with self.health.noting(tier.name):
                tier.touch(digest, when)

    def flush(self, timeout: float | None) -> bool:
        return self.writer.flush(timeout)

    @property
    def dropped(self) -> dict[str, int]:
        """Writes that were not done, by reason."""
        with self._lock:
            return dict(self._dropped)

    def close(self, timeout: float) -> None:
        self.writer.close(timeout)
        for tier in self.tiers:
            with self.health.noting(tier.name):
                tier.close()

    def _promote(self, record: Record, when: float, tiers: Sequence[Tier]) -> None:
        if not tiers:
            return

        def write() -> None:
            self._put(record, when, tiers, replace=False)

        if not self.writer.offer(Job(record.digest, record.nbytes, write)):
            self._drop("queue_full")

    def _put(self, record: Record, when: float, tiers: Sequence[Tier], replace: bool) -> None:
        for tier in tiers:
            try:
                quota = self._quota(owner(record.manifest.info.tenant))
                if quota is not None:
                    make_room(tier, record, quota, when, self._policy, self._hold)
                tier.put(record, when, self._hold, replace)
                self.health.worked(tier.name)
            except TierError as error:
                self.health.failed(tier.name, error)
                self._drop(error.reason)

    def _discard(self, tier: Tier, digest: bytes) -> None:
        def delete() -> None:
            with self.health.noting(tier.name):
                tier.delete(digest)

        if not self.writer.offer(Job(digest, 0, delete)):
            self._drop("queue_full")

    def _drop(self, reason: str) -> None:
        with self._lock:
            self._dropped[reason] += 1


def _worse(missed: Missed, tier: Tier, reason: str, detail: str) -> Missed:
    """A damaged record outweighs an outdated one, and both an absent one. A torn record counts as corrupt."""
    if missed.outcome == "corrupt":
        return missed
    return Missed("outdated" if reason == "outdated" else "corrupt", f"{tier.name} {detail}")
