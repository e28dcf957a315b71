"""What one image leaves behind in the store, as tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes and dtype of an entry: what a model must find in order to use it. `levels` of features."""

    layers: int
    kv_heads: int
    tokens: int
    head_dim: int
    levels: int
    hidden: int
    dtype: str

    @property
    def tensors(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Dtype and shape by name."""
        kv = (self.layers, self.kv_heads, self.tokens, self.head_dim)
        return {
            "keys": (self.dtype, kv),
            "values": (self.dtype, kv),
            "features": (self.dtype, (self.levels, self.tokens, self.hidden)),
            "value_norms": ("float32", (self.layers, self.tokens)),
        }


@dataclass(frozen=True, slots=True)
class ImageKV:
    """Visual KV of one image, computed behind the canonical prefix. Tensors are contiguous, on the CPU (keys
    and values of a lossy codec on the device that it decodes on) and never written to once the entry has been handed
    to the store: it may be shared by several requests and by the writer.

    keys         [layers, kv_heads, tokens, head_dim], before RoPE
    values       [layers, kv_heads, tokens, head_dim]
    features     [levels, tokens, hidden]; level 0 is the vision embedding, further levels feed DeepStack
    value_norms  [layers, tokens] float32, for scoring without V
    """

    keys: torch.Tensor
    values: torch.Tensor
    features: torch.Tensor
    value_norms: torch.Tensor

    @property
    def tokens(self) -> int:
        return int(self.keys.shape[2])

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in (self.keys, self.values, self.features, self.value_norms))
