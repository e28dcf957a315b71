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

from engine.families.base import Family
from engine.passes.attention import Causal, by_order
from engine.passes.correction import Corrected
from engine.passes.forward import Capture, Rows, Work, run_rows
from engine.passes.kv import RequestKV
from engine.passes.layerwise import ShrinkingPass
from engine.passes.probe import Candidates, Prober, candidates_of
from engine.passes.restore import restore
from engine.passes.rows import PromptRows
from engine.policies.base import LayerwisePolicy, Policy, Probe, SelectingPolicy, budget
from engine.policies.corrections import CORRECTIONS, Correction
from engine.prompt.layout import Ints, PromptLayout, own_text_slots
from store.records.entry import ImageKV


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`logits` float32 [vocab] of the first token. `refreshed` holds, span by span, how many visual tokens were
    computed (a layer-wise policy's mean over the layers, rounded up); `exact` whether the span was restored as it is
    because nothing could differ."""

    logits: torch.Tensor
    refreshed: tuple[int, ...]
    exact: tuple[bool, ...]


class Prefill:
    """One request's prefill. `features` [levels, tokens, hidden] per span, in prompt order, on the model's device;
    `kv` must hold `slots_needed(layout)` slots.

    `full` or `reuse` is all that a request needs; the steps of `reuse` may also be taken one by one.
    """

    def __init__(
        self,
        family: Family,
        kv: RequestKV,
        layout: PromptLayout,
        features: Sequence[torch.Tensor],
        work: Work,
    ) -> None:
        self.family, self.kv, self.layout, self.work = family, kv, layout, work
        self.prompt_rows = PromptRows(family, layout, features)
        self.prober = Prober(family, kv, self.prompt_rows, work)

    def full(self) -> Prefilled:
        """Compute every row (policy `full`, and r = 1 of every other)."""
        logits = self._pass(np.arange(self.layout.length))
        spans = self.layout.spans
        return Prefilled(logits, tuple(span.tokens for span in spans), (False,) * len(spans))

    def reuse(self, entries: Sequence[ImageKV], policy: Policy, ratio: float) -> Prefilled:
        """Restore `entries` (one per span, in prompt order) and refresh what `policy` chooses."""
        candidates = self.restore(entries, policy, ratio)
        if isinstance(policy, LayerwisePolicy) and ratio < 1:
            return self.shrink(candidates, policy, ratio)
        if isinstance(policy, SelectingPolicy):
            chosen = self.choose(candidates, policy, ratio)
            return self.refresh(candidates, chosen, policy.refresh_text, CORRECTIONS[policy.correction])
        return self.refresh(candidates, candidates.slots, policy.refresh_text)

    def restore(self, entries: Sequence[ImageKV], policy: Policy, ratio: float) -> Candidates:
        """Write all entries to their slots; what may be refreshed is all but the exact spans (r = 1 has none)."""
        restore(self.kv, self.layout.spans, entries, self.prompt_rows.rope)
        exact = self.layout.exact if policy.keeps_exact and ratio < 1 else ()
        return candidates_of(self.layout, entries, exact, self.family.device)

    def refresh(
        self, candidates: Candidates, chosen: Ints, all_text: bool, correction: Correction | None = None
    ) -> Prefilled:
        """Compute the rows at `chosen` slots and the text (all of it, or what stands behind the last image), and let
        `correction` move the candidates that are left."""
        text = self.layout.text_slots() if all_text else self.layout.tail()
        slots = np.sort(np.concatenate((chosen, self._own_text(chosen), text)))
        watch = None
        if correction is not None and 0 < len(chosen) < len(candidates):
            watch = Corrected(correction, self.kv, self.prompt_rows.rope, candidates, slots, chosen)
        logits = self._pass(slots, watch)
        return self._prefilled(logits, candidates, chosen, np.ones(len(chosen)))

    def shrink(self, candidates: Candidates, policy: LayerwisePolicy, ratio: float) -> Prefilled:
        """Compute the text and, layer by layer, what the policy keeps of the candidates."""
        layers = self.family.shape.layers
        counts = policy.counts(ratio, len(candidates), layers)
        slots = np.sort(np.concatenate((candidates.slots, self.layout.text_slots())))
        is_candidate = self.prompt_rows.tensor(np.isin(slots, candidates.slots))
        shrinking = ShrinkingPass(self.family, self.kv, policy, self.work)
        shrunk = shrinking.run(self.prompt_rows.at(slots), is_candidate, counts)
        shares = shrunk.layers_computed.cpu().numpy() / layers
        return self._prefilled(self.family.logits(shrunk.hidden)[0], candidates, candidates.slots, shares)

    def _own_text(self, chosen: Ints) -> Ints:
        """Slots of the text inside images: where every visual token of an image is computed, so is the rest of it."""
        whole = [span for span in self.layout.spans if np.isin(span.visual_slots(), chosen).all()]
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

    def _prefilled(
        self, logits: torch.Tensor, candidates: Candidates, computed: Ints, shares: np.ndarray
    ) -> Prefilled:
        """`shares` [computed]: the share of the layers that computed each slot of `computed`."""
        spans = self.layout.spans
        inside = [(computed >= span.start) & (computed < span.stop) for span in spans]
        refreshed = tuple(int(np.ceil(shares[within].sum() - 1e-6)) for within in inside)
        return Prefilled(logits, refreshed, tuple(span not in candidates.spans for span in spans))


def slots_needed(layout: PromptLayout) -> int:
    """Slots that a prefill writes to: the prompt, and the ghost query behind it where there is one."""
    return max(layout.length, int(layout.query.slots[-1]) + 1)
