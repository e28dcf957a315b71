"""Prefill: from a laid-out prompt to the first logits, by full computation or by reuse and refresh.

Steps of a reuse prefill (refresh.md sections 2 and 7): restore the entries at their target positions, let the query
rows score the visual tokens, let the policy choose, then run the chosen rows and the text in one pass, in sequence
order, over the mixed KV. Nothing is ever written back to an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from engine.chains.held import NO_MATCH, Match
from engine.families.base import Family
from engine.passes.attention import Causal, by_order
from engine.passes.correction import Corrected
from engine.passes.forward import Capture, Rows, Work, run_rows
from engine.passes.kv import RequestKV
from engine.passes.layerwise import ShrinkingPass
from engine.passes.probe import Candidates, Prober, candidates_of
from engine.passes.restore import restore
from engine.passes.rows import PromptRows
from engine.passes.turns import TextKV, text_entries
from engine.passes.witness import Witness
from engine.policies.base import LayerwisePolicy, Policy, Probe, SelectingPolicy, budget
from engine.policies.corrections import CORRECTIONS, Correction
from engine.prompt.layout import NO_SLOTS, ImageSpan, Ints, PromptLayout, Span, own_text_slots
from store.records.entry import ImageKV


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`logits` float32 [vocab] of the first token. `refreshed` holds, span by span, how many visual tokens were
    computed (a layer-wise policy's mean over the layers, rounded up); `exact` whether the span was restored as it is
    because nothing could differ, or lay in an exact chain. `computed` are the slots of the last pass that were computed
    at every layer, ascending; `turns` those of text that was not, and is as another history left it."""

    logits: torch.Tensor
    refreshed: tuple[int, ...]
    exact: tuple[bool, ...]
    computed: Ints
    turns: Ints


class Prefill:
    """One request's prefill. `features` [levels, tokens, hidden] per span, in prompt order, on the model's device;
    `kv` must hold `slots_needed(layout)` slots. `match` is the chain that the prompt goes on from: of spans in its
    exact head neither features nor entries are looked at (they may be None). Texts of its `turns` are restored, scored
    and refreshed as images are. `witness` is told of every visual token.

    `full` or `reuse` is all that a request needs; the steps of `reuse` may also be taken one by one.
    """

    def __init__(
        self,
        family: Family,
        kv: RequestKV,
        layout: PromptLayout,
        features: Sequence[torch.Tensor | None],
        work: Work,
        match: Match = NO_MATCH,
        witness: Witness | None = None,
    ) -> None:
        self.family, self.kv, self.layout, self.work, self.match = family, kv, layout, work, match
        self.prompt_rows = PromptRows(family, layout, features)
        self._turns = slots_of_turns(match)
        self.prober = Prober(family, kv, self.prompt_rows, work, match.exact, self._turns)
        self._given = match.given(layout.length)
        self._witness = witness

    def full(self) -> Prefilled:
        """Compute every row behind the exact chain (policy `full`, and where no image is left to reuse)."""
        first, spans = self.match.exact, self.layout.spans
        self.match.write_head(self.kv.keys, self.kv.values)
        slots = np.arange(first, self.layout.length)
        chained = tuple(span.stop <= first for span in spans)
        refreshed = tuple(0 if held else span.tokens for span, held in zip(spans, chained, strict=True))
        if self._witness is not None:
            visual = self._not_given(self.layout.visual_slots())
            self._witness.computed(visual, np.ones(len(visual)))
        return Prefilled(self._pass(slots), refreshed, chained, slots, NO_SLOTS)

    def reuse(self, entries: Sequence[ImageKV | None], policy: Policy, ratio: float) -> Prefilled:
        """Restore `entries` (one per span, in prompt order) and refresh what `policy` chooses."""
        if self.match.exact and not self._behind_head():
            return self.full()
        candidates = self.restore(entries, policy, ratio)
        if isinstance(policy, LayerwisePolicy) and ratio < 1:
            return self.shrink(candidates, policy, ratio)
        if isinstance(policy, SelectingPolicy):
            chosen = self.choose(candidates, policy, ratio)
            return self.refresh(candidates, chosen, policy.refresh_text, CORRECTIONS[policy.correction])
        return self.refresh(candidates, candidates.slots, policy.refresh_text)

    def restore(self, entries: Sequence[ImageKV | None], policy: Policy, ratio: float) -> Candidates:
        """Write the chain's head, and all entries and turns behind it, to their slots; what may be refreshed is all but
        the head and the exact spans (r = 1 has none)."""
        self.match.write_head(self.kv.keys, self.kv.values)
        spans = self._behind_head()
        found = [entry for entry in entries[len(entries) - len(spans) :] if entry is not None]
        restore(self.kv, spans, found, self.prompt_rows.rope)
        texts = text_entries(self.family, self.match.turns)
        restore(self.kv, tuple(texts), tuple(texts.values()), self.prompt_rows.rope)
        exact = self.layout.exact if policy.keeps_exact and ratio < 1 else ()
        images = [(span, entry) for span, entry in zip(spans, found, strict=True) if span not in exact]
        offered: dict[Span, ImageKV | TextKV] = {**texts, **dict(images)}
        return candidates_of(offered, self.family.device)

    def refresh(
        self, candidates: Candidates, chosen: Ints, all_text: bool, correction: Correction | None = None
    ) -> Prefilled:
        """Compute the rows at `chosen` slots and the text (all of it, or what stands behind the last image) but turns,
        and of these what the chain does not have; let `correction` move the candidates that are left."""
        self.match.write_rest(self.kv.keys, self.kv.values)
        text = np.setdiff1d(self.layout.text_slots() if all_text else self.layout.tail(), self._turns)
        wanted = np.sort(np.concatenate((chosen, self._own_text(chosen), text)))
        slots, chosen = self._not_given(wanted), self._not_given(chosen)
        watch = None
        if correction is not None and 0 < len(chosen) < len(candidates):
            watch = Corrected(correction, self.kv, self.prompt_rows.rope, candidates, slots, chosen)
        logits = self._pass(slots, watch)
        return self._prefilled(logits, candidates, chosen, np.ones(len(chosen)), slots)

    def shrink(self, candidates: Candidates, policy: LayerwisePolicy, ratio: float) -> Prefilled:
        """Compute the text and, layer by layer, what the policy keeps of the candidates."""
        layers = self.family.shape.layers
        counts = policy.counts(ratio, len(candidates), layers)
        text = np.setdiff1d(self.layout.text_slots(), self._turns)
        text = text[text >= self.match.exact]
        slots = np.sort(np.concatenate((candidates.slots, text)))
        is_candidate = self.prompt_rows.tensor(np.isin(slots, candidates.slots))
        shrinking = ShrinkingPass(self.family, self.kv, policy, self.work)
        shrunk = shrinking.run(self.prompt_rows.at(slots), is_candidate, counts)
        shares = shrunk.layers_computed.cpu().numpy() / layers
        return self._prefilled(
            self.family.logits(shrunk.hidden)[0], candidates, candidates.slots, shares, text
        )

    def _own_text(self, chosen: Ints) -> Ints:
        """Slots of the text inside images: where every visual token of an image is computed, so is the rest of it."""
        mixed = [span for span in self.layout.spans if span.tokens < span.shape.rows]
        whole = [span for span in mixed if np.isin(span.visual_slots(), chosen).all()]
        return own_text_slots(whole)

    def rows(self, slots: Ints) -> Rows:
        """Rows of a pass over any ascending slots."""
        return self.prompt_rows.at(slots)

    def choose(self, candidates: Candidates, policy: SelectingPolicy, ratio: float) -> Ints:
        """Slots to refresh, ascending."""
        count = budget(ratio, len(candidates))
        plan = policy.plan(self.family.shape, len(self.layout.spans))
        undecided = 0 < count < len(candidates)
        found = Probe(torch.empty(0), torch.empty(0), candidates.image)
        if plan is not None and undecided:
            found = self.prober.probe(candidates, plan, count)
            if self._witness is not None:
                self._witness.scored(candidates, policy.scores(found))
        elif plan is not None and plan.all_text:
            self.prober.score_with_all_text(plan)
        if not undecided:
            return candidates.slots[:count]
        chosen: Ints = candidates.slots[policy.select(replace(found, ratio=ratio), count).cpu().numpy()]
        return chosen

    def _pass(self, slots: Ints, watch: Capture | None = None) -> torch.Tensor:
        """Run the rows at ascending `slots`; the last one gives the logits."""
        rows = self.prompt_rows.at(slots)
        everything = len(slots) == self.layout.length
        attention = Causal(len(slots)) if everything else by_order(rows.slots, self.family.shape.group)
        hidden = run_rows(self.family, self.kv, rows, attention, self.work, watch)
        return self.family.logits(hidden)[0]

    def _not_given(self, slots: Ints) -> Ints:
        left: Ints = slots[~self._given[slots]]
        return left

    def _behind_head(self) -> tuple[ImageSpan, ...]:
        return tuple(span for span in self.layout.spans if span.start >= self.match.exact)

    def _prefilled(
        self, logits: torch.Tensor, candidates: Candidates, visual: Ints, shares: np.ndarray, computed: Ints
    ) -> Prefilled:
        """`shares` [visual]: the share of the layers that computed each of the `visual` slots."""
        if self._witness is not None:
            self._witness.computed(visual, shares)
            self._witness.moved(self.kv, self.prompt_rows.rope, candidates)
        spans = self.layout.spans
        inside = [(visual >= span.start) & (visual < span.stop) for span in spans]
        refreshed = tuple(int(np.ceil(shares[within].sum() - 1e-6)) for within in inside)
        exact = tuple(span not in candidates.spans for span in spans)
        return Prefilled(
            logits, refreshed, exact, computed, np.setdiff1d(self._not_given(self._turns), computed)
        )


def slots_of_turns(match: Match) -> Ints:
    """Slots of text that another history computed, ascending."""
    runs = [np.arange(turn.start, turn.stop) for turn in match.turns]
    return np.concatenate(runs) if runs else NO_SLOTS


def slots_needed(layout: PromptLayout) -> int:
    """Slots that a prefill writes to: the prompt, and the ghost query behind it where there is one."""
    return max(layout.length, int(layout.query.slots[-1]) + 1)
