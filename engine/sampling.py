"""Logits -> token."""

from __future__ import annotations

import torch

from engine.messages import Sampling


class Sampler:
    """Draws the tokens of one request. The same seed gives the same tokens for the same logits; without one, every
    request draws anew."""

    def __init__(self, sampling: Sampling) -> None:
        self._temperature = sampling.temperature
        self._top_p = sampling.top_p
        self._generator = torch.Generator()
        if sampling.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(sampling.seed % 2**63)

    def draw(self, logits: torch.Tensor) -> int:
        """`logits` [vocab] -> token id."""
        if self._temperature == 0:
            return int(logits.argmax())
        probabilities = torch.softmax(logits.double().cpu() / self._temperature, dim=-1)
        if self._top_p < 1:
            probabilities = nucleus(probabilities, self._top_p)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def nucleus(probabilities: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of most probable tokens whose mass reaches `top_p` (always at least one), renormalised."""
    ordered, order = probabilities.sort(descending=True, stable=True)
    before = ordered.cumsum(0) - ordered
    kept = torch.where(before < top_p, ordered, 0.0)
    kept[0] = ordered[0]
    result = torch.zeros_like(probabilities)
    result[order] = kept / kept.sum()
    return result
