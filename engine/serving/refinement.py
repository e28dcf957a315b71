"""Chains become exact in idle time: what a refreshed prompt lacks is computed in sequence order, a piece at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from engine.chains.held import Computed
from engine.chains.segments import Content, common_head
from engine.passes.forward import Work
from engine.passes.kv import RequestKV
from engine.passes.refine import Refiner
from engine.passes.rows import PromptRows
from engine.prompt.layout import PromptLayout
from engine.serving.entries import Gone, stored
from engine.serving.runtime import Runtime
from engine.serving.spill import Spill
from store.records.keys import VisualKey

log = logging.getLogger(__name__)

# Rows of one piece: what a request that comes in waits for at most.
PIECE_ROWS = 128
# Prompts that wait to be finished; the oldest make room.
MOST_WAITING = 16


@dataclass(frozen=True, slots=True, eq=False)
class Unfinished:
    """A prompt and its answer that are not exact to their end. `layout` covers both, `keys` name the entries of its
    spans. `again`: it went on from a chain that had images, so it is not the first use of them. `since` is the state of
    the chains that it was kept in."""

    content: Content
    layout: PromptLayout
    keys: tuple[VisualKey, ...]
    recipe: str | None
    again: bool
    since: int
    offered: float


class Refinement:
    """Finishes what was offered: whatever was used again, and what is not older than `seconds` (0: nothing at all). To
    be called from the worker's thread only."""

    def __init__(self, runtime: Runtime, seconds: float, progress: Callable[[], None] | None = None) -> None:
        self._runtime, self._seconds, self._progress = runtime, seconds, progress
        self._waiting: list[Unfinished] = []
        self._running: Unfinished | None = None
        self._pieces: Iterator[None] | None = None
        self._kv: RequestKV | None = None
        self.finished = 0
        self.refined_rows = 0

    @property
    def idle(self) -> bool:
        """Nothing to do."""
        return self._pieces is None and not self._waiting

    @property
    def bytes(self) -> int:
        """KV held by work that has begun."""
        return 0 if self._kv is None else self._kv.capacity * self._runtime.pool.slot_bytes

    def offer(self, unfinished: Unfinished) -> None:
        """Take it in, in the place of what it goes on from."""
        if not self._seconds:
            return
        self._waiting = [other for other in self._waiting if not _goes_on(unfinished, other)]
        self._waiting = [*self._waiting, unfinished][-MOST_WAITING:]

    def step(self) -> None:
        """Do one piece. What fails is logged and dropped: it must never disturb the service."""
        try:
            if self._pieces is None:
                self._running = self._choose()
                self._pieces = None if self._running is None else self._finish(self._running)
            if self._pieces is not None and next(self._pieces, self) is self:
                self._pieces = None
        except Exception:
            log.exception("a chain could not be finished")
            self._pieces = None

    def pause(self) -> None:
        """Give the memory back; what is exact by now is in the chains, and the rest is begun again later."""
        if self._pieces is not None:
            self._pieces.close()  # type: ignore[attr-defined]
            self._pieces = None
            if self._running is not None:
                self._waiting.append(self._running)

    def _choose(self) -> Unfinished | None:
        """Used again before new, the newest first; what is too old or was cleared away goes."""
        oldest = time.monotonic() - self._seconds
        since = self._runtime.chains.epoch
        self._waiting = [one for one in self._waiting if one.since == since]
        self._waiting = [one for one in self._waiting if one.again or one.offered >= oldest]
        if not self._waiting:
            return None
        chosen = max(self._waiting, key=lambda one: (one.again, one.offered))
        self._waiting.remove(chosen)
        return chosen

    def _finish(self, unfinished: Unfinished) -> Iterator[None]:
        runtime, layout, chains = self._runtime, unfinished.layout, self._runtime.chains
        # The chain, and the KV that it is computed in.
        if 2 * layout.length * runtime.pool.slot_bytes > chains.room:
            return
        match = chains.find(unfinished.content, layout.length, None, count=False)
        try:
            features = []
            for span, key in zip(layout.spans, unfinished.keys, strict=True):
                behind = span.start >= match.exact
                features.append(self._features(key) if behind else None)
                if behind:
                    yield
            self._kv = runtime.pool.take(layout.length)
            match.write_head(self._kv.keys, self._kv.values)
        except Gone:
            return
        finally:
            chains.release(match)
        try:
            rows = PromptRows(runtime.family, layout, features)
            refiner = Refiner(runtime.family, rows, match.exact, Work(self._progress))
            spent = 0.0
            while refiner.left:
                began = time.monotonic()
                refiner.step(self._kv, PIECE_ROWS)
                spent += time.monotonic() - began
                self._keep(unfinished, layout.length - refiner.left)
                yield
            spill = Spill(runtime, unfinished.content, layout, unfinished.keys, unfinished.recipe)
            spill.write(unfinished.since, spent / max(1, refiner.refined))
            self.finished += 1
            self.refined_rows += refiner.refined
        finally:
            runtime.pool.give_back(self._kv)
            self._kv = None

    def _keep(self, unfinished: Unfinished, exact: int) -> None:
        assert self._kv is not None
        computed = Computed(self._kv.keys, self._kv.values, exact, np.ones(exact, dtype=bool))
        self._runtime.chains.keep(unfinished.content, computed, unfinished.recipe, unfinished.since)

    def _features(self, key: VisualKey) -> torch.Tensor:
        """Raises `Gone` where the entry is: the picture to compute it from is gone too."""
        with stored(self._runtime, key) as fetched:
            return fetched.entry.features.to(self._runtime.family.device)


def _goes_on(unfinished: Unfinished, other: Unfinished) -> bool:
    """Whether `other` is the beginning of `unfinished`."""
    ours, theirs = unfinished.content, other.content
    return (
        ours.root == theirs.root
        and ours.digests[: len(theirs.digests)] == theirs.digests
        and common_head(ours.ids, theirs.ids) == len(theirs.ids)
    )
