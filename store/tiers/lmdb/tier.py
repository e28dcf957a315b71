"""Records on disk, in LMDB.

Freed pages can be used one commit later, so room is made, and a commit put in between, before anything is
written. Commits are not synced: a power cut may lose records, and checksums (or the look at the file before
it is opened) tell. A record takes several commits; what a write leaves behind that failed in between counts towards
the budget until it is removed.

One thread writes. Reads copy out of the map inside their transaction.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from store.errors import Rejected, RejectReason, TierError, TierFull
from store.records.record import Record
from store.residency.counters import TierCounters
from store.residency.eviction import POLICIES, HoldOf, Policy, choose, lru
from store.residency.index import Row
from store.settings import StoreSettings
from store.tiers.lmdb import records
from store.tiers.lmdb.environment import Environment
from store.tiers.lmdb.table import Table
from store.tiers.protocol import Sink, TierKind, register, sealed
from store.tiers.serial import SerialThread
from store.types import TierStats

_log = logging.getLogger(__name__)

_READ_ONLY_SECONDS = 60.0
_HEADROOM = 0.28
_MIN_HEADROOM = 16 << 20


@sealed
class LmdbTier:
    """`budget` bounds the bytes of all records; the file may be up to 1.28 times as large (at least 16 MiB
    more)."""

    name = "lmdb"

    def __init__(
        self,
        path: Path,
        budget: int,
        policy: Policy = lru,
        map_size: int | None = None,
        chore_seconds: float = 15.0,
    ) -> None:
        self._budget = budget
        self._policy = policy
        headroom = max(int(budget * _HEADROOM), _MIN_HEADROOM)
        map_size = map_size or (budget + headroom) // 4096 * 4096
        self._environment = Environment(path, records.DATABASES, map_size)
        self._serial = SerialThread("store-lmdb-writer", self._chore, chore_seconds)
        self._table = Table(self._environment)
        self._counters = TierCounters(self.name)
        self._read_only_until = 0.0

    def get(self, digest: bytes, sink: Sink, count: bool = True) -> bool:
        started = time.perf_counter()
        counters = self._counters if count else TierCounters(self.name)
        try:
            with self._environment.read() as (transaction, opened):
                nbytes = records.push(transaction, opened, digest, sink)
        except Rejected as error:
            if count:
                self._reject(digest, error.reason)
            raise
        except TierError:
            counters.miss("unavailable")
            raise
        if nbytes is None:
            counters.miss("absent")
            return False
        counters.hit(nbytes, time.perf_counter() - started)
        return True

    def put(self, record: Record, when: float, hold: HoldOf, replace: bool = False) -> None:
        started = time.perf_counter()
        if self._serial.run(lambda: self._put(record, when, hold, replace)):
            self._counters.wrote(record.nbytes, time.perf_counter() - started)

    def delete(self, digest: bytes, reason: str | None = None) -> bool:
        found = self._serial.run(lambda: self._table.delete([digest]))
        if found and reason:
            self._counters.evicted(reason)
        return found

    def contains(self, digest: bytes) -> bool:
        with self._environment.read() as (transaction, opened):
            return transaction.get(digest, db=opened["records"]) is not None

    def touch(self, digest: bytes, when: float) -> None:
        if not self._table.known:
            # After a restart what is read is used before the index has been.
            self._serial.post(lambda: _attempt(lambda: self._touch_late(digest, when)))
        elif self._table.index.touch(digest, when) is not None:
            self._serial.start()

    def row(self, digest: bytes) -> Row | None:
        self._load()
        return self._table.index.get(digest)

    def rows(self) -> list[Row]:
        self._load()
        return self._table.index.rows()

    def stats(self) -> TierStats:
        try:
            self._load()
            available = True
        except TierError:
            available = False
        physical = self._environment.physical_bytes()
        return self._counters.stats(
            available, len(self._table.index), self._table.index.nbytes, physical, self._budget
        )

    def problems(self) -> tuple[str, ...]:
        short = time.monotonic() < self._read_only_until
        alarm = ("the file system is short of space: the disk tier is read-only",) if short else ()
        return (*self._environment.problems, *alarm)

    def flush(self) -> None:
        self._serial.run(self._write_usage)

    def compact(self) -> int:
        """Copy what is live to a new file and use that; needs room for it. Reads and writes wait
        meanwhile."""
        self._load()
        return self._serial.run(self._environment.compact)

    def close(self) -> None:
        if self._environment.opened_by is not None:
            self._serial.run(self._chore)
        self._serial.close()
        self._environment.close()

    def sync(self) -> None:
        """Have the system write all commits to disk. The tier does so from time to time on its own."""
        self._serial.run(self._environment.sync)

    @property
    def opened_by(self) -> int | None:
        """Id of the process that has the environment open."""
        return self._environment.opened_by

    def _reject(self, digest: bytes, reason: RejectReason) -> None:
        """A damaged record counts once, however often it is met before it is gone."""
        if self._table.condemn(digest):
            self._counters.rejected(reason)
        else:
            self._counters.miss(reason)

    def _load(self) -> None:
        found = self._table.load()
        for digest, reason in found.damaged.items():
            self._reject(digest, reason)
        if found.damaged:
            self._serial.run(lambda: self._table.delete_damaged(found.damaged))
        if found.first:
            self._serial.run(self._table.sweep_foreign)

    # What follows runs on the writer thread.

    def _touch_late(self, digest: bytes, when: float) -> None:
        self._load()
        self._table.index.touch(digest, when)

    def _put(self, record: Record, when: float, hold: HoldOf, replace: bool) -> bool:
        """False if it was there."""
        self._load()
        if self._table.index.get(record.digest) is not None and not replace:
            return False
        if record.nbytes > self._budget:
            raise TierFull("too_large", f"{record.nbytes} bytes, budget {self._budget}")
        if time.monotonic() < self._read_only_until:
            raise TierFull("read_only", "the file system is short of space")
        self._table.index.settle(when)
        try:
            self._store(record, when, hold)
        except TierError:
            _attempt(self._table.sweep)
            raise
        return True

    def _store(self, record: Record, when: float, hold: HoldOf) -> None:
        try:
            self._table.sweep()
            if self._table.present(record.digest):
                self._table.delete([record.digest])
            self._make_room(self._table.held + record.nbytes - self._budget, when, hold, "budget")
            self._table.write(record, when)
        except TierFull as error:
            if error.reason not in ("map_full", "disk_full"):
                raise
            self._retry(record, when, hold, error.reason)

    def _retry(self, record: Record, when: float, hold: HoldOf, reason: str) -> None:
        """Once more, with more room. If it is the file system that has none, give up writing for a while."""
        # Readers that were killed pin every page freed since; the timer may not have come to them yet.
        self._environment.check_readers()
        roomier = reason == "disk_full" and self._environment.discard_aside()
        try:
            self._table.delete([record.digest])
            if not roomier:
                more = max(2 * record.nbytes, self._table.index.nbytes // 8)
                self._make_room(more, when, hold, reason, at_least=False)
            self._table.write(record, when)
        except TierFull as error:
            if error.reason == "disk_full":
                _log.error("file system is short of space: %s is read-only", self.name)
                self._read_only_until = time.monotonic() + _READ_ONLY_SECONDS
            raise

    def _make_room(self, need: int, when: float, hold: HoldOf, reason: str, at_least: bool = True) -> None:
        if need <= 0:
            return
        # A little more than needed, so that not every write begins with an eviction.
        victims = choose(self._table.index.rows(), need + self._budget // 32, self._policy, when, hold)
        if at_least and sum(row.bytes for row in victims) < need:
            raise TierFull("held", "all that could be evicted is in use or pinned")
        if victims:
            self._table.delete([row.digest for row in victims])
            self._counters.evicted(reason, len(victims))
        self._table.bump()

    def _write_usage(self) -> None:
        self._load()
        self._table.write_usage()

    def _chore(self) -> None:
        table, environment = self._table, self._environment
        steps = (
            self._write_usage,
            table.sweep,
            table.sweep_foreign,
            environment.check_readers,
            environment.sync,
        )
        put_off = {str(error) for step in steps if (error := _attempt(step)) is not None}
        if put_off:
            _log.warning("%s: put off, uses of entries may be lost: %s", self.name, "; ".join(put_off))


def _attempt(step: Callable[[], object]) -> TierError | None:
    """What does not work now is done another time."""
    try:
        step()
    except TierError as error:
        return error
    return None


def _build(settings: StoreSettings) -> LmdbTier | None:
    if settings.path is None or not settings.disk_bytes:
        return None
    return LmdbTier(settings.path, settings.disk_bytes, POLICIES[settings.eviction])


register(TierKind(LmdbTier.name, rank=1, persistent=True, build=_build))
