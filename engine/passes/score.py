"""The scoring pass: how much the query rows attend to each cached visual token, and what the token would bring."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from engine.families.base import Family
from engine.passes.forward import Rows, Work, keep
from engine.passes.kv import RequestKV
from engine.passes.rotation import rotate

# Rows whose attention weights are held at a time ([heads, rows, slots] in float32): a long question must not take
# memory that grows with its square.
WEIGHT_ROWS = 256


def attention_mass(
    family: Family,
    kv: RequestKV,
    rows: Rows,
    visible: torch.Tensor,
    asking: slice,
    layers: Sequence[int],
    work: Work,
) -> torch.Tensor:
    """Run `rows` over the restored KV and return the mean attention of the rows in `asking`, head by head, for each
    layer of `layers` and every slot: float32 [score layers, heads, slots].

    `visible` [rows, slots] says which slots a row may see. The pass ends with the last layer that is scored, where
    nothing but the queries and keys are needed (refresh.md P3); give all layers to run it to full depth. The rows' own
    KV is written to their slots, layer by layer.
    """
    shape = family.shape
    hidden, slots = rows.hidden, visible.shape[1]
    parts = [slice(i, min(i + WEIGHT_ROWS, len(hidden))) for i in range(0, len(hidden), WEIGHT_ROWS)]
    asked = range(len(hidden))[asking]
    pairs = int(visible.sum())
    scored: dict[int, torch.Tensor] = {}
    for layer in range(max(layers) + 1):
        projected = family.project(layer, hidden)
        keep(kv, layer, rows, projected.keys, projected.values)
        queries = rotate(projected.queries, rows.rope)
        keys, values = kv.keys[layer, :, :slots], kv.values[layer, :, :slots]
        work.project(shape, len(hidden), len(hidden))
        work.attend(shape, pairs)
        attended = torch.empty_like(queries)
        mass = torch.zeros(shape.heads, slots, device=hidden.device)
        for part in parts:
            mask = _mask(visible[part], shape.group)
            if layer in layers:
                weights = attention_weights(queries[:, part], keys, mask)
                mass += _of_asking(weights.view(shape.heads, -1, slots), part, asked).sum(1)
                attended[:, part] = torch.bmm(weights.to(values.dtype), values).view_as(attended[:, part])
            else:
                attended[:, part] = _attend(queries[:, part], keys, values, mask).view_as(attended[:, part])
        if layer in layers:
            scored[layer] = mass / len(asked)
        if layer == max(layers) and layer != shape.layers - 1:
            break
        hidden = rows.behind(layer, family.finish(layer, hidden, attended))
        work.finish(shape, len(hidden))
    return torch.stack([scored[layer] for layer in layers])


def _mask(visible: torch.Tensor, group: int) -> torch.Tensor:
    """float32 [group x rows, slots]: 0 where visible [rows, slots], else minus infinity."""
    mask = torch.zeros(visible.shape, device=visible.device).masked_fill_(~visible, float("-inf"))
    return mask.repeat(group, 1)


def _of_asking(weights: torch.Tensor, part: slice, asked: range) -> torch.Tensor:
    """Of weights [heads, rows, slots] of the rows in `part` those of rows in `asked`."""
    first, last = max(part.start, asked.start), min(part.stop, asked.stop)
    return weights[:, first - part.start : max(last, first) - part.start]


def attention_weights(queries: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Softmax in float32 of rotated queries [heads, rows, head_dim] over keys [kv_heads, slots, head_dim], without
    repeating keys: [kv_heads, group x rows, slots]. `mask` float32 [group x rows, slots] is added to the logits."""
    grouped = _by_kv_head(queries, keys).float() * queries.shape[-1] ** -0.5
    return torch.baddbmm(mask, grouped, keys.float().transpose(1, 2)).softmax(dim=-1)


def joined_by_head(head_mass: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Mean over query heads of mass x norm of the head's own value (value mode "per_head").

    head_mass [heads, tokens], values [kv_heads, tokens, head_dim] -> float32 [tokens].
    """
    norms = values.float().pow(2).sum(-1).sqrt()
    grouped = head_mass.view(len(values), -1, head_mass.shape[-1])
    joined: torch.Tensor = (grouped * norms[:, None]).mean(dim=(0, 1))
    return joined


def behind_output(head_mass: torch.Tensor, values: torch.Tensor, projection: torch.Tensor) -> torch.Tensor:
    """Norm of what a token adds to the mean query row behind the output projection (value mode "wo"; Kobayashi et al.
    2020, `|| sum_h a_h W_O^h v_h ||`).

    head_mass [heads, tokens], values [kv_heads, tokens, head_dim], projection [hidden, heads x head_dim] -> [tokens].
    """
    kv_heads, tokens, _ = values.shape
    weighted = head_mass.view(kv_heads, -1, tokens, 1) * values.float()[:, None]
    by_token = weighted.permute(2, 0, 1, 3).reshape(tokens, -1)
    added: torch.Tensor = F.linear(by_token, projection.float())
    return added.pow(2).sum(-1).sqrt()


def _by_kv_head(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    return queries.reshape(keys.shape[0], -1, queries.shape[-1])


def _attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Attention at a layer whose weights nobody asks for: [kv_heads, group x rows, head_dim]."""
    rows = _by_kv_head(queries, keys)[None]
    return F.scaled_dot_product_attention(rows, keys[None], values[None], attn_mask=mask.to(rows.dtype))[0]
