"""The scoring pass: how much the query rows attend to each cached visual token."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.families.base import Family
from engine.forward import Rows, Work, keep
from engine.kv import RequestKV
from engine.rope import rotate


def attention_mass(
    family: Family,
    kv: RequestKV,
    rows: Rows,
    visible: torch.Tensor,
    query: slice,
    layers: Sequence[int],
    work: Work,
) -> torch.Tensor:
    """Run `rows` over the restored KV and return the mean attention of the rows in `query` over all heads, for each
    layer of `layers` and every slot: float32 [score layers, slots].

    `visible` [rows, slots] says which slots a row may see. The pass ends with the last layer that is scored, where
    nothing but the queries and keys are needed (refresh.md P3); give all layers to run it to full depth. The rows' own
    KV is written to their slots, layer by layer.
    """
    shape = family.shape
    hidden, hidden_from = rows.hidden, ~visible
    pairs = int(visible.sum())
    scored: dict[int, torch.Tensor] = {}
    for layer in range(max(layers) + 1):
        projected = family.project(layer, hidden)
        keep(kv, layer, rows, projected.keys, projected.values)
        queries = rotate(projected.queries, rows.rope)
        weights = attention_weights(queries, kv.keys[layer, :, : visible.shape[1]], hidden_from)
        work.project(shape, len(hidden), len(hidden))
        work.attend(shape, pairs)
        if layer in layers:
            scored[layer] = weights.view(shape.heads, len(hidden), -1)[:, query].mean(dim=(0, 1))
        if layer == max(layers) and layer != shape.layers - 1:
            break
        values = kv.values[layer, :, : visible.shape[1]]
        attended = torch.bmm(weights.to(values.dtype), values).view(shape.heads, len(hidden), -1)
        hidden = family.finish(layer, hidden, attended)
        work.finish(shape, len(hidden))
    return torch.stack([scored[layer] for layer in layers])


def attention_weights(queries: torch.Tensor, keys: torch.Tensor, hidden_from: torch.Tensor) -> torch.Tensor:
    """Softmax in float32 of rotated queries [heads, rows, head_dim] over keys [kv_heads, slots, head_dim], without
    repeating keys: [kv_heads, group x rows, slots]. `hidden_from` [rows, slots] marks what a row must not see."""
    kv_heads = keys.shape[0]
    grouped = queries.reshape(kv_heads, -1, queries.shape[-1])
    logits = torch.bmm(grouped.float(), keys.float().transpose(1, 2)).mul_(queries.shape[-1] ** -0.5)
    logits.view(kv_heads, -1, *hidden_from.shape).masked_fill_(hidden_from, float("-inf"))
    return logits.softmax(dim=-1)
