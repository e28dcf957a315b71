"""Admin calls on the store, by name: the worker's end, which answers them."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from engine.errors import EngineError, InternalError, StoreFailed
from store.errors import StoreError
from store.types import EntryFilter, EntryInfo, EntryPage, EvictResult, QuotaInfo, StoreStats, VerifyProgress


class LocalStore(Protocol):
    """What a store of this process offers an operator; its calls may block."""

    def stats(self) -> StoreStats: ...
    def entries(self, select: EntryFilter, cursor: str | None, limit: int) -> EntryPage: ...
    def entry(self, key: str) -> EntryInfo | None: ...
    def delete(self, key: str) -> bool: ...
    def evict(self, select: EntryFilter, max_bytes: int | None, dry_run: bool) -> EvictResult: ...
    def clear(self, tenant: str | None, include_pinned: bool) -> EvictResult: ...
    def pin(self, key: str, seconds: float | None) -> bool: ...
    def unpin(self, key: str) -> bool: ...
    def quotas(self) -> tuple[QuotaInfo, ...]: ...
    def set_quota(self, tenant: str, nbytes: int | None) -> None: ...
    def verify(self) -> Iterator[VerifyProgress]: ...
    def compact(self) -> Mapping[str, int | str]: ...


class LocalChains(Protocol):
    """What the chains of this process offer."""

    def outdate(self) -> None: ...


log = logging.getLogger(__name__)

MOST_SCRUBS = 64

# Names an image's entry: (tenant, canonical digest, width, height) -> 64 hex digits.
NameEntry = Callable[[str, bytes, int, int], str]


def _clear(store: LocalStore, chains: LocalChains, tenant: str | None, include_pinned: bool) -> EvictResult:
    """Requests that began before its end leave nothing of what they found."""
    chains.outdate()
    try:
        return store.clear(tenant, include_pinned)
    finally:
        chains.outdate()


class AdminDesk:
    """The worker's end. `answer` takes only the names listed here, so that a name from outside reaches nothing else."""

    CALLS = (
        "stats",
        "entries",
        "entry",
        "delete",
        "evict",
        "clear",
        "pin",
        "unpin",
        "quotas",
        "set_quota",
        "compact",
    )

    def __init__(
        self,
        store: LocalStore,
        name_entry: NameEntry,
        chains: LocalChains,
        others: Mapping[str, Callable[..., Any]] = MappingProxyType({}),
    ) -> None:
        """`others` are calls on something else than the store."""
        self._calls: dict[str, Callable[..., Any]] = {name: getattr(store, name) for name in self.CALLS}
        self._calls |= others
        self._calls |= {
            "clear": lambda tenant, include_pinned: _clear(store, chains, tenant, include_pinned),
            "lookup": lambda *image: store.entry(name_entry(*image)),
            "verify_begin": lambda: self._begin(store.verify()),
            "verify_next": self._next,
            "verify_end": self._end,
        }
        # Whose turn was longest ago goes first: callers that went away in between leave theirs behind.
        self._scrubs: OrderedDict[int, Iterator[VerifyProgress]] = OrderedDict()
        self._scrubbing = threading.Lock()
        self._numbers = itertools.count()

    def answer(self, call: str, arguments: tuple[object, ...]) -> Any:
        """Raises `EngineError` only: `StoreFailed` for what the store refuses, `InternalError` for anything else."""
        try:
            return self._calls[call](*arguments)
        except EngineError:
            raise
        except StoreError as error:
            log.exception("the store failed in %s", call)
            raise StoreFailed("The store could not do that; the cause is in the server's log.") from error
        except Exception as error:
            log.exception("admin call %s failed", call)
            raise InternalError("the store could not answer") from error

    def _begin(self, scrub: Iterator[VerifyProgress]) -> int:
        with self._scrubbing:
            number = next(self._numbers)
            self._scrubs[number] = scrub
            if len(self._scrubs) > MOST_SCRUBS:
                self._scrubs.popitem(last=False)
            return number

    def _next(self, number: int) -> VerifyProgress | None:
        with self._scrubbing:
            scrub = self._scrubs.get(number)
            if scrub is None:
                raise StoreFailed("This check was given up for others that were begun since.")
            self._scrubs.move_to_end(number)
        return next(scrub, None)

    def _end(self, number: int) -> None:
        with self._scrubbing:
            self._scrubs.pop(number, None)
