"""What an operator can see and do. None of it loads an entry or counts as a use of one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Generic

from store.care.catalog import bytes_by, chains_by_tier, entry_info, matches, merge
from store.care.scrub import scrub
from store.errors import TierError
from store.parts import Parts
from store.records.keys import DIGEST_BYTES, owner
from store.residency.counters import TierCounters
from store.residency.decoded import E, Place
from store.residency.index import Row
from store.tiers.protocol import Tier
from store.types import (
    EntryFilter,
    EntryInfo,
    EntryPage,
    EvictResult,
    QuotaInfo,
    StoreStats,
    TierStats,
    VerifyProgress,
)

_QUEUED = "queued"


class StoreAdmin(Generic[E]):
    """Keys are the 64 hex digits of a digest. Tiers that cannot be asked are left out of lists and reported
    as problems. Thread-safe."""

    def __init__(self, parts: Parts[E]) -> None:
        self._parts = parts
        self._stack = parts.stack
        self._decoded = parts.decoded
        self._places: list[Place] = [parts.decoded]
        self._flights = parts.flights
        self._holds = parts.holds
        self._wishes = parts.wishes
        self._clock = parts.clock

    def include(self, place: Place) -> None:
        """Show and care for what lies there too."""
        self._places.append(place)

    def stats(self) -> StoreStats:
        """Opens the tiers, if nothing has yet, so that `degraded` says what is wrong with them."""
        stack = self._stack
        tiers = tuple(self._figures(tier) for tier in stack.tiers)
        # Of an entry in several tiers the slowest counts, which holds the record.
        places = [(name, list(rows)) for name, rows in self._rows()]
        records = {row.digest: row for _, rows in places for row in rows}.values()
        problems = [problem for tier in stack.tiers for problem in self._problems(tier)]
        queued, queued_bytes = stack.writer.depth
        return StoreStats(
            tiers=tiers,
            decoded=self._decoded.stats(),
            compiles=self._parts.compiles.value,
            joined=self._flights.joined,
            write_queue=queued,
            write_queue_bytes=queued_bytes,
            writes_dropped=stack.dropped,
            leases=self._holds.leases,
            degraded=(*problems, *stack.health.faults(), *self._wishes.problems),
            bytes_by_model=bytes_by(records, lambda row: row.info.model),
            bytes_by_tenant=bytes_by(records, _owner),
            chains_by_tier=chains_by_tier(places),
        )

    def entries(self, select: EntryFilter, cursor: str | None = None, limit: int = 100) -> EntryPage:
        """Entries that match, by key; `cursor` is the one of the page before."""
        now = self._clock()
        page: list[EntryInfo] = []
        for info in self._infos():
            if (cursor is not None and info.key <= cursor) or not matches(info, select, now):
                continue
            if len(page) == limit:
                return EntryPage(tuple(page), page[-1].key if page else cursor)
            page.append(info)
        return EntryPage(tuple(page), None)

    def entry(self, key: str) -> EntryInfo | None:
        """What is stored under `key`, without loading it or counting a use."""
        digest = _digest_of(key)
        if digest is None:
            return None
        queued = self._stack.writer.pending(digest)
        held = [
            *((place.name, place.row(digest)) for place in self._places),
            (_QUEUED, queued.row() if queued else None),
            *((tier.name, self._ask(tier, digest)) for tier in self._stack.tiers),
        ]
        found = [(name, row) for name, row in held if row is not None]
        return entry_info(found, self._holds) if found else None

    def delete(self, key: str) -> bool:
        """Remove from everywhere, pinned or not; False if it was nowhere. Who uses it keeps it."""
        digest = _digest_of(key)
        return digest is not None and self._remove(digest, None, None)

    def evict(
        self,
        select: EntryFilter,
        max_bytes: int | None = None,
        dry_run: bool = False,
        include_pinned: bool = False,
    ) -> EvictResult:
        """Remove least recently used entries that match and are neither in use nor pinned, until `max_bytes`
        are freed (None: all). With `select.tier`, from that tier only."""
        now = self._clock()
        keys: list[str] = []
        freed = leased = pinned = 0
        for info in sorted(self._infos(), key=lambda info: info.last_used):
            if max_bytes is not None and freed >= max_bytes:
                break
            if not matches(info, select, now):
                continue
            digest = bytes.fromhex(info.key)
            if any(place.leased(digest) for place in self._places):
                leased += 1
                continue
            if self._holds.pinned(digest) and not include_pinned:
                pinned += 1
                continue
            if not dry_run:
                self._remove(digest, select.tier, "admin")
            keys.append(info.key)
            freed += info.bytes
        return EvictResult(tuple(keys), freed, leased, dry_run, pinned)

    def clear(self, tenant: str | None = None, include_pinned: bool = False) -> EvictResult:
        """Remove all entries, or all of one tenant, but those in use; what is being compiled now is not
        kept."""
        self._flights.forget_all()
        return self.evict(EntryFilter(tenant=tenant), include_pinned=include_pinned)

    def pin(self, key: str, seconds: float | None) -> bool:
        """Keep an entry: for `seconds` it is evicted only when nothing else is left, with None never. False
        if it is nowhere. Raises WishesFull."""
        digest = _digest_of(key)
        if digest is None or not self._is_somewhere(digest):
            return False
        self._wishes.pin(digest, None if seconds is None else self._clock() + seconds)
        # Any request may ask for a soft pin: it waits for no disk.
        if seconds is None:
            self._wishes.save()
        else:
            self._stack.writer.start()
        return True

    def unpin(self, key: str) -> bool:
        """False if it was not pinned."""
        digest = _digest_of(key)
        found = digest is not None and self._wishes.unpin(digest)
        self._wishes.save()
        return found

    def quotas(self) -> tuple[QuotaInfo, ...]:
        """Tenants with a quota, by name, with what they hold."""
        governed = {tier.name for tier in self._stack.tiers}
        held = [bytes_by(rows, _owner) for name, rows in self._rows() if name in governed]
        return tuple(
            QuotaInfo(name, size, max((bytes_held.get(name, 0) for bytes_held in held), default=0))
            for name, size in sorted(self._wishes.quotas.items())
        )

    def set_quota(self, tenant: str, nbytes: int | None) -> None:
        """Limit what a tenant may hold in each tier, from its next write on; None lifts it. Raises
        WishesFull."""
        self._wishes.set_quota(tenant, nbytes)
        self._wishes.save()

    def verify(self) -> Iterator[VerifyProgress]:
        """Read and check every record of every tier, in steps of one; what is damaged is removed."""
        return scrub(self._stack.tiers, self._parts.buffers)

    def compact(self) -> Mapping[str, int | str]:
        """Bytes that each tier gave back to the system, or why it could not."""
        given: dict[str, int | str] = {}
        for tier in self._stack.tiers:
            try:
                given[tier.name] = tier.compact()
            except TierError as error:
                given[tier.name] = str(error)
        return given

    def _remove(self, digest: bytes, only: str | None, reason: str | None) -> bool:
        """From one tier, or from everywhere, with what is being loaded or written now."""
        tiers: Sequence[Tier] = [tier for tier in self._stack.tiers if only in (None, tier.name)]
        found = False
        if only in (None, _QUEUED):
            self._flights.forget(digest)
            found = self._stack.writer.cancel(digest)
        found |= self._stack.remove(digest, tiers, reason)
        for place in self._places:
            if only in (None, place.name):
                found |= place.remove(digest, reason)
        return found

    def _infos(self) -> list[EntryInfo]:
        return merge(self._rows(), self._holds)

    def _rows(self) -> list[tuple[str, Iterable[Row]]]:
        """What each place holds, fastest first."""
        rows: list[tuple[str, Iterable[Row]]] = [
            *((place.name, place.rows()) for place in self._places),
            (_QUEUED, [slot.row() for slot in self._stack.writer.all_pending()]),
        ]
        for tier in self._stack.tiers:
            with self._stack.health.noting(tier.name):
                rows.append((tier.name, tier.rows()))
        return rows

    def _figures(self, tier: Tier) -> TierStats:
        figures = TierCounters(tier.name).stats(False, 0, 0, 0, 0)
        with self._stack.health.noting(tier.name):
            figures = tier.stats()
        return figures

    def _problems(self, tier: Tier) -> tuple[str, ...]:
        problems: tuple[str, ...] = ()
        with self._stack.health.noting(tier.name):
            problems = tier.problems()
        return problems

    def _is_somewhere(self, digest: bytes) -> bool:
        """A request pins what it has at hand: then no tier is asked."""
        at_hand = any(place.row(digest) for place in self._places) or self._stack.writer.pending(digest)
        return bool(at_hand) or any(self._ask(tier, digest) is not None for tier in self._stack.tiers)

    def _ask(self, tier: Tier, digest: bytes) -> Row | None:
        row = None
        with self._stack.health.noting(tier.name):
            row = tier.row(digest)
        return row


def _owner(row: Row) -> str:
    return owner(row.info.tenant)


def _digest_of(key: str) -> bytes | None:
    """None for what is no key: nothing is stored under it."""
    try:
        digest = bytes.fromhex(key)
    except ValueError:
        return None
    return digest if len(digest) == DIGEST_BYTES and digest.hex() == key else None
