"""ProphetKV (arXiv 2602.02579): query attention alone, one global top-k. CONDUIT without value norms and images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.families.base import ModelShape
from engine.policies import options
from engine.policies.base import Probe, ScorePlan, SelectingPolicy, register, top
from engine.policies.conduit import SCORE_LAYERS, named_layers


@register
@dataclass(frozen=True, slots=True)
class ProphetKV(SelectingPolicy):
    """score_layers: as for `conduit`."""

    score_layers: str = "default"

    name: ClassVar[str] = "prophetkv"

    def check(self) -> None:
        options.whole_list(self.name, "score_layers", self.score_layers, SCORE_LAYERS)

    def plan(self, shape: ModelShape, images: int) -> ScorePlan | None:
        return ScorePlan(named_layers(self.name, self.score_layers, shape), value_mode="none")

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        return top(probe.mass.mean(0), budget)
