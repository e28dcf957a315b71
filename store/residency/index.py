"""What a tier holds, in memory: the table behind listing, budgets and eviction."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace

from store.records.header import RecordInfo


@dataclass(frozen=True, slots=True)
class Row:
    """One record of a tier. `bytes` is manifest and payload, `last_used` seconds since the epoch."""

    digest: bytes
    info: RecordInfo
    bytes: int
    last_used: float
    hits: int = 0


class Index:
    """Rows by digest with a running total. Thread-safe; rows are values and may be kept."""

    def __init__(self) -> None:
        self._rows: dict[bytes, Row] = {}
        self._bytes = 0
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
        """Add or replace."""
        with self._lock:
            old = self._rows.get(row.digest)
            self._bytes += row.bytes - (old.bytes if old else 0)
            self._rows[row.digest] = row

    def remove(self, digest: bytes) -> Row | None:
        with self._lock:
            row = self._rows.pop(digest, None)
            self._bytes -= row.bytes if row else 0
            return row

    def touch(self, digest: bytes, when: float) -> Row | None:
        """Count a use; the new row, None if there is none."""
        with self._lock:
            row = self._rows.get(digest)
            if row is None:
                return None
            row = replace(row, last_used=max(when, row.last_used), hits=row.hits + 1)
            self._rows[digest] = row
            return row

    def reset(self, rows: Iterable[Row]) -> None:
        with self._lock:
            self._rows = {row.digest: row for row in rows}
            self._bytes = sum(row.bytes for row in self._rows.values())
