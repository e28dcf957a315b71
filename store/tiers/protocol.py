"""What a tier is: a place for records that moves bytes and decides nothing about them.

A new tier is one file in `store/tiers` (or a folder with a `tier.py`) with a class that is `sealed`, and that calls
`register`; it then joins the contract tests and `open_store`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from store.errors import StoreError, TierFull, TierUnavailable
from store.records.header import Manifest
from store.records.record import Record
from store.residency.eviction import HoldOf
from store.residency.index import Row
from store.settings import StoreSettings
from store.types import TierStats

T = TypeVar("T")
R = TypeVar("R")


class Sink(Protocol):
    """Where a tier pushes a record that it reads: the manifest, then the pieces in order. Both copy what they
    need before they return and raise Rejected for what is not as it should be."""

    def manifest(self, raw: bytes | memoryview) -> Manifest: ...

    def piece(self, data: bytes | memoryview) -> None: ...


class Tier(Protocol):
    """All methods are thread-safe and raise nothing but TierError, and `get` what the sink raises.

    Nothing is opened before the first call, so that a tier may be built before a fork.
    """

    @property
    def name(self) -> str: ...

    def get(self, digest: bytes, sink: Sink, count: bool = True) -> bool:
        """Push the record into `sink`; False if there is none. A missing piece is Rejected("torn"). Bytes
        pushed are valid during the call only. Does not
        count as a use; `count` is whether it shows in hits, misses and rejections."""
        ...

    def put(self, record: Record, when: float, hold: HoldOf, replace: bool = False) -> None:
        """Store as used at `when`, making room by eviction where `hold` allows. Keeps what is there unless
        `replace`. The record's bytes are not referred to after the call. Raises TierFull when there is no
        room."""
        ...

    def delete(self, digest: bytes, reason: str | None = None) -> bool:
        """Remove; False if there was none. A `reason` makes it count as an eviction."""
        ...

    def contains(self, digest: bytes) -> bool: ...

    def touch(self, digest: bytes, when: float) -> None:
        """Count a use at `when`, cheaply: it may be written down later, or never if the process dies."""
        ...

    def row(self, digest: bytes) -> Row | None: ...

    def rows(self) -> Iterable[Row]: ...

    def stats(self) -> TierStats: ...

    def problems(self) -> tuple[str, ...]:
        """What an operator should know, in words."""
        ...

    def flush(self) -> None:
        """Write down what was put off."""
        ...

    def compact(self) -> int:
        """Give space that is free inside the tier back to the system, if it keeps any; bytes given back."""
        ...

    def close(self) -> None: ...


_CALLS = tuple(name for name, item in vars(Tier).items() if not name.startswith("_") and callable(item))


def sealed(kind: type[T]) -> type[T]:
    """Put on the class of a tier: whatever happens underneath, its methods raise nothing that is not the store's."""
    for name in _CALLS:
        setattr(kind, name, _sealed(getattr(kind, name)))
    return kind


def _sealed(call: Callable[..., R]) -> Callable[..., R]:
    @functools.wraps(call)
    def sealed_call(*arguments: Any, **options: Any) -> R:
        try:
            return call(*arguments, **options)
        except StoreError:
            raise
        except MemoryError as error:
            raise TierFull("no_memory") from error
        except Exception as error:
            raise TierUnavailable("failed", f"{type(error).__name__}: {error}") from error

    return sealed_call


Build = Callable[[StoreSettings], "Tier | None"]


@dataclass(frozen=True, slots=True)
class TierKind:
    """A registered tier. `rank` orders tiers, fastest first; a `persistent` one keeps its records when the
    process ends; `build` gives None where the settings leave it out."""

    name: str
    rank: int
    persistent: bool
    build: Build


_KINDS: dict[str, TierKind] = {}


def register(kind: TierKind) -> None:
    _KINDS[kind.name] = kind


def kinds() -> tuple[TierKind, ...]:
    """All tiers that exist, fastest first."""
    package = importlib.import_module("store.tiers")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"store.tiers.{module.name}" + (".tier" if module.ispkg else ""))
    return tuple(sorted(_KINDS.values(), key=lambda kind: kind.rank))
