"""What an operator can see and do. Admin calls never load an entry and never count as a use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

from store.catalog import bytes_by, entry_info, matches, merge
from store.decoded import DecodedCache, E
from store.errors import TierError
from store.flights import Flights
from store.holds import Holds
from store.index import Row
from store.keys import DIGEST_BYTES
from store.stack import TierStack
from store.tier import Tier
from store.types import EntryFilter, EntryInfo, EntryPage, EvictResult, TierStats


@dataclass(frozen=True, slots=True)
class Summary:
    tiers: tuple[TierStats, ...]
    problems: tuple[str, ...]
    bytes_by_model: Mapping[str, int]
    bytes_by_tenant: Mapping[str, int]


class StoreAdmin(Generic[E]):
    """Tiers that cannot be asked are left out of lists and reported as problems."""

    def __init__(
        self,
        stack: TierStack[E],
        decoded: DecodedCache[E],
        flights: Flights[object],
        holds: Holds,
        clock: Callable[[], float],
    ) -> None:
        self._stack = stack
        self._decoded = decoded
        self._flights = flights
        self._holds = holds
        self._clock = clock

    def summary(self) -> Summary:
        stats = tuple(tier.stats() for tier in self._stack.tiers)
        infos = self._infos()
        problems = [problem for tier in self._stack.tiers for problem in tier.problems()]
        return Summary(
            tiers=stats,
            problems=(*problems, *self._stack.health.faults()),
            bytes_by_model=bytes_by(infos, lambda info: info.model),
            bytes_by_tenant=bytes_by(infos, lambda info: info.tenant),
        )

    def entries(self, select: EntryFilter, cursor: str | None, limit: int) -> EntryPage:
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
        digest = _digest_of(key)
        if digest is None:
            return None
        rows = ((tier.name, self._ask(tier, digest)) for tier in self._stack.tiers)
        held = [(name, row) for name, row in ((self._decoded.name, self._decoded.row(digest)), *rows) if row]
        return entry_info(held, self._holds.leased(digest)) if held else None

    def delete(self, key: str) -> bool:
        digest = _digest_of(key)
        return digest is not None and self._remove(digest, None, None)

    def evict(self, select: EntryFilter, max_bytes: int | None, dry_run: bool) -> EvictResult:
        now = self._clock()
        keys: list[str] = []
        freed = skipped = 0
        for info in sorted(self._infos(), key=lambda info: info.last_used):
            if max_bytes is not None and freed >= max_bytes:
                break
            if not matches(info, select, now):
                continue
            digest = bytes.fromhex(info.key)
            if self._holds.leased(digest):
                skipped += 1
                continue
            if not dry_run:
                self._remove(digest, select.tier, "admin")
            keys.append(info.key)
            freed += info.bytes
        return EvictResult(tuple(keys), freed, skipped, dry_run)

    def _remove(self, digest: bytes, only: str | None, reason: str | None) -> bool:
        """From one tier, or from everywhere, with what is being loaded or written now."""
        tiers: Sequence[Tier] = [tier for tier in self._stack.tiers if only in (None, tier.name)]
        if only is None:
            self._flights.forget(digest)
        found = self._stack.remove(digest, tiers, reason)
        if only in (None, self._decoded.name):
            found |= self._decoded.remove(digest, reason)
        return found

    def _infos(self) -> list[EntryInfo]:
        rows: list[tuple[str, Iterable[Row]]] = [(self._decoded.name, self._decoded.rows())]
        for tier in self._stack.tiers:
            try:
                rows.append((tier.name, tier.rows()))
            except TierError as error:
                self._stack.health.failed(tier.name, error)
        return merge(rows, self._holds.leased)

    def _ask(self, tier: Tier, digest: bytes) -> Row | None:
        try:
            return tier.row(digest)
        except TierError as error:
            self._stack.health.failed(tier.name, error)
            return None


def _digest_of(key: str) -> bytes | None:
    """None for what is no key: nothing is stored under it."""
    try:
        digest = bytes.fromhex(key)
    except ValueError:
        return None
    return digest if len(digest) == DIGEST_BYTES and digest.hex() == key else None
