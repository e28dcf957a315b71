"""Entries ready to use, above the tiers."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from store.codecs.protocol import Prepared
from store.records.header import RecordInfo
from store.residency.counters import TierCounters
from store.residency.index import Row
from store.types import TierStats


class Entry(Protocol):
    """What the store needs to know of an entry."""

    @property
    def nbytes(self) -> int: ...

    @property
    def tokens(self) -> int: ...


E = TypeVar("E", bound=Entry)


@dataclass(frozen=True, slots=True)
class Slot(Generic[E]):
    """A decoded entry. `bytes` is the size of its record. `unwritten` is set while it is in no tier by
    intent."""

    digest: bytes
    entry: E
    info: RecordInfo
    bytes: int
    last_used: float
    hits: int = 0
    unwritten: Prepared[E] | None = None

    def row(self) -> Row:
        return Row(self.digest, self.info, self.bytes, self.last_used, self.hits)


class Place(Protocol):
    """Where records, or what they would hold, are ready for use: what an operator may see and remove there."""

    @property
    def name(self) -> str: ...

    def rows(self) -> list[Row]: ...

    def row(self, digest: bytes) -> Row | None: ...

    def leased(self, digest: bytes) -> bool:
        """Whether somebody uses it at this moment."""
        ...

    def remove(self, digest: bytes, reason: str | None = None) -> bool:
        """False if it was not there. Who uses it keeps it. A `reason` makes it count as an eviction."""
        ...


class DecodedCache(Generic[E]):
    """Least recently used out first, but for entries in use: evicting those frees nothing. Thread-safe."""

    name = "decoded"

    def __init__(self, budget: int, leased: Callable[[bytes], bool]) -> None:
        self._budget = budget
        self._leased = leased
        self._slots: OrderedDict[bytes, Slot[E]] = OrderedDict()
        self._bytes = 0
        self._counters = TierCounters(self.name)
        self._lock = threading.Lock()

    def get(self, digest: bytes, now: float, count: bool = True) -> Slot[E] | None:
        """The slot, counted as used; `count` is whether it shows in hits and misses."""
        with self._lock:
            slot = self._slots.get(digest)
            if slot is not None:
                slot = self._slots[digest] = replace(slot, last_used=now, hits=slot.hits + 1)
                self._slots.move_to_end(digest)
        if count and slot is None:
            self._counters.miss("absent")
        elif count and slot is not None:
            self._counters.hit(slot.entry.nbytes, 0.0)
        return slot

    def put(self, slot: Slot[E]) -> bool:
        """Add or replace; False if there is no room."""
        nbytes = slot.entry.nbytes
        with self._lock:
            self._drop(slot.digest)
            if nbytes > self._budget or not self._make_room(nbytes):
                return False
            self._slots[slot.digest] = slot
            self._bytes += nbytes
            return True

    def remove(self, digest: bytes, reason: str | None = None) -> bool:
        with self._lock:
            found = self._drop(digest)
        if found and reason:
            self._counters.evicted(reason)
        return found

    def contains(self, digest: bytes) -> bool:
        return digest in self._slots

    def leased(self, digest: bytes) -> bool:
        return self._leased(digest)

    def rows(self) -> list[Row]:
        with self._lock:
            slots = list(self._slots.values())
        return [slot.row() for slot in slots]

    def row(self, digest: bytes) -> Row | None:
        slot = self._slots.get(digest)
        return None if slot is None else slot.row()

    def stats(self) -> TierStats:
        with self._lock:
            entries, used = len(self._slots), self._bytes
        return self._counters.stats(True, entries, used, used, self._budget)

    def clear(self) -> None:
        with self._lock:
            self._slots.clear()
            self._bytes = 0

    def _make_room(self, nbytes: int) -> bool:
        excess = self._bytes + nbytes - self._budget
        victims = []
        for digest, slot in self._slots.items():
            if excess <= 0:
                break
            if not self._leased(digest):
                victims.append(digest)
                excess -= slot.entry.nbytes
        if excess > 0:
            return False
        for digest in victims:
            self._drop(digest)
        if victims:
            self._counters.evicted("budget", len(victims))
        return True

    def _drop(self, digest: bytes) -> bool:
        slot = self._slots.pop(digest, None)
        if slot is None:
            return False
        self._bytes -= slot.entry.nbytes
        return True
