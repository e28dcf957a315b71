"""Rules that only the evaluation knows: ideas for one of our own, each one step away from `impact` (what they are worth
is measured by `eval.own_rule`), and steps between `conduit` and the paper's preset (for `eval.ablations`).

They are policies as the engine knows them, and not registered: requests cannot ask for them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.families.base import ModelShape
from engine.passes.probe import Prober
from engine.passes.refresh import Prefill
from engine.policies.base import Policy, Probe, ScorePlan, SelectingPolicy, budget, offsets, top
from engine.policies.conduit import Conduit, damped, favour_each_image, image_coefficients
from engine.policies.impact import Impact
from engine.prompt.layout import Ints
from store.records.entry import ImageKV


@dataclass(frozen=True, slots=True)
class Scored(SelectingPolicy):
    """`impact`'s scores, from which an idea makes its own. Nothing is cut short by a shortlist."""

    name: ClassVar[str] = "scored"

    def plan(self, shape: ModelShape, images: int) -> ScorePlan | None:
        return ScorePlan(shape.score_layers, value_mode="wo")

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        return top(self.scores(probe), budget)

    def scores(self, probe: Probe) -> torch.Tensor:
        return damped(probe.contribution.mean(0), probe.image, Impact().image_damping)


@dataclass(frozen=True, slots=True)
class Sinks(Scored):
    """The first tokens of every image, which draw attention whatever they say, are refreshed before all others."""

    first: int = 1

    def scores(self, probe: Probe) -> torch.Tensor:
        scores = Scored.scores(self, probe)
        return scores + (offsets(probe.image) < self.first) * (scores.max() + 1)


@dataclass(frozen=True, slots=True)
class Blocks(Scored):
    """Whole blocks of rows x columns: a token counts as much as the mean of its block, and within it by its own score.
    `width` is that of the images' grid; a block of one row may be used where widths differ."""

    rows: int
    columns: int
    width: int

    def scores(self, probe: Probe) -> torch.Tensor:
        scores = Scored.scores(self, probe)
        row, column = offsets(probe.image) // self.width, offsets(probe.image) % self.width
        place = torch.stack((probe.image, row // self.rows, column // self.columns))
        _, block = torch.unique(place, dim=1, return_inverse=True)
        sizes = torch.bincount(block)
        means = torch.zeros(len(sizes)).index_add_(0, block, scores) / sizes
        return means[block] + scores * 1e-6


@dataclass(frozen=True, slots=True)
class Adaptive(Scored):
    """The smallest number of tokens that hold a share `tau` of all scores, and the budget at most."""

    tau: float

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        scores = self.scores(probe)
        share = scores.sort(descending=True).values.cumsum(0) / scores.sum()
        return top(scores, min(budget, int((share < self.tau).sum()) + 1))


@dataclass(frozen=True, slots=True)
class Dealt(Scored):
    """The budget is dealt out evenly, image by image."""

    def scores(self, probe: Probe) -> torch.Tensor:
        return favour_each_image(Scored.scores(self, probe), probe.image, len(probe.image))


@dataclass(frozen=True, slots=True)
class Concentrated(Scored):
    """An image weight that knows when to act: c_j favours the best image where one image holds nearly all of the
    scores, and holds it back where several are close (1 - 2 x entropy over images, from +1 to -1)."""

    def scores(self, probe: Probe) -> torch.Tensor:
        impact = probe.contribution.mean(0)
        sums = torch.bincount(probe.image, impact)
        if len(sums) < 2:
            return impact
        share = (sums / sums.sum()).clamp(min=1e-12)
        weight = 1 - 2 * float(-(share * share.log()).sum() / math.log(len(sums)))
        if weight < 0:
            return damped(impact, probe.image, -weight)
        return impact * image_coefficients(impact, probe.image, weight)[probe.image]


@dataclass(frozen=True, slots=True)
class Stale(Scored):
    """Score x how far a token's key at layer 1 is from the stored one."""

    def plan(self, shape: ModelShape, images: int) -> ScorePlan | None:
        return ScorePlan(shape.score_layers, value_mode="wo", deviation=True)

    def scores(self, probe: Probe) -> torch.Tensor:
        return Scored.scores(self, probe) * probe.deviation


@dataclass(frozen=True, slots=True)
class TwoRounds(Policy):
    """Half of the budget by `impact`; what that changes is scored again, and the better half of the second look is
    added. One more scoring pass and half a refresh pass."""

    name: ClassVar[str] = "two_rounds"


def in_two_rounds(prefill: Prefill, entries: tuple[ImageKV, ...], ratio: float) -> torch.Tensor:
    """Logits of the first token by `TwoRounds`."""
    rule = Scored()
    candidates = prefill.restore(entries, rule, ratio)
    count = budget(ratio, len(candidates))
    if not 0 < count < len(candidates):
        return prefill.refresh(candidates, candidates.slots[:count], True).logits
    plan = rule.plan(prefill.family.shape, len(prefill.layout.spans))
    assert plan is not None

    # A prober of its own: one that remembers its passes would not look again.
    prober = Prober(prefill.family, prefill.kv, prefill.prompt_rows, prefill.work)
    first = top(rule.scores(prober.probe(candidates, plan, count)), -(-count // 2))
    prefill.refresh(candidates, candidates.slots[first.numpy()], True)
    # The second look is over the refreshed keys; values are scored as they are stored.
    again = rule.scores(prober.probe(candidates, plan, count))
    again[first] = again.max() + 1
    chosen: Ints = candidates.slots[top(again, count).numpy()]
    return prefill.refresh(candidates, chosen, True).logits


@dataclass(frozen=True, slots=True)
class AllTextScores(Conduit):
    """`conduit` with the paper's scoring pass over all text at full depth; the rest is ours."""

    def plan(self, shape: ModelShape, images: int) -> ScorePlan | None:
        return ScorePlan(shape.score_layers, all_text=True)


@dataclass(frozen=True, slots=True)
class TailRefresh(AllTextScores):
    """The same, and only the text behind the last image is computed against refreshed KV."""

    @property
    def refresh_text(self) -> bool:
        return False
