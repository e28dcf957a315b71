"""CacheBlend (arXiv 2405.16444): refresh what deviates most from the stored KV. No question is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.policies import options
from engine.policies.base import LayerProbe, LayerwisePolicy, register
from engine.policies.shrinking import fixed_counts, linear_counts, released_counts

VARIANTS = ("ours", "paper", "original")
MEASURES = ("default", "keys", "values", "both")
CHECK_LAYER = 1


@register
@dataclass(frozen=True, slots=True)
class CacheBlend(LayerwisePolicy):
    """variant: "ours" is CONDUIT's arm, nested sets that shrink linearly with depth, without images that are exact;
    "paper" is that arm as released, every image a candidate; "original" computes all tokens up to layer 1, chooses
    there, and keeps the set.
    measure: L2 distance of "keys", of "values", or the sum of "both"; "default" is values for original, else both.
    """

    variant: str = "ours"
    measure: str = "default"

    name: ClassVar[str] = "cacheblend"

    def __post_init__(self) -> None:
        options.one_of(self.name, "variant", self.variant, VARIANTS)
        options.one_of(self.name, "measure", self.measure, MEASURES)

    @property
    def keeps_exact(self) -> bool:
        return self.variant != "paper"

    def counts(self, ratio: float, candidates: int, layers: int) -> tuple[int, ...]:
        if self.variant == "original":
            return fixed_counts(ratio, candidates, layers, CHECK_LAYER)
        schedule = released_counts if self.variant == "paper" else linear_counts
        return schedule(ratio, candidates, layers)

    def importance(self, probe: LayerProbe) -> torch.Tensor:
        measure = self.measure
        if measure == "default":
            measure = "values" if self.variant == "original" else "both"
        if measure == "keys":
            return distance(probe.new_keys, probe.old_keys)
        values = distance(probe.new_values, probe.old_values)
        return values if measure == "values" else values + distance(probe.new_keys, probe.old_keys)


def distance(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    """L2 distance over all KV heads: [kv_heads, tokens, head_dim] -> float32 [tokens]."""
    return (new.float() - old.float()).pow(2).sum(dim=(0, 2)).sqrt()
