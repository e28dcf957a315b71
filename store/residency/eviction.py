"""Which records to let go. Pure: rows in, victims out.

A policy gives every row a worth; the least worthy go first. Add one here and it is a choice of the setting
`eviction`.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum

from store.residency.index import Row

Policy = Callable[[Row, float], float]


class Hold(IntEnum):
    """How firmly a record is held: FREE may go, SOFT only when nothing free is left, HARD never."""

    FREE = 0
    SOFT = 1
    HARD = 2


HoldOf = Callable[[bytes], Hold]


def lru(row: Row, now: float) -> float:
    """Least recently used first."""
    return row.last_used


def lfu(row: Row, now: float) -> float:
    """Fewest uses per second of age first, so that yesterday's favourite does not stay for ever."""
    return (row.hits + 1) / (max(now - row.info.created, 0.0) + 1.0)


def cost(row: Row, now: float) -> float:
    """Seconds of computing saved per byte kept and per second since the last use, least first. Two entries of
    one model cost about the same per byte; it is between models and image sizes that this differs from
    LRU."""
    saved = (row.info.compile_seconds + 1e-6) * (row.hits + 1)
    return saved / max(row.bytes, 1) / (max(now - row.last_used, 0.0) + 1.0)


POLICIES: Mapping[str, Policy] = {"lru": lru, "lfu": lfu, "cost": cost}


def never_held(digest: bytes) -> Hold:
    """The `HoldOf` of a store without leases or pins."""
    return Hold.FREE


def choose(
    rows: Iterable[Row], need: int, policy: Policy, now: float, hold: HoldOf = never_held
) -> list[Row]:
    """Victims, least worthy first, that free at least `need` bytes; all that may go if they do not
    suffice. A worth that is no number is the least."""
    heap = [
        (held, -math.inf if math.isnan(worth := policy(row, now)) else worth, row.digest, row)
        for row in rows
        if (held := hold(row.digest)) is not Hold.HARD
    ]
    heapq.heapify(heap)
    victims: list[Row] = []
    freed = 0
    while heap and freed < need:
        row = heapq.heappop(heap)[3]
        victims.append(row)
        freed += row.bytes
    return victims
