"""The first tokens of the whole visual sequence, images not told apart: what CONDUIT's latency table calls MPIC
(refresh.md section 5: 9.97 TFLOP fit this reading, not the first tokens of each image)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.policies.base import Probe, SelectingPolicy, register


@register
@dataclass(frozen=True, slots=True)
class MpicFlat(SelectingPolicy):
    name: ClassVar[str] = "mpic_flat"

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        return torch.arange(budget)
