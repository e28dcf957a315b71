"""KVShare's DHD (arXiv 2503.16525): refresh what deviates and is attended to, ever fewer tokens with depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.policies.base import LayerProbe, LayerwisePolicy, register
from engine.policies.shrinking import linear_counts


@register
@dataclass(frozen=True, slots=True)
class KVShare(LayerwisePolicy):
    """Attention that a token gets from all rows of the pass x L1 distance of its value from the stored one."""

    name: ClassVar[str] = "kvshare"
    wants_mass: ClassVar[bool] = True

    def counts(self, ratio: float, candidates: int, layers: int) -> tuple[int, ...]:
        return linear_counts(ratio, candidates, layers)

    def importance(self, probe: LayerProbe) -> torch.Tensor:
        moved = (probe.new_values.float() - probe.old_values.float()).abs().sum(dim=(0, 2))
        return probe.mass * moved
