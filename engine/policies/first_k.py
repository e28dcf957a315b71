"""The first tokens of each image, whatever is asked: MPIC (arXiv 2502.01960), EPIC's LegoLink (2410.15332) and VLCache
(2512.12977). Early tokens are attention sinks of an image that was computed alone and deviate most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from engine.policies import options
from engine.policies.base import Probe, SelectingPolicy, offsets, register, top

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
    """The first share r of every image (without the layer-dependent ratio, whose formula is not public)."""

    spread: str = "share"

    name: ClassVar[str] = "vlcache"
