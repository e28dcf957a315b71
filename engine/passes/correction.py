"""Moves the rows of an image that are not refreshed by what its refreshed rows tell, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.families.base import Rope
from engine.passes.kv import RequestKV
from engine.passes.probe import Candidates
from engine.passes.rotation import rotate
from engine.passes.turns import TextKV
from engine.policies.corrections import Correction, Weights
from engine.prompt.layout import Ints, Span
from store.records.entry import ImageKV


class Corrected:
    """Watches a refresh pass (an `engine.passes.forward.Capture`) whose rows include the `chosen` candidates.

    Before a layer's rows are written it adds the correction to all rows of each image that has chosen ones; the chosen
    ones are then written over by what was computed. A row thus depends on the prompt, and of what stands behind it on
    nothing but rows of its own image. Layer 0 sees no context and is exact as stored. Differences and sums are float32.
    """

    def __init__(
        self,
        correction: Correction,
        kv: RequestKV,
        rope: Rope,
        candidates: Candidates,
        slots: Ints,
        chosen: Ints,
    ) -> None:
        """`rope` is the whole prompt's, `slots` those of the pass's rows, both `slots` and `chosen` ascending."""
        self._correction, self._kv = correction, kv
        self._rope = Rope(rope.cos.float(), rope.sin.float())
        spans = zip(candidates.spans, candidates.entries, strict=True)
        images = [self._image(correction.weights, span, entry, slots, chosen) for span, entry in spans]
        self._images = [image for image in images if len(image.rows)]

    def __call__(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        if not self._correction.corrects(layer, len(self._kv.keys)):
            return
        for image in self._images:
            moved_keys, moved_values = image.moves(layer, keys, values)
            span = image.slots
            whole = moved_keys.expand(-1, span.stop - span.start, -1)
            self._kv.keys[layer, :, span] += rotate(whole, self._rope.at(span))
            self._kv.values[layer, :, span] += moved_values

    def _image(
        self, weighing: Weights, span: Span, entry: ImageKV | TextKV, slots: Ints, chosen: Ints
    ) -> _Image:
        device = self._kv.keys.device
        inside = chosen[(chosen >= span.start) & (chosen < span.stop)]
        told = torch.as_tensor(inside - span.start, device=entry.keys.device)
        middle = entry.keys[len(entry.keys) // 2]
        weights = weighing(middle, told) if len(told) else torch.empty(0)
        rows = torch.as_tensor(np.searchsorted(slots, inside), device=device)
        keys, values = (tensor[:, :, told].to(device) for tensor in (entry.keys, entry.values))
        return _Image(slice(span.start, span.stop), rows, keys, values, weights.to(device))


@dataclass(frozen=True, slots=True)
class _Image:
    """An image's `slots`, the `rows` [n] of the pass that are its refreshed ones, what was stored of these, keys and
    values [layers, kv_heads, n, head_dim], and the weights of the correction."""

    slots: slice
    rows: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    weights: torch.Tensor

    def moves(
        self, layer: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """By what the image's rows, or all rows alike, are moved: keys and values [kv_heads, rows or 1, head_dim]."""
        computed = torch.cat((keys[:, self.rows], values[:, self.rows])).float()
        stored = torch.cat((self.keys[layer], self.values[layer])).float()
        moved = self.weights @ (computed - stored)
        return moved[: len(keys)], moved[len(keys) :]
