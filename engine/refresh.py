"""Prefill: from a laid-out prompt to the first logits, by full computation or by reuse and refresh.

Steps of a reuse prefill (refresh.md sections 2 and 7): restore the entries at their target positions, let the query
rows score the visual tokens, let the policy choose, then run the chosen rows and the text in one pass, in sequence
order, over the mixed KV. Nothing is ever written back to an entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from engine.attention import Causal, by_order
from engine.families.base import Family
from engine.forward import Rows, Work, run_rows
from engine.kv import RequestKV
from engine.layout import ImageSpan, Ints, PromptLayout, span_slots
from engine.policies.base import Policy, Probe, ScorePlan, budget
from engine.restore import restore, stored_norms
from engine.score import attention_mass
from store.entry import ImageKV


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`logits` float32 [vocab] of the first token. `refreshed` holds, span by span, how many visual tokens were
    computed; `exact` whether the span was restored as it is because nothing could differ."""

    logits: torch.Tensor
    refreshed: tuple[int, ...]
    exact: tuple[bool, ...]


class Prefill:
    """One request's prefill. `features` [levels, tokens, hidden] per span, in prompt order, on the model's device;
    `kv` must hold `slots_needed(layout)` slots."""

    def __init__(
        self,
        family: Family,
        kv: RequestKV,
        layout: PromptLayout,
        features: Sequence[torch.Tensor],
        work: Work,
    ) -> None:
        self.family, self.kv, self.layout, self.work = family, kv, layout, work
        self._features = features
        self._rope = family.rope(torch.as_tensor(layout.positions))

    def full(self) -> Prefilled:
        """Compute every row (policy `full`, and r = 1 of every other)."""
        slots = np.arange(self.layout.length)
        logits = self._pass(slots)
        spans = self.layout.spans
        return Prefilled(logits, tuple(span.tokens for span in spans), (False,) * len(spans))

    def reuse(self, entries: Sequence[ImageKV], policy: Policy, ratio: float) -> Prefilled:
        """Restore `entries` (one per span, in prompt order) and refresh what `policy` chooses."""
        layout = self.layout
        exact = layout.exact if policy.keeps_exact and ratio < 1 else ()
        candidates = [span for span in layout.spans if span not in exact]
        restore(self.kv, layout.spans, entries, self._rope)
        chosen = self._choose(candidates, entries, policy, ratio)
        text = layout.text_slots() if policy.refresh_text else layout.tail()
        logits = self._pass(np.sort(np.concatenate((chosen, text))))
        refreshed = tuple(int(((chosen >= span.start) & (chosen < span.stop)).sum()) for span in layout.spans)
        return Prefilled(logits, refreshed, tuple(span in exact for span in layout.spans))

    def _choose(
        self, candidates: Sequence[ImageSpan], entries: Sequence[ImageKV], policy: Policy, ratio: float
    ) -> Ints:
        """Slots to refresh, ascending."""
        slots = span_slots(candidates)
        count = budget(ratio, len(slots))
        plan = policy.plan(self.family.shape, len(self.layout.spans))
        if plan is not None and plan.all_text:
            probe = self._score_with_all_text(plan)
        elif plan is not None and 0 < count < len(slots):
            probe = self._score_with_query(plan)
        else:
            plan, probe = None, torch.empty(0)
        if count in (0, len(slots)):
            return slots[:count]
        image = np.repeat(np.arange(len(candidates)), [span.tokens for span in candidates])
        device = self.family.device
        norms = torch.empty(0)
        if plan is not None:
            of_span = dict(zip(self.layout.spans, entries, strict=True))
            norms = stored_norms([of_span[span] for span in candidates], plan.layers, device)
            probe = probe[:, torch.as_tensor(slots, device=device)]
        found = policy.select(Probe(probe, norms, torch.as_tensor(image, device=device)), count)
        return slots[found.cpu().numpy()]

    def _score_with_query(self, plan: ScorePlan) -> torch.Tensor:
        """Only the query rows run, over visual slots and one another; other text is not there yet and is masked."""
        layout, query = self.layout, self.layout.query
        end = int(query.slots[-1]) + 1
        present = np.zeros(end, dtype=bool)
        present[layout.visual_slots()] = True
        self.kv.values[:, :, torch.as_tensor(np.flatnonzero(~present), device=self.family.device)] = 0
        present[query.slots] = True
        visible = self._tensor(present[None, :] & (np.arange(end)[None, :] <= query.slots[:, None]))
        rows = Rows(
            self.family.embed(self._tensor(query.ids)),
            self._tensor(query.slots),
            self.family.rope(torch.as_tensor(query.positions)),
        )
        return attention_mass(self.family, self.kv, rows, visible, slice(None), plan.layers, self.work)

    def _score_with_all_text(self, plan: ScorePlan) -> torch.Tensor:
        """The paper's stage 1: all text rows at full depth, their KV stays; the trailing text asks."""
        text, tail = self.layout.text_slots(), self.layout.tail()
        visible = self._tensor(np.arange(self.layout.length)[None, :] <= text[:, None])
        every = range(self.family.shape.layers)
        rows = self.rows(text)
        mass = attention_mass(self.family, self.kv, rows, visible, slice(-len(tail), None), every, self.work)
        return mass[list(plan.layers)]

    def _pass(self, slots: Ints) -> torch.Tensor:
        """Run the rows at ascending `slots`; the last one gives the logits."""
        rows = self.rows(slots)
        everything = len(slots) == self.layout.length
        attention = Causal(len(slots)) if everything else by_order(rows.slots, self.family.shape.group)
        hidden = run_rows(self.family, self.kv, rows, attention, self.work)
        return self.family.logits(hidden)[0]

    def rows(self, slots: Ints) -> Rows:
        """Rows of a pass over any ascending slots: words by id, visual tokens by their vision features."""
        at = self._tensor(slots)
        hidden = self.family.embed(self._tensor(self.layout.ids[slots]))
        for span, features in zip(self.layout.spans, self._features, strict=True):
            first, last = np.searchsorted(slots, (span.start, span.stop))
            if last > first:
                hidden[first:last] = features[0][at[first:last] - span.start].to(hidden.dtype)
        return Rows(hidden, at, self._rope.at(at))

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=self.family.device)


def slots_needed(layout: PromptLayout) -> int:
    """Slots that a prefill writes to: the prompt, and the ghost query behind it where there is one."""
    return max(layout.length, int(layout.query.slots[-1]) + 1)
