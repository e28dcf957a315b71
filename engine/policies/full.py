"""Full prefill: every row is computed, the store is not touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.policies.base import Probe, SelectingPolicy, register


@register
@dataclass(frozen=True, slots=True)
class Full(SelectingPolicy):
    name: ClassVar[str] = "full"
    fixed_ratio: ClassVar[float | None] = 1.0
    uses_store: ClassVar[bool] = False

    @property
    def keeps_exact(self) -> bool:
        return False

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        return torch.arange(len(probe.image))
