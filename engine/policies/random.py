"""Control at equal budget: visual tokens drawn at random. A rule that does not beat it has learned nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.policies import options
from engine.policies.base import Probe, SelectingPolicy, register

LARGEST_SEED = 2**63 - 1


@register
@dataclass(frozen=True, slots=True)
class Random(SelectingPolicy):
    """The same `seed` draws the same tokens from prompts of the same number of candidates."""

    seed: int = 0

    name: ClassVar[str] = "random"

    def check(self) -> None:
        options.whole(self.name, "seed", self.seed, 0, LARGEST_SEED)

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randperm(len(probe.image), generator=generator)[:budget].sort().values
