"""One token at a time over the KV that prefill left."""

from __future__ import annotations

import torch

from engine.attention import LastRow
from engine.families.base import Family
from engine.forward import Rows, Work, run_rows
from engine.kv import KVPool, RequestKV


class Decoder:
    """Continues one request. `slot` and `position` are those of the next token."""

    def __init__(self, family: Family, pool: KVPool, kv: RequestKV, slot: int, position: int) -> None:
        self._family = family
        self._pool = pool
        self.kv = kv
        self.slot = slot
        self.position = position

    def step(self, token: int, work: Work) -> torch.Tensor:
        """Feed `token`, return the logits [vocab] of the one after it."""
        if self.slot >= self.kv.capacity:
            self.kv = self._pool.grow(self.kv, 2 * self.kv.capacity)
        device = self._family.device
        rows = Rows(
            self._family.embed(torch.tensor([token], device=device)),
            torch.tensor([self.slot], device=device),
            self._family.rope(torch.full((3, 1), self.position)),
        )
        hidden = run_rows(self._family, self.kv, rows, LastRow(self.slot), work)
        self.slot += 1
        self.position += 1
        return self._family.logits(hidden)[0]
