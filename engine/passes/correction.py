"""Moves the rows of an image that are not refreshed by what its refreshed rows tell, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.families.base import Rope
from engine.passes.kv import RequestKV
from engine.passes.probe import FIRST_WITH_CONTEXT, Candidates
from engine.passes.rotation import rotate
from engine.policies.corrections import Correction
from engine.prompt.layout import Ints


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
        device = kv.keys.device
        self._correction, self._kv = correction, kv
        self._rope = Rope(rope.cos.float(), rope.sin.float())
        self._spans = candidates.spans
        self._rows = torch.as_tensor(np.searchsorted(slots, chosen), device=device)
        self._image = candidates.image[
            torch.as_tensor(np.searchsorted(candidates.slots, chosen), device=device)
        ]
        self._told = [i for i in range(len(self._spans)) if bool((self._image == i).any())]
        self._keys = self._stored([entry.keys for entry in candidates.entries], chosen)
        self._values = self._stored([entry.values for entry in candidates.entries], chosen)

    def __call__(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        if layer < FIRST_WITH_CONTEXT:
            return
        keys_by_image = self._by_image(keys, self._keys[layer])
        values_by_image = self._by_image(values, self._values[layer])
        for image in self._told:
            span = self._spans[image]
            slots = slice(span.start, span.stop)
            whole = keys_by_image[image][:, None].expand(-1, span.stop - span.start, -1)
            self._kv.keys[layer, :, slots] += rotate(whole, self._rope.at(slots))
            self._kv.values[layer, :, slots] += values_by_image[image][:, None]

    def _by_image(self, computed: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
        moved = computed[:, self._rows].float() - stored.float()
        return self._correction(moved, self._image, len(self._spans))

    def _stored(self, by_entry: Sequence[torch.Tensor], chosen: Ints) -> torch.Tensor:
        """Of tensors [layers, kv_heads, tokens, head_dim], one a span, the chosen tokens, side by side."""
        found = []
        for image in self._told:
            span, tensor = self._spans[image], by_entry[image]
            inside = chosen[(chosen >= span.start) & (chosen < span.stop)] - span.start
            found.append(tensor[:, :, torch.as_tensor(inside, device=tensor.device)].to(self._kv.keys.device))
        return torch.cat(found, dim=2)
