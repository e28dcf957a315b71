"""What one segment of a chain leaves behind in the store, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """What a prompt must find in order to use a segment: the model's sizes and dtype, `before` (hex), the name of all
    that comes before it, and `entry` (hex), the key of the image entry that has the rows it does not hold; "" for text,
    which holds all of its rows."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    before: str
    entry: str

    def tensors(self, rows: int, words: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Dtype and shape by name."""
        kv = (self.layers, self.kv_heads, rows, self.head_dim)
        return {
            "keys": (self.dtype, kv),
            "values": (self.dtype, kv),
            "offsets": ("uint8", (rows, 4)),
            "ids": ("uint8", (words, 8)),
            "start": ("uint8", (1, 4)),
        }


@dataclass(frozen=True, slots=True)
class SegmentKV:
    """Rows of one segment of a chain. Never written to once handed to the store.

    keys     [layers, kv_heads, rows, head_dim], rotated to where they stand
    values   [layers, kv_heads, rows, head_dim]
    offsets  [rows] int64, ascending: where among the `tokens` slots of the segment the rows stand
    ids      [tokens] int64 of a text, empty for an image
    start    slot of the prompt at which the segment begins
    before   name of all that comes before the segment (hex)
    entry    key of its image's entry, or "" (hex)
    """

    keys: torch.Tensor
    values: torch.Tensor
    offsets: torch.Tensor
    ids: torch.Tensor
    tokens: int
    start: int
    before: str
    entry: str

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as they are stored."""
        return self.keys.nbytes + self.values.nbytes + 4 * len(self.offsets) + 8 * len(self.ids)
