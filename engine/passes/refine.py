"""After a reuse prefill: the prompt's rows computed anew in sequence order, a few a step while the answer is written.

Every row is computed over rows that are exact by then, so the KV becomes that of a full prefill from the front on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.families.base import Family
from engine.passes.attention import by_order
from engine.passes.forward import Work, run_rows
from engine.passes.kv import RequestKV
from engine.passes.rows import PromptRows
from engine.prompt.layout import PromptLayout


class Refiner:
    """Begins at slot `start`, before which all is exact. `refined` counts the rows computed so far."""

    def __init__(self, family: Family, rows: PromptRows, start: int, work: Work) -> None:
        self._family, self._rows, self._work = family, rows, work
        self.start = self._next = start
        self.refined = 0

    @property
    def left(self) -> int:
        """Rows to come."""
        return self._rows.layout.length - self._next

    def step(self, kv: RequestKV, count: int) -> slice:
        """Compute the next `count` rows, or what is left, and return their slots; `kv` is the request's, also if it has
        grown meanwhile."""
        done = slice(self._next, self._next + min(count, self.left))
        if done.start < done.stop:
            rows = self._rows.at(np.arange(done.start, done.stop))
            run_rows(self._family, kv, rows, by_order(rows.slots, self._family.shape.group), self._work)
            self._next = done.stop
            self.refined += done.stop - done.start
        return done


def first_stale(layout: PromptLayout, exact: Sequence[bool]) -> int:
    """Where the first image begins that may differ from full prefill (`exact` says span by span which may not): what
    stands before it sees nothing stale."""
    stale = (span.start for span, kept in zip(layout.spans, exact, strict=True) if not kept)
    return min(stale, default=layout.length)
