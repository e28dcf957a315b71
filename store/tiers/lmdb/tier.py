"""Records on disk, in LMDB.

Three databases: `records` (digest -> manifest), `pieces` (digest + number -> bytes), `usage` (digest -> last
use, uses). A piece and LMDB's page header fill whole pages, and pieces of one size keep the file from
fragmenting. A record exists from the commit of its manifest, which comes after its pieces and goes with them.
Freed pages can be used one commit later, so room is made, and a commit put in between, before anything is
written. Commits are not synced: a power cut may lose records, and checksums (or the look at the file before
it is opened) tell.

One thread writes. Reads copy out of the map inside their transaction.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from store.errors import Rejected, RejectReason, TierError, TierFull, TierUnavailable
from store.records.header import parse
from store.records.keys import DIGEST_BYTES
from store.records.record import Record
from store.residency.counters import TierCounters
from store.residency.eviction import POLICIES, HoldOf, Policy, choose, lru
from store.residency.index import Index, Row
from store.settings import StoreSettings
from store.tiers.lmdb.environment import Environment, Opened
from store.tiers.protocol import Sink, TierKind, register, sealed
from store.tiers.serial import SerialThread
from store.types import TierStats

_log = logging.getLogger(__name__)

_DATABASES = ("records", "pieces", "usage")
_USAGE = struct.Struct("<dQ")
_NUMBER = struct.Struct(">I")
_BUMP_KEY = b"bump"
_BATCH = 16
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
        self._environment = Environment(path, _DATABASES, map_size or (budget + headroom) // 4096 * 4096)
        self._serial = SerialThread("store-lmdb-writer", self._chore, chore_seconds)
        self._index = Index()
        self._counters = TierCounters(self.name)
        self._load_lock = threading.Lock()
        self._loaded_by: int | None = None
        self._last_commit = 0
        self._read_only_until = 0.0
        self._touched: set[bytes] = set()
        self._touch_lock = threading.Lock()

    def get(self, digest: bytes, sink: Sink, count: bool = True) -> bool:
        started = time.perf_counter()
        counters = self._counters if count else TierCounters(self.name)
        try:
            with self._environment.read() as (transaction, opened):
                nbytes = _push(transaction, opened, digest, sink)
        except Rejected as error:
            counters.rejected(error.reason)
            raise
        except TierUnavailable:
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
        found = self._serial.run(lambda: self._delete([digest]))
        if found and reason:
            self._counters.evicted(reason)
        return found

    def contains(self, digest: bytes) -> bool:
        with self._environment.read() as (transaction, opened):
            return transaction.get(digest, db=opened["records"]) is not None

    def touch(self, digest: bytes, when: float) -> None:
        if self._index.touch(digest, when) is not None:
            with self._touch_lock:
                self._touched.add(digest)
            self._serial.start()

    def row(self, digest: bytes) -> Row | None:
        self._load()
        return self._index.get(digest)

    def rows(self) -> list[Row]:
        self._load()
        return self._index.rows()

    def stats(self) -> TierStats:
        try:
            self._load()
            available = True
        except TierUnavailable:
            available = False
        physical = self._environment.physical_bytes()
        return self._counters.stats(available, len(self._index), self._index.nbytes, physical, self._budget)

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

    # What follows runs on the writer thread, but for `_load`.

    def _load(self) -> None:
        """Have the index agree with the file, which other processes may have changed."""
        opened = self._environment.open()
        with self._load_lock:
            first = self._loaded_by != self._environment.opened_by
            commit = self._environment.last_transaction()
            if not first and commit == self._last_commit:
                return
            known = {} if first else {row.digest: row for row in self._index.rows()}
            rows, unreadable = self._read_rows(known)
            self._index.reset(rows)
            self._loaded_by, self._last_commit = self._environment.opened_by, commit
        for reason, digests in unreadable.items():
            self._serial.run(partial(self._delete, digests))
            for _ in digests:
                self._counters.rejected(reason)
        if first and opened.alone:
            self._serial.run(self._delete_orphans)

    def _read_rows(self, known: dict[bytes, Row]) -> tuple[list[Row], dict[RejectReason, list[bytes]]]:
        rows: list[Row] = []
        unreadable: dict[RejectReason, list[bytes]] = {}
        with self._environment.read() as (transaction, opened):
            for key, head in transaction.cursor(db=opened["records"]):
                digest = bytes(key)
                if digest in known:
                    rows.append(known[digest])
                    continue
                try:
                    manifest = parse(head)
                except Rejected as error:
                    unreadable.setdefault(error.reason, []).append(digest)
                    continue
                usage = transaction.get(digest, db=opened["usage"])
                last_used, hits = _USAGE.unpack(usage) if usage else (manifest.info.created, 0)
                size = len(head) + manifest.payload_bytes
                rows.append(Row(digest, manifest.info, size, last_used, hits))
        return rows, unreadable

    def _delete_orphans(self) -> None:
        """Pieces whose manifest was never written: the process died in between."""
        orphans = []
        with self._environment.read() as (transaction, opened):
            cursor = transaction.cursor(db=opened["pieces"])
            found = cursor.first()
            while found:
                digest = bytes(cursor.key())[:DIGEST_BYTES]
                if self._index.get(digest) is None:
                    orphans.append(digest)
                found = cursor.set_range(digest + b"\xff" * (_NUMBER.size + 1))
        if orphans:
            _log.info("%d half-written records removed", len(orphans))
            self._delete(orphans)

    def _put(self, record: Record, when: float, hold: HoldOf, replace: bool) -> bool:
        """False if it was there."""
        self._load()
        present = self._index.get(record.digest) is not None
        if present and not replace:
            return False
        if record.nbytes > self._budget:
            raise TierFull("too_large", f"{record.nbytes} bytes, budget {self._budget}")
        if time.monotonic() < self._read_only_until:
            raise TierFull("read_only", "the file system is short of space")
        if present:
            self._delete([record.digest])
        try:
            self._make_room(self._index.nbytes + record.nbytes - self._budget, when, hold, "budget")
            self._write(record, when)
        except TierFull as error:
            if error.reason not in ("map_full", "disk_full"):
                raise
            self._retry(record, when, hold, error.reason)
        return True

    def _retry(self, record: Record, when: float, hold: HoldOf, reason: str) -> None:
        """Once more, with more room. If it is the file system that has none, give up writing for a while."""
        # Readers that were killed pin every page freed since; the timer may not have come to them yet.
        self._environment.check_readers()
        try:
            self._delete([record.digest])
            more = max(2 * record.nbytes, self._index.nbytes // 8)
            self._make_room(more, when, hold, reason, at_least=False)
            self._write(record, when)
        except TierFull as error:
            if error.reason == "disk_full":
                _log.error("file system is short of space: %s is read-only", self.name)
                self._read_only_until = time.monotonic() + _READ_ONLY_SECONDS
            else:
                self._delete([record.digest])
            raise
        self._read_only_until = 0.0

    def _make_room(self, need: int, when: float, hold: HoldOf, reason: str, at_least: bool = True) -> None:
        if need <= 0:
            return
        # A little more than needed, so that not every write begins with an eviction.
        victims = choose(self._index.rows(), need + self._budget // 32, self._policy, when, hold)
        if at_least and sum(row.bytes for row in victims) < need:
            raise TierFull("held", "all that could be evicted is in use or pinned")
        if victims:
            self._delete([row.digest for row in victims])
            self._counters.evicted(reason, len(victims))
        self._commit_between()

    def _commit_between(self) -> None:
        with self._environment.write() as (transaction, opened):
            transaction.put(_BUMP_KEY, _USAGE.pack(0.0, transaction.id()), db=opened["usage"])
            self._committed(transaction.id())

    def _write(self, record: Record, when: float) -> None:
        pieces = list(record.pieces())
        for start in range(0, len(pieces), _BATCH):
            with self._environment.write() as (transaction, opened):
                for number, piece in enumerate(pieces[start : start + _BATCH], start):
                    transaction.put(record.digest + _NUMBER.pack(number), piece, db=opened["pieces"])
                self._committed(transaction.id())
        row = Row(record.digest, record.manifest.info, record.nbytes, when)
        with self._environment.write() as (transaction, opened):
            transaction.put(record.digest, _USAGE.pack(row.last_used, row.hits), db=opened["usage"])
            transaction.put(record.digest, record.head, db=opened["records"])
            self._committed(transaction.id())
        self._index.add(row)

    def _committed(self, commit: int) -> None:
        """Our own commit needs no new look at the file, unless another process came in between."""
        if commit == self._last_commit + 1:
            self._last_commit = commit

    def _delete(self, digests: Iterable[bytes]) -> bool:
        """Remove records and pieces in one commit; True if one of the records was there."""
        found = False
        with self._environment.write() as (transaction, opened):
            for digest in digests:
                found |= transaction.delete(digest, db=opened["records"])
                transaction.delete(digest, db=opened["usage"])
                cursor = transaction.cursor(db=opened["pieces"])
                more = cursor.set_range(digest)
                while more and cursor.key()[:DIGEST_BYTES] == digest:
                    more = cursor.delete()
                self._index.remove(digest)
            self._committed(transaction.id())
        return found

    def _write_usage(self) -> None:
        """Write down uses since the last time, for the order of eviction after a restart."""
        self._load()
        with self._touch_lock:
            touched, self._touched = self._touched, set()
        rows = [row for digest in touched if (row := self._index.get(digest)) is not None]
        if not rows:
            return
        with self._environment.write() as (transaction, opened):
            for row in rows:
                transaction.put(row.digest, _USAGE.pack(row.last_used, row.hits), db=opened["usage"])
            self._committed(transaction.id())

    def _chore(self) -> None:
        try:
            self._write_usage()
            self._environment.check_readers()
            self._environment.sync()
        except TierError as error:
            _log.warning("uses of entries may be lost: %s", error)


def _push(transaction: Any, opened: Opened, digest: bytes, sink: Sink) -> int | None:
    """Bytes pushed, None if there is no such record."""
    head = transaction.get(digest, db=opened["records"])
    if head is None:
        return None
    manifest = sink.manifest(head)
    for number in range(len(manifest.pieces)):
        piece = transaction.get(digest + _NUMBER.pack(number), db=opened["pieces"])
        if piece is None:
            raise Rejected("torn", f"piece {number} is missing")
        sink.piece(piece)
    return manifest.payload_bytes


def _build(settings: StoreSettings) -> LmdbTier | None:
    if settings.path is None or not settings.disk_bytes:
        return None
    return LmdbTier(settings.path, settings.disk_bytes, POLICIES[settings.eviction])


register(TierKind(LmdbTier.name, rank=1, persistent=True, build=_build))
