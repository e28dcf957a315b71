"""What a store is made of. Requests and the operator work on the same parts, each in its own way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic

from store.flights import Flights
from store.records.buffers import BufferPool
from store.residency.counters import Count
from store.residency.decoded import DecodedCache, E
from store.residency.holds import Holds
from store.residency.wishes import Wishes
from store.stack import TierStack


@dataclass(frozen=True, slots=True)
class Parts(Generic[E]):
    """`clock` gives seconds since the epoch. `compiles`: entries computed so far, kept or not."""

    stack: TierStack
    decoded: DecodedCache[E]
    holds: Holds
    wishes: Wishes
    buffers: BufferPool
    clock: Callable[[], float]
    flights: Flights[Any] = field(default_factory=Flights)
    compiles: Count = field(default_factory=Count)
