"""Plain reuse: no visual token is recomputed, whatever the refresh ratio says (the r = 0 end of every policy)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.policies.base import Probe, SelectingPolicy, register


@register
@dataclass(frozen=True, slots=True)
class Reuse(SelectingPolicy):
    name: ClassVar[str] = "reuse"
    fixed_ratio: ClassVar[float | None] = 0.0

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        return torch.empty(0, dtype=torch.long)
