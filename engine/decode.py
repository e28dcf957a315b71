"""One token at a time over the KV that prefill left: one batched step for all running requests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.attention import LastRow
from engine.families.base import Family
from engine.forward import Work
from engine.kv import KVPool, RequestKV
from engine.rope import rotate


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

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Write rotated `key` and `value` [kv_heads, head_dim]; attend with `query` [heads, 1, head_dim] to all."""
        self.kv.keys[layer, :, self.slot] = key
        self.kv.values[layer, :, self.slot] = value
        return LastRow(self.slot)(query, self.kv.keys[layer], self.kv.values[layer])


def decode_step(
    family: Family, decoders: Sequence[Decoder], tokens: Sequence[int], works: Sequence[Work]
) -> torch.Tensor:
    """Feed each request its last token, for which it has room; returns the logits [requests, vocab] of the next ones.

    Linear layers run over all requests at once, attention over each request's own KV.
    """
    device, shape = family.device, family.shape
    hidden = family.embed(torch.tensor(tokens, device=device))
    rope = family.rope(torch.tensor([[decoder.position for decoder in decoders]] * 3))
    for layer in range(shape.layers):
        projected = family.project(layer, hidden)
        queries, keys = rotate(projected.queries, rope), rotate(projected.keys, rope)
        attended = [
            decoder.attend(layer, queries[:, i : i + 1], keys[:, i], projected.values[:, i])
            for i, decoder in enumerate(decoders)
        ]
        hidden = family.finish(layer, hidden, torch.cat(attended, dim=1))
    for decoder, work in zip(decoders, works, strict=True):
        work.project(shape, shape.layers, shape.layers)
        work.attend(shape, shape.layers * (decoder.slot + 1))
        work.finish(shape, shape.layers)
        decoder.slot += 1
        decoder.position += 1
    return family.logits(hidden)
