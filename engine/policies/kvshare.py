"""KVShare's DHD (arXiv 2503.16525): refresh what deviates and is attended to, ever fewer tokens with depth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.policies import options
from engine.policies.base import LayerProbe, LayerwisePolicy, register
from engine.policies.shrinking import linear_counts, released_counts


@register
@dataclass(frozen=True, slots=True)
class KVShare(LayerwisePolicy):
    """Attention that a token gets from all rows of the pass x L1 distance of its value from the stored one.

    variant: "ours" leaves out images that are exact; "paper" is CONDUIT's arm as released, every image a candidate."""

    variant: str = "ours"

    name: ClassVar[str] = "kvshare"
    wants_mass: ClassVar[bool] = True

    def __post_init__(self) -> None:
        options.one_of(self.name, "variant", self.variant, options.VARIANTS)

    @property
    def keeps_exact(self) -> bool:
        return self.variant == "ours"

    def counts(self, ratio: float, candidates: int, layers: int) -> tuple[int, ...]:
        schedule = linear_counts if self.variant == "ours" else released_counts
        return schedule(ratio, candidates, layers)

    def importance(self, probe: LayerProbe) -> torch.Tensor:
        moved = (probe.new_values.float() - probe.old_values.float()).abs().sum(dim=(0, 2))
        return probe.mass * moved
