"""Canonical compile: one image alone, behind the model's chat template with the default system prompt.

The prefix decides how good plain reuse is, costs nothing later (its own KV is dropped), and is part of the key. Keys
are kept before RoPE, so that an entry can be placed anywhere with the model's own rotation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from engine.errors import NotFinite
from engine.families.base import Family
from engine.families.span import SpanShape
from engine.passes.attention import Causal
from engine.passes.forward import Rows, Work, run_rows
from engine.passes.kv import KVPool
from engine.prompt.layout import place, positions_of
from store.records.entry import ImageKV, Layout


def compile_image(
    family: Family,
    pool: KVPool,
    prefix_ids: Sequence[int],
    features: torch.Tensor,
    span: SpanShape,
    work: Work,
) -> ImageKV:
    """Features [levels, rows, hidden] of one image -> its entry (CPU tensors). Rows behind the image cannot
    influence it and are not run. Raises `NotFinite`: what is kept is used again and again."""
    ids, spans = place([*prefix_ids, family.image_token], family.image_token, [(0, span)])
    positions, _ = positions_of(len(ids), spans)
    start = len(prefix_ids)
    prefix = family.embed(torch.as_tensor(np.asarray(prefix_ids), device=family.device))
    hidden = torch.cat((prefix, features[0].to(prefix.dtype)))
    added = F.pad(features[1:].to(prefix.dtype), (0, 0, start, 0))
    slots = torch.arange(len(ids), device=family.device)
    rows = Rows(hidden, slots, family.rope(torch.as_tensor(positions)), added)
    shape = family.shape
    size = (shape.layers, shape.kv_heads, span.rows, shape.head_dim)
    keys, values = torch.empty(size, dtype=family.dtype), torch.empty(size, dtype=family.dtype)
    total = torch.zeros((), device=family.device)

    def capture(layer: int, layer_keys: torch.Tensor, layer_values: torch.Tensor) -> None:
        keys[layer] = layer_keys[:, start:]
        values[layer] = layer_values[:, start:]
        total.add_(layer_keys.sum(dtype=torch.float32)).add_(layer_values.sum(dtype=torch.float32))

    kv = pool.take(len(ids))
    try:
        run_rows(family, kv, rows, Causal(len(ids)), work, capture)
    finally:
        pool.give_back(kv)
    if not math.isfinite(float(total)):
        raise NotFinite("The model's numbers for an image are not finite: it cannot read it with its dtype.")
    return ImageKV(keys, values, features.to("cpu", family.dtype).contiguous(), value_norms(values))


def entry_layout(family: Family, span: SpanShape) -> Layout:
    """What `compile_image` gives for a span: a stored entry of another layout is not this model's."""
    shape = family.shape
    return Layout(
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        tokens=span.rows,
        head_dim=shape.head_dim,
        levels=family.levels,
        hidden=shape.hidden,
        dtype=str(family.dtype).removeprefix("torch."),
    )


def value_norms(values: torch.Tensor) -> torch.Tensor:
    """L2 norm over all KV heads: values [layers, kv_heads, tokens, head_dim] -> float32 [layers, tokens]."""
    return values.float().pow(2).sum(dim=(1, 3)).sqrt()
