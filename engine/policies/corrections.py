"""What the refreshed rows of an image tell about its other rows, which stay as they were stored.

Where an image stands now, what stands before it has moved its keys and values. The refreshed rows show it: they are
there both as stored and as they should be. A correction says, image by image and once for all layers, by which mixture
of these differences each of the image's other rows is moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch

# (keys [kv_heads, rows, head_dim]: an image's, as stored at the middle layer; told [n]: which of its rows are
# refreshed) -> the share of each of their differences that moves a row: float32 [rows, n], or [1, n] where all rows
# move alike.
Weights = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

# So many rows that did not move are added to those that were seen, so that few rows move others by little.
UNMOVED_ROWS: Final = 2
# How much of a row's move is its own, where a row is like itself by 2.
NOISE: Final = 1.0
# The first layer whose keys and values depend on what stands before a token.
FIRST_WITH_CONTEXT: Final = 1
# What the last bits of a product may be wrong by.
ROUNDING: Final = 1e-9
# Keeps a row that is its image's mean from being divided by nothing.
SHORTEST: Final = 1e-6


@dataclass(frozen=True, slots=True)
class Correction:
    """`depth`: a layer is corrected that has at most this share of the layers before it."""

    weights: Weights
    depth: float = 1.0

    def corrects(self, layer: int, layers: int) -> bool:
        """Whether it moves rows at this layer of so many. Layer 0 sees no context and is exact as stored."""
        return FIRST_WITH_CONTEXT <= layer <= self.depth * layers + ROUNDING


def shift(keys: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
    """The mean difference of an image's n refreshed rows, shrunk by n / (n + 2), for all rows alike."""
    count = len(told)
    return torch.full((1, count), 1 / (count + UNMOVED_ROWS), device=keys.device)


def ridge(keys: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
    """Rows whose keys point the same way move alike: ridge regression of the differences on (1, direction of the stored
    key less the image's mean), fitted on the refreshed rows, in its dual form (likeness of two rows: 1 + cosine)."""
    rows = keys.float().transpose(0, 1).flatten(1)
    rows = rows - rows.mean(0)
    rows = rows / rows.norm(dim=1, keepdim=True).clamp(min=SHORTEST)
    like = 1 + rows @ rows[told].T
    noisy = like[told] + NOISE * torch.eye(len(told), device=keys.device)
    # Unchecked: what is no number goes on to where the logits are checked, and no device waits for the host.
    root = torch.linalg.cholesky_ex(noisy).L
    return torch.cholesky_solve(like.T, root).T


# Behind two thirds of the layers a row turns to what it says next, which is its own: likeness tells little there.
CORRECTIONS: Final[Mapping[str, Correction | None]] = {
    "none": None,
    "shift": Correction(shift),
    "ridge": Correction(ridge, 2 / 3),
}
