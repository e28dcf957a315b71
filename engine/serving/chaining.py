"""One request and the chains: what it goes on from, and what it leaves for the next."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from engine.chains.groups import group_of
from engine.chains.held import NO_MATCH, Computed, Mask, Match, Taken
from engine.chains.outcome import exact_until, fresh_rows, recipe_of
from engine.chains.segments import Content, Segment, segments_of
from engine.messages import CacheOptions, ImageInput
from engine.passes.kv import RequestKV
from engine.passes.refresh import Prefilled
from engine.policies.choice import Choice
from engine.prompt.layout import PromptLayout, positions_of
from engine.serving.refinement import Unfinished
from engine.serving.runtime import Runtime
from engine.serving.spill import Spill

log = logging.getLogger(__name__)

# What is read of a chain before running streams have their turn.
PIECE_SECONDS = 0.02


class Chaining:
    """Finds the chain of a prompt when it is made, leased until `release`. `images` are those of the request, `asked`
    what it says of the cache."""

    def __init__(
        self,
        runtime: Runtime,
        tenant: str,
        choice: Choice,
        layout: PromptLayout,
        images: Sequence[ImageInput],
        asked: CacheOptions | None = None,
    ) -> None:
        self._group = None if asked is None else group_of(tenant, asked.hint)
        self._pin_seconds = None if asked is None else asked.pin_seconds
        self._runtime, self._choice, self._layout = runtime, choice, layout
        digests = tuple(images[span.image].digest for span in layout.spans)
        self._keys = tuple(runtime.key(tenant, images[span.image]) for span in layout.spans)
        self._since = runtime.chains.epoch
        self._content = Content(runtime.chain_root(tenant), tenant, layout.ids, layout.spans, digests)
        self._recipe = recipe_of(choice) if choice.chain == "auto" else None
        self._exact, self._answers_exactly, self._fresh = 0, False, np.empty(0, dtype=bool)
        self._leased, self._as_stored, self._row_seconds = False, frozenset[int](), 0.0
        self.match: Match = NO_MATCH
        if choice.reads_chains:
            # The last row gives the first token's logits and is always computed.
            self.match = runtime.chains.find(
                self._content, layout.length - 1, self._recipe, group=self._group
            )
            self._leased = True

    def load(self) -> Iterator[None]:
        """Go on from what the store's tiers have behind what memory holds, in pieces."""
        if not self._leased or not self._runtime.store.segments:
            return
        spill, began = self._spill(self._content), time.monotonic()
        for segment in segments_of(self._content, self._layout.length - 1):
            if segment.stop <= self.match.length:
                continue
            found = _found(spill, segment)
            if found is None or found.stop <= self.match.length:
                return
            match = self._runtime.chains.extend(self.match, found, self._since)
            if match is None:
                return
            self.match = match
            if match.length < segment.stop:
                return
            if time.monotonic() - began > PIECE_SECONDS:
                yield
                began = time.monotonic()

    def find_turns(self) -> None:
        """Take text behind an edit of the history from where chains hold it, if the request lets them."""
        if self._leased and self._choice.turns == "reuse":
            self.match = self._runtime.chains.find_turns(
                self.match, self._content, self._layout.asked, self._recipe
            )

    def release(self) -> None:
        """Safe at any time, more than once."""
        if self._leased:
            self._leased = False
            self._runtime.chains.release(self.match)

    def prefilled(self, prefilled: Prefilled, seconds: float) -> None:
        """What of the prompt is exact and what is fresh, for `keep`; computing took `seconds`."""
        self._row_seconds = seconds / max(1, len(prefilled.computed))
        choice, layout = self._choice, self._layout
        restored = choice.ratio < 1 and choice.policy.keeps_exact and self._runtime.lossless
        exactly = layout.exact if restored else ()
        self._as_stored = frozenset(span.start for span in exactly if span.start >= self.match.exact)
        self._exact = exact_until(layout, self.match, prefilled.computed, exactly)
        self._answers_exactly = self._exact == layout.length
        self._fresh = fresh_rows(layout, self.match, prefilled.computed, prefilled.turns)

    def refined(self, start: int, rows: int) -> None:
        """So many rows from slot `start` on have been computed anew over what was exact by then."""
        if start <= self._exact < start + rows:
            self._exact = start + rows
            self._fresh[start : self._exact] = True

    def keep(self, kv: RequestKV, answer: Sequence[int]) -> None:
        """Hold the prompt and `answer`, the tokens behind it whose rows are in `kv`; nothing before `prefilled`."""
        if not self._keeps:
            return
        fresh: Mask = np.concatenate((self._fresh, np.ones(len(answer), dtype=bool)))
        exact = len(fresh) if self._answers_exactly else self._exact
        computed = Computed(kv.keys, kv.values, exact, fresh, self._as_stored)
        self._runtime.chains.keep(self._with(answer), computed, self._recipe, self._since, self._group)

    def write(self, answer: Sequence[int]) -> None:
        """Have what is held of the prompt and `answer` written to the store's tiers, in the background."""
        if self._keeps:
            self._spill(self._with(answer)).write(self._since, self._row_seconds, self._pin_seconds)

    def unfinished(self, answer: Sequence[int]) -> Unfinished | None:
        """What is left to make exact, where anything is."""
        layout = self._layout
        if not self._keeps or self._answers_exactly:
            return None
        content = self._with(answer)
        positions, following = positions_of(len(content.ids), layout.spans)
        whole = replace(layout, ids=content.ids, positions=positions, next_position=following)
        again = any(span.stop <= self.match.length for span in layout.spans)
        now = time.monotonic()
        return Unfinished(content, whole, self._keys, self._recipe, again, self._since, now)

    @property
    def _keeps(self) -> bool:
        return self._choice.keeps_chains and len(self._fresh) > 0

    def _spill(self, content: Content) -> Spill:
        return Spill(self._runtime, content, self._layout, self._keys, self._recipe)

    def _with(self, answer: Sequence[int]) -> Content:
        ids = np.concatenate((self._content.ids, np.asarray(answer, dtype=np.int64)))
        return replace(self._content, ids=ids)

    def chained(self) -> tuple[int, ...]:
        """How many visual tokens of each span the chain had."""
        given = self.match.given(self._layout.length)
        return tuple(int(given[span.visual_slots()].sum()) for span in self._layout.spans)

    def chained_tokens(self) -> tuple[int, int]:
        """Tokens of the prompt that an exact and a refreshed chain had."""
        given = int(self.match.given(self._layout.length).sum())
        return self.match.exact, given - self.match.exact


def _found(spill: Spill, segment: Segment) -> Taken | None:
    """What cannot be loaded is computed."""
    try:
        return spill.load(segment)
    except Exception:
        log.exception("a chain could not be read")
        return None
