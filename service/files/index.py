"""Which files there are, in memory: whose they are, how much each tenant holds, and what is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from service.files.record import FileRecord


class FileIndex:
    """A file whose time is over is not found any more, also before it is removed. `now` is in seconds since the
    epoch."""

    def __init__(self) -> None:
        self._records: dict[str, dict[str, FileRecord]] = {}
        self._bytes: Counter[str] = Counter()

    def __iter__(self) -> Iterator[FileRecord]:
        for records in self._records.values():
            yield from records.values()

    def count(self, tenant: str) -> int:
        return len(self._records.get(tenant, {}))

    def bytes(self, tenant: str) -> int:
        return self._bytes[tenant]

    def add(self, record: FileRecord) -> None:
        self._records.setdefault(record.tenant, {})[record.id] = record
        self._bytes[record.tenant] += record.bytes

    def remove(self, record: FileRecord) -> bool:
        """False if it was not there."""
        records = self._records.get(record.tenant, {})
        if records.pop(record.id, None) is None:
            return False
        self._bytes[record.tenant] -= record.bytes
        if not records:
            del self._records[record.tenant]
        return True

    def find(self, tenant: str, name: str, now: float) -> FileRecord | None:
        record = self._records.get(tenant, {}).get(name)
        return None if record is None or _over(record, now) else record

    def of(self, tenant: str, now: float) -> list[FileRecord]:
        """The tenant's files, oldest first."""
        found = (record for record in self._records.get(tenant, {}).values() if not _over(record, now))
        return sorted(found, key=lambda record: (record.created_at, record.id))

    def over(self, now: float) -> list[FileRecord]:
        """Everybody's files whose time is over."""
        return [record for record in self if _over(record, now)]


def _over(record: FileRecord, now: float) -> bool:
    return record.expires_at is not None and record.expires_at <= now
