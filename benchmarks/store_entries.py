"""Entries to store, of the size that a 3B model's have."""

from __future__ import annotations

import torch

from store.records.entry import ImageKV
from store.records.keys import ModelKey, VisualKey, pixel_digest

# 36 layers with 2 heads of 128 channels: Qwen2.5-VL-3B.
LAYERS, HEADS, CHANNELS, HIDDEN = 36, 2, 128, 2048


def key_of(number: int) -> VisualKey:
    model = ModelKey("benchmark", "", "", "", "bfloat16", "raw", (), "")
    return VisualKey("benchmark", "benchmark", model, pixel_digest(2, 1, number.to_bytes(6, "little")), 2, 1)


def make_entry(tokens: int) -> ImageKV:
    """Random content in bf16, with the large channel offsets that keys have."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    keys = draw(LAYERS, HEADS, tokens, CHANNELS) + 50 * draw(LAYERS, HEADS, 1, CHANNELS)
    return ImageKV(
        keys.bfloat16(),
        draw(LAYERS, HEADS, tokens, CHANNELS).bfloat16(),
        draw(1, tokens, HIDDEN).bfloat16(),
        draw(LAYERS, tokens),
    )
