"""ProphetKV (arXiv 2602.02579): query attention alone, one global top-k. CONDUIT without value norms and images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.families.base import ModelShape
from engine.policies import options
from engine.policies.base import Probe, ScorePlan, SelectingPolicy, register, top
from engine.policies.conduit import SCORE_LAYERS, Conduit, named_layers


@register
@dataclass(frozen=True, slots=True)
class ProphetKV(SelectingPolicy):
    """score_layers: as for `conduit`.
    variant: "ours", or "paper": scored, refreshed and without exact images as `conduit` with its preset "paper"."""

    score_layers: str = "default"
    variant: str = "ours"

    name: ClassVar[str] = "prophetkv"

    def check(self) -> None:
        options.whole_list(self.name, "score_layers", self.score_layers, SCORE_LAYERS)
        options.one_of(self.name, "variant", self.variant, options.VARIANTS)

    @property
    def keeps_exact(self) -> bool:
        return self.variant == "ours"

    @property
    def refresh_text(self) -> bool:
        return self.variant == "ours"

    def plan(self, shape: ModelShape, images: int) -> ScorePlan | None:
        if self.variant == "paper":
            rule = Conduit(preset="paper", score_layers=self.score_layers, value_mode="none")
            return rule.plan(shape, images)
        return ScorePlan(named_layers(self.name, self.score_layers, shape), value_mode="none")

    def scores(self, probe: Probe) -> torch.Tensor:
        return probe.mass.mean(0)

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        return top(self.scores(probe), budget)
