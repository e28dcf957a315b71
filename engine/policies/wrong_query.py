"""Control: CONDUIT's rule, scored by a question that nobody asked. The gain that stays does not come from the query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.families.base import ModelShape
from engine.policies import options
from engine.policies.base import Probe, ScorePlan, SelectingPolicy, register
from engine.policies.conduit import Conduit

RULE = Conduit()


@register
@dataclass(frozen=True, slots=True)
class WrongQuery(SelectingPolicy):
    """text: the question that scores in the place of the user's."""

    text: str = "How is the weather today?"

    name: ClassVar[str] = "wrong_query"

    def check(self) -> None:
        options.text(self.name, "text", self.text)

    @property
    def question(self) -> str | None:
        return self.text

    def plan(self, shape: ModelShape, images: int) -> ScorePlan | None:
        return RULE.plan(shape, images)

    def scores(self, probe: Probe) -> torch.Tensor:
        return RULE.scores(probe)

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        return RULE.select(probe, budget)
