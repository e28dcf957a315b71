"""The first tokens of each image, whatever is asked: MPIC (arXiv 2502.01960), EPIC's LegoLink (2410.15332) and VLCache
(2512.12977). Early tokens are attention sinks of an image that was computed alone and deviate most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.policies import options
from engine.policies.base import Probe, SelectingPolicy, offsets, register, top
from engine.policies.base import budget as share

MOST_TOKENS = 1_000_000
SPREADS = ("even", "share")


@register
@dataclass(frozen=True, slots=True)
class FirstK(SelectingPolicy):
    """tokens: so many of each image, whatever the refresh ratio is (0: as many as the ratio gives, over all images).
    spread: how the ratio's tokens are dealt out, "even" gives each image the same number, "share" each the same share.
    """

    tokens: int = 0
    spread: str = "even"

    name: ClassVar[str] = "first_k"

    def check(self) -> None:
        options.whole(self.name, "tokens", self.tokens, 0, MOST_TOKENS)
        options.one_of(self.name, "spread", self.spread, SPREADS)

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        place = offsets(probe.image)
        if self.tokens:
            return torch.nonzero(place < self.tokens).flatten()
        if self.spread == "even":
            return top(-place, budget)
        return top(-place / torch.bincount(probe.image)[probe.image], budget)


@register
@dataclass(frozen=True, slots=True)
class Mpic(FirstK):
    """MPIC-k of the paper: the first 32 tokens of every image."""

    tokens: int = 32

    name: ClassVar[str] = "mpic"


@register
@dataclass(frozen=True, slots=True)
class Epic(FirstK):
    """LegoLink-k: the first tokens of every chunk; 16 of the 2 to 32 that were published."""

    tokens: int = 16

    name: ClassVar[str] = "epic"


@register
@dataclass(frozen=True, slots=True)
class VLCache(FirstK):
    """The first share r of every image (without the layer-dependent ratio, whose formula is not public).

    variant: "ours" spends the budget of all images together; "paper" takes ceil(r x tokens) of every image, exact ones
    too, as the public code does."""

    spread: str = "share"
    variant: str = "ours"

    name: ClassVar[str] = "vlcache"

    def check(self) -> None:
        FirstK.check(self)
        options.one_of(self.name, "variant", self.variant, options.VARIANTS)

    @property
    def keeps_exact(self) -> bool:
        return self.variant == "ours"

    def select(self, probe: Probe, budget: int) -> torch.Tensor:
        if self.variant == "ours" or self.tokens:
            return FirstK.select(self, probe, budget)
        sizes = torch.bincount(probe.image)
        first = torch.tensor([share(probe.ratio, int(size)) for size in sizes], device=probe.image.device)
        return torch.nonzero(offsets(probe.image) < first[probe.image]).flatten()
