"""What a prefill notes of its visual tokens, one by one, where a request asks to have it explained."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from engine.families.base import Rope
from engine.passes.kv import RequestKV
from engine.passes.probe import Candidates
from engine.passes.rotation import rotate
from engine.prompt.layout import Ints


class Witness:
    """By prompt slot, float32 [slots], NaN where there is nothing to tell: `scores` that the policy chose by, `shares`
    of the layers that computed a token in this prefill, `drift` of what was computed (see `drift_of`)."""

    def __init__(self, slots: int) -> None:
        self.scores, self.shares, self.drift = (np.full(slots, np.nan, dtype=np.float32) for _ in range(3))

    def scored(self, candidates: Candidates, scores: torch.Tensor) -> None:
        """`scores` [candidates], or empty where no score decided."""
        if len(scores):
            self.scores[candidates.slots] = _array(scores)

    def computed(self, slots: Ints, shares: np.ndarray) -> None:
        self.shares[slots] = shares

    def moved(self, kv: RequestKV, rope: Rope, candidates: Candidates) -> None:
        """Compare what was computed of `candidates` with their entries; call it behind `computed`."""
        if not len(candidates):
            return  # text alone, or images that are exact
        drift = _array(drift_of(kv, rope, candidates))
        slots = candidates.slots
        self.drift[slots] = np.where(self.shares[slots] > 0, drift, np.nan)


def drift_of(kv: RequestKV, rope: Rope, candidates: Candidates) -> torch.Tensor:
    """How far the keys in `kv` are from those of the entries: |k - k_stored| / |k_stored| over all KV heads, mean over
    the layers, float32 [candidates]. `rope` is the whole prompt's."""
    layers = kv.keys.shape[0]
    slots = torch.as_tensor(candidates.slots, device=kv.keys.device)
    here = Rope(rope.cos[slots].float(), rope.sin[slots].float())
    total = torch.zeros(len(slots), device=slots.device)
    for layer in range(layers):
        stored = candidates.stored(lambda entry, layer=layer: entry.keys[layer]).float()  # type: ignore[misc]
        moved = kv.keys[layer][:, slots].float() - rotate(stored, here)
        total += _length(moved) / _length(stored).clamp(min=torch.finfo(torch.float32).tiny)
    return total / layers


def _length(rows: torch.Tensor) -> torch.Tensor:
    """[kv_heads, rows, head_dim] -> [rows]."""
    return rows.pow(2).sum(dim=(0, 2)).sqrt()


def _array(values: torch.Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = values.detach().float().cpu().numpy()
    return array
