"""Passes as the formulas say them: every slot in every mask, keys repeated head by head, nothing left out for speed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.families.base import Projection, Rope
from engine.passes.refresh import Prefill
from engine.prompt.layout import ImageSpan, Ints
from store.records.entry import ImageKV


def turned(x: torch.Tensor, rope: Rope) -> torch.Tensor:
    """RoPE on [heads, rows, head_dim]."""
    half = x.shape[-1] // 2
    return x * rope.cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * rope.sin


def up_to(slots: torch.Tensor, length: int) -> torch.Tensor:
    """Which of `length` slots the rows at `slots` may see: their own and all before, [rows, length]."""
    return torch.arange(length)[None] <= slots[:, None]


def weights(queries: torch.Tensor, keys: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Softmax attention [heads, rows, slots] of queries over keys, both rotated."""
    logits: torch.Tensor = queries @ repeated(keys, queries).transpose(1, 2) / queries.shape[-1] ** 0.5
    logits = logits.masked_fill(~visible, float("-inf"))
    return logits.softmax(-1)


def repeated(shared: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """Keys or values of the KV heads, one for each query head."""
    return shared.repeat_interleave(len(queries) // len(shared), 0)


def first_layer_weights(prefill: Prefill, asking: torch.Tensor, visible: torch.Tensor) -> torch.Tensor:
    """Attention [heads, asking, slots] of prompt rows at layer 0, where all keys follow from the prompt alone."""
    family, length = prefill.family, prefill.layout.length
    rows = prefill.rows(np.arange(length))
    projected = family.project(0, rows.hidden)
    queries = turned(projected.queries, rows.rope)[:, asking]
    return weights(queries, turned(projected.keys, rows.rope), visible)


def run_plainly(
    prefill: Prefill,
    slots_by_layer: Sequence[Ints],
    images: Sequence[tuple[ImageSpan, ImageKV]] = (),
    correction: str = "none",
) -> torch.Tensor:
    """Compute the rows at `slots_by_layer[layer]` over what `prefill` holds; returns the last row's logits [vocab]. The
    other rows of `images` are moved behind layer 0 as `correction` says."""
    family, kv, length = prefill.family, prefill.kv, prefill.layout.length
    rows = prefill.rows(np.arange(length))
    hidden = rows.hidden.clone()
    for layer, computed in enumerate(slots_by_layer):
        slots = torch.as_tensor(computed)
        projected, rope = family.project(layer, hidden[slots]), rows.rope.at(slots)
        for span, entry in images if layer else ():
            correct_plainly(prefill, correction, layer, slots, projected, span, entry)
        kv.keys[layer][:, slots] = turned(projected.keys, rope)
        kv.values[layer][:, slots] = projected.values
        queries, values = turned(projected.queries, rope), kv.values[layer, :, :length]
        attention = weights(queries, kv.keys[layer, :, :length], up_to(slots, length))
        finished = family.finish(layer, hidden[slots], attention @ repeated(values, queries))
        hidden[slots] = finished if rows.added is None else rows.only(slots).behind(layer, finished)
    return family.logits(hidden[-1:])[0]


def correct_plainly(
    prefill: Prefill,
    correction: str,
    layer: int,
    slots: torch.Tensor,
    projected: Projection,
    span: ImageSpan,
    entry: ImageKV,
) -> None:
    """Rows of an image not computed: stored + the mixture of (computed - stored), keys before rotation."""
    computed = [int(slot) for slot in slots if span.start <= slot < span.stop]
    shares = plain_shares(correction, layer, entry, [slot - span.start for slot in computed])
    if not computed or shares is None:
        return
    row = {int(slot): number for number, slot in enumerate(slots)}
    for slot in set(range(span.start, span.stop)) - set(computed):
        at = slot - span.start
        key, value = entry.keys[layer][:, at].float(), entry.values[layer][:, at].float()
        for share, other in zip(shares[at], computed, strict=True):
            stored = other - span.start
            key = key + share * (projected.keys[:, row[other]] - entry.keys[layer][:, stored])
            value = value + share * (projected.values[:, row[other]] - entry.values[layer][:, stored])
        rope = prefill.prompt_rows.rope.at(slice(slot, slot + 1))
        prefill.kv.keys[layer][:, slot] = turned(key[:, None], rope)[:, 0]
        prefill.kv.values[layer][:, slot] = value


def plain_shares(correction: str, layer: int, entry: ImageKV, told: Sequence[int]) -> torch.Tensor | None:
    """By what share of each told row's difference each row is moved, [rows, told]; None where none is.

    shift: 1 / (n + 2). ridge: with x = (1, unit vector of the middle layer's key less the image's mean), the row's x
    times the ridge solution (X'X + 1)^-1 X' over the told rows; up to two thirds of the depth.
    """
    layers, kv_heads, rows, head_dim = entry.keys.shape
    if correction == "shift":
        return torch.full((rows, len(told)), 1 / (len(told) + 2))
    if correction != "ridge" or 3 * layer > 2 * layers:
        return None
    keys = torch.stack([entry.keys[layers // 2, :, at].double().flatten() for at in range(rows)])
    directions = torch.nn.functional.normalize(keys - keys.mean(0), dim=1)
    features = torch.cat((torch.ones(rows, 1), directions), dim=1)
    own = features[list(told)]
    solved = torch.linalg.solve(own.T @ own + torch.eye(1 + kv_heads * head_dim), own.T)
    return (features @ solved).float()
