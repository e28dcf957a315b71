"""What the engine needs of a model: its shape and the arithmetic of one layer, without any attention or cache.

A family turns a checkpoint of one architecture into these few operations. Attention, positions of rows, the KV buffer
and the order of the passes belong to the engine, so every family gets the same refresh and the same speed.
Tensors carry no batch axis: `rows` is the number of prompt rows that a pass computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from engine.families.span import SpanShape


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of the decoder. `heads` query heads share `kv_heads` key/value heads of `head_dim` each."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def group(self) -> int:
        """Query heads per key/value head."""
        return self.heads // self.kv_heads

    @property
    def score_layers(self) -> tuple[int, ...]:
        """Layers whose attention scores tokens by default: all of a shallow model, else five around the middle.

        The two published choices (CONDUIT's single-image runs, 36 and 28 layers) are kept as they are.
        """
        if self.layers < 10:
            return tuple(range(self.layers))
        return middle_layers(self.layers)


PUBLISHED_MIDDLE_LAYERS = {36: (14, 16, 18, 20, 22), 28: (12, 14, 16, 18, 20), 48: (18, 21, 24, 27, 30)}


def middle_layers(layers: int) -> tuple[int, ...]:
    """Five layers around the middle of a decoder of `layers` layers (fewer when there are not five)."""
    middle = layers // 2
    spread = (middle - 4, middle - 2, middle, middle + 2, middle + 4)
    return PUBLISHED_MIDDLE_LAYERS.get(layers, tuple(i for i in spread if 0 <= i < layers))


class Projection(NamedTuple):
    """Queries [heads, rows, head_dim], keys and values [kv_heads, rows, head_dim]; before RoPE."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


class Rope(NamedTuple):
    """Rotation of each row: cosines and sines [rows, head_dim]."""

    cos: torch.Tensor
    sin: torch.Tensor

    def at(self, rows: torch.Tensor | slice) -> Rope:
        return Rope(self.cos[rows], self.sin[rows])


class Family(Protocol):
    """A loaded model of one architecture. `levels`: of the features of an image, see `encode`."""

    shape: ModelShape
    levels: int
    device: torch.device
    dtype: torch.dtype
    image_token: int
    stop_tokens: frozenset[int]
    max_context: int
    rope_name: str
    processor_name: str

    def span(self, width: int, height: int) -> SpanShape:
        """The rows of an image of that many pixels. Raises `InvalidImage` where the processor refuses it."""
        ...

    def encode(self, pixels: np.ndarray) -> torch.Tensor:
        """Upright RGB uint8 [height, width, 3] -> features [levels, rows, hidden]: level 0 is the input embedding of
        every row of the span, level i > 0 what is added to it behind layer i - 1 (DeepStack; zero for text rows)."""
        ...

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Token ids [rows] -> input embeddings [rows, hidden]."""
        ...

    def rope(self, positions: torch.Tensor) -> Rope:
        """Positions [axes, rows] -> rotation of each row."""
        ...

    def project(self, layer: int, hidden: torch.Tensor) -> Projection:
        """Norm and q, k, v projections of one layer for hidden states [rows, hidden]."""
        ...

    def project_kv(self, layer: int, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """As `project`, without the queries."""
        ...

    def finish(self, layer: int, hidden: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Output projection of attended [heads, rows, head_dim], both residuals and the MLP."""
        ...

    def output_projection(self, layer: int) -> torch.Tensor:
        """Weight of a layer's output projection [hidden, heads x head_dim], for scores that look behind it."""
        ...

    def stock_logits(self, ids: np.ndarray, pictures: Sequence[np.ndarray]) -> torch.Tensor:
        """Last row's logits [vocab] by the library's own full prefill, none of it ours: what we must equal."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Final norm and head: [rows, hidden] -> float32 [rows, vocab]."""
        ...
