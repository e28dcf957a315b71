"""Finds out what a policy asks about the tokens that it may choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from engine.families.base import Family
from engine.passes.attention import by_order
from engine.passes.forward import Work, keep
from engine.passes.kv import RequestKV
from engine.passes.rotation import rotate
from engine.passes.rows import PromptRows
from engine.passes.score import attention_mass, behind_output, joined_by_head
from engine.passes.turns import TextKV
from engine.policies.base import EMPTY, SHORTLIST_EXTRA, Probe, ScorePlan, top
from engine.policies.conduit import damped
from engine.policies.corrections import FIRST_WITH_CONTEXT
from engine.prompt.layout import NO_SLOTS, Ints, PromptLayout, Query, Span, offered_slots, tail_query
from store.records.entry import ImageKV


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens that a refresh may choose, of images and of texts of another history: `slots` ascending, `image` [tokens]
    counts their spans from 0 (a text is an image to policies)."""

    spans: tuple[Span, ...]
    entries: tuple[ImageKV | TextKV, ...]
    slots: Ints
    image: torch.Tensor

    def __len__(self) -> int:
        return len(self.slots)

    def stored(self, read: Callable[[ImageKV | TextKV], torch.Tensor]) -> torch.Tensor:
        """What the entries hold of these tokens, side by side. `read` gives [any, rows, ...] of an entry, of which an
        image's own text rows are left out."""
        parts = []
        for span, entry in zip(self.spans, self.entries, strict=True):
            rows, inside = read(entry), offered_slots((span,)) - span.start
            whole = len(inside) == span.stop - span.start
            parts.append(rows if whole else rows[:, torch.as_tensor(inside, device=rows.device)])
        return torch.cat([part.to(self.image.device) for part in parts], dim=1)


def candidates_of(restored: Mapping[Span, ImageKV | TextKV], device: torch.device) -> Candidates:
    """All that spans offer, in prompt order."""
    spans = tuple(sorted(restored, key=lambda span: span.start))
    image = np.repeat(np.arange(len(spans)), [len(offered_slots((span,))) for span in spans])
    return Candidates(
        spans,
        tuple(restored[span] for span in spans),
        offered_slots(spans),
        torch.as_tensor(image, device=device),
    )


class Prober:
    """Probes one request, whose entries have been restored into `kv`. Text before slot `head` is there as well: it is
    masked like other text, but stays. `turns` are slots of text that was restored as images were."""

    def __init__(
        self,
        family: Family,
        kv: RequestKV,
        rows: PromptRows,
        work: Work,
        head: int = 0,
        turns: Ints = NO_SLOTS,
    ) -> None:
        self._family, self._kv, self._rows, self._work, self._head = family, kv, rows, work, head
        self._turns = turns
        self._text = np.setdiff1d(rows.layout.text_slots(), turns)

    def probe(self, candidates: Candidates, plan: ScorePlan, count: int) -> Probe:
        """`count` is the budget that the policy is about to spend."""
        device = self._family.device
        scores = self.score_with_all_text(plan) if plan.all_text else self._score_with_query(plan)
        by_head = scores[:, :, torch.as_tensor(candidates.slots, device=device)]
        mass, norms = by_head.mean(1), candidates.stored(lambda entry: entry.value_norms[list(plan.layers)])
        contribution = EMPTY
        if plan.value_mode in ("per_head", "wo"):
            listed = torch.arange(len(candidates), device=device)
            if plan.shortlist:
                flat = (mass * norms).mean(0)
                listed = top(
                    damped(flat, candidates.image, plan.damping), plan.shortlist * count + SHORTLIST_EXTRA
                )
            contribution = self._contribution(candidates, plan, by_head, listed)
        deviation = self._deviation(candidates) if plan.deviation else EMPTY
        return Probe(mass, norms, candidates.image, contribution, deviation)

    def _score_with_query(self, plan: ScorePlan) -> torch.Tensor:
        """Only the query rows run, over what was restored and one another; other text is not there yet and is
        masked."""
        layout, query = self._rows.layout, query_of(self._rows.layout, plan, self._asking_from())
        end = int(query.slots[-1]) + 1
        present = np.zeros(end, dtype=bool)
        present[layout.restored_slots()] = True
        present[self._turns] = True
        unwritten = ~present
        unwritten[: self._head] = False
        absent = self._rows.tensor(np.flatnonzero(unwritten))
        # What earlier requests left there is masked; zeros keep a stray NaN among it from spreading.
        self._kv.keys[:, :, absent] = 0
        self._kv.values[:, :, absent] = 0
        present[query.slots] = True
        visible = self._rows.tensor(present[None, :] & (np.arange(end)[None, :] <= query.slots[:, None]))
        rows = self._rows.asking(query)
        return attention_mass(
            self._family, self._kv, rows, visible, _last(plan.last), plan.layers, self._work
        )

    def score_with_all_text(self, plan: ScorePlan) -> torch.Tensor:
        """The paper's stage 1: all text rows at full depth, their KV stays; the trailing text asks."""
        layout = self._rows.layout
        text = self._text
        asking = _asking_behind_images(layout, plan, int((text >= self._asking_from()).sum()))
        visible = self._rows.tensor(np.arange(layout.length)[None, :] <= text[:, None])
        every = range(self._family.shape.layers)
        rows = self._rows.at(text)
        scores = attention_mass(self._family, self._kv, rows, visible, _last(asking), every, self._work)
        return scores[list(plan.layers)]

    def _asking_from(self) -> int:
        """Where the text behind the last image begins that is computed for this prompt."""
        start = int(self._rows.layout.tail()[0])
        return start if len(self._turns) == 0 else max(start, int(self._turns[-1]) + 1)

    def _contribution(
        self, candidates: Candidates, plan: ScorePlan, by_head: torch.Tensor, listed: torch.Tensor
    ) -> torch.Tensor:
        """[score layers, candidates], zero but for the `listed` ones. `by_head` [score layers, heads, candidates]."""
        found = torch.zeros(len(plan.layers), len(candidates), device=by_head.device)
        for row, (head_mass, layer) in enumerate(zip(by_head, plan.layers, strict=True)):
            stored = candidates.stored(lambda entry, layer=layer: entry.values[layer])  # type: ignore[misc]
            mass, values = head_mass[:, listed], stored[:, listed]
            if plan.value_mode == "wo":
                found[row, listed] = behind_output(mass, values, self._family.output_projection(layer))
            else:
                found[row, listed] = joined_by_head(mass, values)
        return found

    def _deviation(self, candidates: Candidates) -> torch.Tensor:
        """Run layer 0 for all candidates and compare the keys that layer 1 makes of them with the stored ones."""
        family, shape = self._family, self._family.shape
        text = self._rows.at(self._text)
        keep(self._kv, 0, text, *family.project_kv(0, text.hidden))
        rows = self._rows.at(candidates.slots)
        projected = family.project(0, rows.hidden)
        keep(self._kv, 0, rows, projected.keys, projected.values)
        attention = by_order(rows.slots, shape.group)
        attended = attention(rotate(projected.queries, rows.rope), self._kv.keys[0], self._kv.values[0])
        keys, _ = family.project_kv(
            FIRST_WITH_CONTEXT, rows.behind(0, family.finish(0, rows.hidden, attended))
        )
        self._work.project(shape, len(text.hidden) + 2 * len(candidates), len(candidates))
        self._work.attend(shape, attention.pairs)
        self._work.finish(shape, len(candidates))
        stored = candidates.stored(lambda entry: entry.keys[FIRST_WITH_CONTEXT])
        # Rotation keeps lengths, so keys are compared as they are stored.
        return (keys.float() - stored.float()).pow(2).sum(dim=(0, 2)).sqrt()


def query_of(layout: PromptLayout, plan: ScorePlan, start: int) -> Query:
    """The rows that ask: the layout's own, or all text from slot `start` on (a ghost holds that text already)."""
    stands_in_prompt = int(layout.query.slots[-1]) < layout.length
    if plan.span == "tail" and stands_in_prompt:
        return tail_query(layout.ids, layout.positions, start)
    return layout.query


def _asking_behind_images(layout: PromptLayout, plan: ScorePlan, behind: int) -> int:
    """How many of the prompt's last rows ask where there is no room for a ghost; `behind` can."""
    rows = behind if plan.span == "tail" else min(behind, len(layout.query.ids))
    return rows if plan.last is None else min(rows, plan.last)


def _last(rows: int | None) -> slice:
    return slice(None) if rows is None else slice(-rows, None)
