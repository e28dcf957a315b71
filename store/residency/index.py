"""What a tier holds, in memory: the table behind listing, budgets and eviction."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from store.records.header import RecordInfo

# Threads tell the time before they come to note a use. Only a clock that runs back by more has been set.
_TOLERANCE_SECONDS = 60.0
_STEP_SECONDS = 1e-3


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a tier. `bytes` is manifest and payload, `last_used` seconds since the epoch."""

    digest: bytes
    info: RecordInfo
    bytes: int
    last_used: float
    hits: int = 0


class Index:
    """Rows by digest with a running total. Thread-safe; rows are values and may be kept.

    The order of uses outlives a clock that was wrong: when the time turns out to be earlier than the newest use, the
    uses that lie in the future are moved to just before now, in their order.
    """

    def __init__(self) -> None:
        self._rows: dict[bytes, Row] = {}
        self._bytes = 0
        self._newest = 0.0
        self._used: set[bytes] = set()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        """Sum of `Row.bytes`."""
        return self._bytes

    def get(self, digest: bytes) -> Row | None:
        return self._rows.get(digest)

    def rows(self) -> list[Row]:
        with self._lock:
            return list(self._rows.values())

    def add(self, row: Row) -> None:
        """Add or replace, as used now."""
        with self._lock:
            self._bytes -= self._rows[row.digest].bytes if row.digest in self._rows else 0
            self._bytes += row.bytes
            self._use(_plausible(row), row.last_used)

    def remove(self, digest: bytes) -> Row | None:
        with self._lock:
            row = self._rows.pop(digest, None)
            self._bytes -= row.bytes if row else 0
            self._used.discard(digest)
            return row

    def touch(self, digest: bytes, when: float) -> Row | None:
        """Count a use; the new row, None if there is none."""
        with self._lock:
            row = self._rows.get(digest)
            if row is None:
                return None
            self._used.add(digest)
            return self._use(replace(row, hits=row.hits + 1), when)

    def settle(self, now: float) -> None:
        """Tell the time."""
        with self._lock:
            self._settle(now)

    def take_used(self) -> list[Row]:
        """Rows whose `last_used` or `hits` changed since the last time."""
        with self._lock:
            used, self._used = self._used, set()
            return [self._rows[digest] for digest in used]

    def reset(self, rows: Iterable[Row]) -> None:
        """Have `rows` instead; what was used meanwhile stays used."""
        with self._lock:
            old = {digest: self._rows[digest] for digest in self._used}
            fresh = {row.digest: _plausible(row) for row in rows}
            fresh |= {digest: row for digest, row in old.items() if digest in fresh}
            self._rows, self._used = fresh, old.keys() & fresh.keys()
            self._bytes = sum(row.bytes for row in fresh.values())
            self._newest = max((row.last_used for row in fresh.values()), default=0.0)

    def _use(self, row: Row, when: float) -> Row:
        """Have `row`, as the one that was used last."""
        self._settle(when)
        if when < self._newest:
            # Another thread, or a clock that was a little ahead, was here first.
            when = math.nextafter(self._newest, math.inf)
            self._used.add(row.digest)
        self._newest = when
        self._rows[row.digest] = row = replace(row, last_used=when)
        return row

    def _settle(self, now: float) -> None:
        if now < self._newest - _TOLERANCE_SECONDS:
            self._turn_back(now)

    def _turn_back(self, now: float) -> None:
        """Have no row be used later than `now`, and leave them in their order."""
        rows = sorted(self._rows.values(), key=lambda row: row.last_used)
        late = [row for row in rows if row.last_used > now]
        before = max((row.last_used for row in rows if row.last_used <= now), default=-math.inf)
        last_used = max(before, now - len(late) * _STEP_SECONDS)
        step = (now - last_used) / (len(late) + 1)
        for row in late:
            last_used = math.nextafter(last_used + step, math.inf)
            self._rows[row.digest] = _plausible(replace(row, last_used=last_used))
            self._used.add(row.digest)
        self._newest = max(last_used, before)


def _plausible(row: Row) -> Row:
    """Nothing is used before it is made; a clock that was ahead at the time may have said so."""
    if row.info.created <= row.last_used:
        return row
    return replace(row, info=replace(row.info, created=row.last_used))
