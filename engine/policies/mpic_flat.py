"""The first tokens of the whole visual sequence, images not told apart: what CONDUIT's latency table calls MPIC
(refresh.md section 5: 9.97 TFLOP fit this reading, not the first tokens of each image)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.policies import options
from engine.policies.base import Probe, SelectingPolicy, register


@register
@dataclass(frozen=True, slots=True)
class MpicFlat(SelectingPolicy):
    """variant: "ours" leaves out images that are exact, "paper" has every image as a candidate."""

    variant: str = "ours"

    name: ClassVar[str] = "mpic_flat"

    def check(self) -> None:
        options.one_of(self.name, "variant", self.variant, options.VARIANTS)

    @property
    def keeps_exact(self) -> bool:
        return self.variant == "ours"

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        return torch.arange(budget)
