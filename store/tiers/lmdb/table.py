"""The records of one environment and their index, kept in step. The deciding is the tier's."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from store.errors import RejectReason, TierUnavailable
from store.records.record import Record
from store.residency.index import Index, Row
from store.tiers.lmdb import records
from store.tiers.lmdb.environment import Environment
from store.tiers.lmdb.native import Opened

T = TypeVar("T")
_log = logging.getLogger(__name__)

_BATCH = 16


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a look at the file showed: whether it was the first at this file, and which records cannot be read, and
    why."""

    first: bool
    damaged: Mapping[bytes, RejectReason]


class Table:
    """`load` may be called by any thread, what changes the file by one only. All of it raises TierError."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self.index = Index()
        # Held while a commit and the index come to agree.
        self._in_step = threading.Lock()
        self._loaded: Opened | None = None
        self._swept: Opened | None = None
        self._last_commit = 0
        self._unfinished: dict[bytes, int] = {}
        self._condemned: set[bytes] = set()
        self._condemning = threading.Lock()

    @property
    def known(self) -> bool:
        """Whether the index has been read."""
        return self._loaded is not None

    @property
    def held(self) -> int:
        """Bytes that count towards a budget: of records, and of what failed writes left behind."""
        return self.index.nbytes + sum(self._unfinished.values())

    def load(self) -> Loaded:
        """Have the index agree with the file, which other processes may have changed."""
        opened = self._environment.open()
        if opened is self._loaded and self._environment.last_transaction() == self._last_commit:
            return Loaded(False, {})
        with self._in_step, self._environment.read() as (transaction, opened):
            first = opened is not self._loaded
            known = {} if first else {row.digest: row for row in self.index.rows()}
            rows, damaged = records.rows(transaction, opened, known)
            self.index.reset(rows)
            self._loaded, self._last_commit = opened, transaction.id()
        return Loaded(first, damaged)

    def condemn(self, digest: bytes) -> bool:
        """Note that a record is damaged; False if that was known. Forgotten when it is deleted."""
        with self._condemning:
            known = digest in self._condemned
            self._condemned.add(digest)
        return not known

    def write(self, record: Record, when: float) -> None:
        """In several commits; what is there if one of them fails is removed by `sweep`. In the place of a record, or of
        what is left of one, only after a `delete`."""
        self._unfinished[record.digest] = record.nbytes
        pieces = list(record.pieces())
        for first in range(0, len(pieces), _BATCH):
            batch = pieces[first : first + _BATCH]
            self._commit(partial(records.put_pieces, digest=record.digest, first=first, pieces=batch))

        def settle() -> None:
            self.index.add(Row(record.digest, record.manifest.info, record.nbytes, when))
            del self._unfinished[record.digest]

        self._commit(partial(records.put_head, record=record, when=when), settle)

    def delete(self, digests: Iterable[bytes]) -> bool:
        """Remove records and pieces in one commit; True if one of the records was there."""
        gone = list(digests)

        def change(transaction: Any, opened: Opened) -> bool:
            found = [records.remove(transaction, opened, digest) for digest in gone]
            return any(found)

        def settle() -> None:
            for digest in gone:
                self.index.remove(digest)
                self._unfinished.pop(digest, None)
            with self._condemning:
                self._condemned.difference_update(gone)

        return self._commit(change, settle)

    def delete_damaged(self, digests: Iterable[bytes]) -> None:
        """But what was written anew since it was read."""
        with self._environment.read() as (transaction, opened):
            still = [digest for digest in digests if records.damaged(transaction, opened, digest)]
        if still:
            self.delete(still)

    def present(self, digest: bytes) -> bool:
        """Whether there is a record, or something in its place."""
        return self.index.get(digest) is not None or digest in self._condemned

    def sweep(self) -> None:
        """Remove what writes of this process left behind that failed."""
        if self._unfinished:
            self.delete(list(self._unfinished))

    def sweep_foreign(self) -> None:
        """Remove pieces without a manifest, of a process that died; not while another one may be writing them."""
        if self._swept is not None and self._swept is self._loaded:
            return
        try:
            with self._environment.alone():
                with self._environment.read() as (transaction, opened):
                    orphans = records.orphans(transaction, opened)
                if orphans:
                    _log.info("%d half-written records removed", len(orphans))
                    self.delete(orphans)
        except TierUnavailable as error:
            if error.reason != "shared":
                raise
        else:
            self._swept = opened

    def write_usage(self) -> None:
        """Write down uses since the last time, for the order of eviction after a restart."""
        rows = self.index.take_used()
        if rows:
            self._commit(partial(records.put_usage, rows=rows))

    def bump(self) -> None:
        """A commit that changes nothing: pages freed by the one before can be used by the next."""
        self._commit(records.bump)

    def _commit(self, change: Callable[[Any, Opened], T], settle: Callable[[], None] | None = None) -> T:
        """Run `change` in a transaction and, once it is committed, `settle`, which has the index follow."""
        with self._in_step:
            with self._environment.write() as (transaction, opened):
                result = change(transaction, opened)
                commit = transaction.id()
            if settle is not None:
                settle()
            # Our own commit needs no new look at the file, unless another process came in between.
            if commit == self._last_commit + 1:
                self._last_commit = commit
        return result
