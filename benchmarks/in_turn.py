"""Arms timed in turn, so that what else the machine does falls on all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turn(rounds: int, **arms: Callable[[], float]) -> dict[str, float]:
    """Median seconds of each arm, run in turn; the first round is not counted."""
    taken: dict[str, list[float]] = {name: [] for name in arms}
    for number in range(rounds + 1):
        for name, arm in arms.items():
            spent = arm()
            if number:
                taken[name].append(spent)
    return {name: statistics.median(times) for name, times in taken.items()}
