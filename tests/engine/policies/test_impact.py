"""Our own rule against its formula (docs/policies/impact.md), spelled out token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.policies.base import Probe
from engine.policies.impact import Impact


def plain_choice(found: Probe, damping: float, count: int) -> list[int]:
    tokens, image = range(len(found.image)), found.image.tolist()
    x = [np.mean([float(layer[t]) for layer in found.contribution]) for t in tokens]
    mu = [np.mean([x[t] for t in tokens if image[t] == j]) for j in range(max(image) + 1)]
    d = [(1 - damping) + damping * m / np.mean(mu) for m in mu]
    return sorted(sorted(tokens, key=lambda t: (-x[t] / d[image[t]], t))[:count])


@pytest.mark.parametrize("damping", [0.0, 0.25, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_choice_equals_the_plain_formula(seed: int, damping: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.tensor([7, 40, 13])
    # Images that score apart, so that holding back the strong ones moves the choice.
    strength = torch.tensor([1.0, 2.0, 4.0]).repeat_interleave(sizes)
    contribution = torch.rand(3, 60, generator=draw) * strength
    found = Probe(torch.empty(0), torch.empty(0), torch.arange(3).repeat_interleave(sizes), contribution)
    chosen = Impact(image_damping=damping).select(found, 9).tolist()
    assert chosen == plain_choice(found, damping, 9)
    assert damping == 0 or chosen != Impact(image_damping=0.0).select(found, 9).tolist()


def test_half_damping_is_what_was_measured() -> None:
    assert Impact() == Impact(image_damping=0.5)
