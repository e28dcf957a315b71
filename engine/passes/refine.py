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


class Refiner:
    """Begins at the first image that may differ from full prefill (`exact` says span by span which may not): what
    stands before it sees nothing stale. `refined` counts the rows computed so far, from slot `start` on."""

    def __init__(self, family: Family, rows: PromptRows, exact: Sequence[bool], work: Work) -> None:
        self._family, self._rows, self._work = family, rows, work
        layout = rows.layout
        stale = (span.start for span, kept in zip(layout.spans, exact, strict=True) if not kept)
        self.start = self._next = min(stale, default=layout.length)
        self.refined = 0

    @property
    def left(self) -> int:
        """Rows to come."""
        return self._rows.layout.length - self._next

    def step(self, kv: RequestKV, count: int) -> None:
        """Compute the next `count` rows, or what is left; `kv` is the request's, also if it has grown meanwhile."""
        slots = np.arange(self._next, self._next + min(count, self.left))
        if len(slots) == 0:
            return
        rows = self._rows.at(slots)
        run_rows(self._family, kv, rows, by_order(rows.slots, self._family.shape.group), self._work)
        self._next += len(slots)
        self.refined += len(slots)
