"""What the refreshed rows of an image tell about its other rows, which stay as they were stored.

Where an image stands now, what stands before it has moved its keys and values, and a good part of that move is the same
for all of its rows. The refreshed rows show it: they are there both as stored and as they should be. A correction makes
of these differences one vector an image and KV head, which is added to the image's other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
import torch.nn.functional as F

# (moved [kv_heads, rows, head_dim] float32: new minus stored of the refreshed rows; image [rows]: whose they are;
# images: how many there are) -> what to add to the other rows of each image [images, kv_heads, head_dim] float32.
Correction = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]

# So many rows that did not move are added to those that were seen, so that few rows move others by little.
UNMOVED_ROWS: Final = 2


def shift(moved: torch.Tensor, image: torch.Tensor, images: int) -> torch.Tensor:
    """The mean difference of an image's n refreshed rows, shrunk by n / (n + 2)."""
    member = F.one_hot(image, images).to(moved.dtype)
    sums = torch.einsum("ri,hrd->ihd", member, moved)
    return sums / (member.sum(0) + UNMOVED_ROWS)[:, None, None]


CORRECTIONS: Final[Mapping[str, Correction | None]] = {"none": None, "shift": shift}
