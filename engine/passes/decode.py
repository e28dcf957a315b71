"""One token at a time over the KV that prefill left: one batched step for all running requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F

from engine.families.base import Family
from engine.passes.forward import Work
from engine.passes.kv import KVPool, RequestKV
from engine.passes.rotation import rotate


class Decoder:
    """Where one request's decoding stands. `slot` and `position` are those of the next token; `limit` is the number of
    slots that the request may ever take."""

    def __init__(self, pool: KVPool, kv: RequestKV, slot: int, position: int, limit: int) -> None:
        self._pool = pool
        self.kv = kv
        self.slot = slot
        self.position = position
        self._limit = limit

    def make_room(self) -> None:
        """Grow the KV where the next token does not fit."""
        if self.slot >= self.kv.capacity:
            self.kv = self._pool.grow(self.kv, min(2 * self.kv.capacity, self._limit))

    def views(self) -> Slots:
        """The next token's slot, and what it sees, layer by layer: all slicing of a step in one go."""
        keys, values, end = self.kv.keys, self.kv.values, self.slot + 1
        return Slots(
            keys.select(2, self.slot).unbind(0),
            values.select(2, self.slot).unbind(0),
            keys[:, None, :, :end].unbind(0),
            values[:, None, :, :end].unbind(0),
        )


class Slots(NamedTuple):
    """Of each layer: where the token's key and value go [kv_heads, head_dim], and all that it sees
    [1, kv_heads, slots, head_dim]."""

    key: tuple[torch.Tensor, ...]
    value: tuple[torch.Tensor, ...]
    keys: tuple[torch.Tensor, ...]
    values: tuple[torch.Tensor, ...]


def decode_step(
    family: Family, decoders: Sequence[Decoder], tokens: Sequence[int], works: Sequence[Work]
) -> torch.Tensor:
    """Feed each request its last token, for which it has room; returns the logits [requests, vocab] of the next ones.

    Linear layers run over all requests at once, attention over each request's own KV.
    """
    views = [decoder.views() for decoder in decoders]
    device, shape = family.device, family.shape
    hidden = family.embed(torch.tensor(tokens, device=device))
    rope = family.rope(torch.tensor([[decoder.position for decoder in decoders]] * 3))
    for layer in range(shape.layers):
        projected = family.project(layer, hidden)
        queries, keys = rotate(projected.queries, rope), rotate(projected.keys, rope)
        # [requests, 1, kv_heads, group, head_dim]: the query heads of one KV head share its keys without a copy.
        rows = queries.transpose(0, 1).reshape(len(decoders), 1, shape.kv_heads, -1, shape.head_dim).unbind(0)
        attended = []
        for slots, row, key, value in zip(
            views, rows, keys.unbind(1), projected.values.unbind(1), strict=True
        ):
            slots.key[layer].copy_(key)
            slots.value[layer].copy_(value)
            attended.append(F.scaled_dot_product_attention(row, slots.keys[layer], slots.values[layer]))
        joined = torch.cat(attended).view(len(decoders), shape.heads, shape.head_dim)
        hidden = family.finish(layer, hidden, joined.transpose(0, 1))
    for decoder, work in zip(decoders, works, strict=True):
        work.project(shape, shape.layers, shape.layers)
        work.attend(shape, shape.layers * (decoder.slot + 1))
        work.finish(shape, shape.layers)
        decoder.slot += 1
        decoder.position += 1
    return family.logits(hidden)
