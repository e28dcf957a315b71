"""Refresh passes of several choices at once. A small model spends most of a pass on starting operations; here the
linear layers of all choices are one product. Equal to the engine's own pass, which the tests hold it to.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F

from engine.families.base import Rope
from engine.passes.attention import by_order
from engine.passes.forward import run_rows
from engine.passes.refresh import Prefill
from engine.passes.rotation import rotate
from engine.prompt.layout import Ints


def refresh_all(prefill: Prefill, choices: Sequence[Ints]) -> torch.Tensor:
    """Logits [choices, vocab] of the first token for each set of chosen slots; all sets have one size. The entries must
    have been restored; what the request's KV holds of them is left as it is."""
    text = prefill.layout.text_slots()
    # Text before all that may be chosen is the same for all sets, and is run once.
    candidates = prefill.layout.candidates()
    shared = text[text < candidates[0]] if len(candidates) else text[:0]
    if len(shared):
        rows = prefill.rows(shared)
        attention = by_order(rows.slots, prefill.family.shape.group)
        run_rows(prefill.family, prefill.kv, rows, attention, prefill.work)
    text = text[len(shared) :]
    slots = np.stack([np.sort(np.concatenate((chosen, text))) for chosen in choices])
    return _Pass(prefill, torch.as_tensor(slots)).run()


class _Pass:
    """`slots` [choices, rows], ascending in each choice. The last one is the prompt's last."""

    def __init__(self, prefill: Prefill, slots: torch.Tensor) -> None:
        self._family, self._kv, self._slots = prefill.family, prefill.kv, slots
        rows = [prefill.rows(chosen.numpy()) for chosen in slots]
        self._hidden = torch.cat([r.hidden for r in rows])
        self._rope = Rope(torch.cat([r.rope.cos for r in rows]), torch.cat([r.rope.sin for r in rows]))
        self._length = prefill.layout.length
        self._mask = slots[:, :, None] >= torch.arange(self._length)

    def run(self) -> torch.Tensor:
        family, hidden = self._family, self._hidden
        choices, rows = self._slots.shape
        for layer in range(family.shape.layers):
            projected = family.project(layer, hidden)
            queries = self._by_choice(rotate(projected.queries, self._rope))
            keys = self._mixed(self._kv.keys[layer], rotate(projected.keys, self._rope))
            values = self._mixed(self._kv.values[layer], projected.values)
            mask = self._mask
            if layer == family.shape.layers - 1:
                queries, mask = queries[:, :, -1:], mask[:, -1:]
                hidden = hidden.view(choices, rows, -1)[:, -1]
            attended = F.scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask[:, None], enable_gqa=True
            )
            by_head = attended.transpose(0, 1).reshape(family.shape.heads, len(hidden), -1)
            hidden = family.finish(layer, hidden, by_head)
        return family.logits(hidden)

    def _by_choice(self, rows: torch.Tensor) -> torch.Tensor:
        """[heads, choices x rows, head_dim] -> [choices, heads, rows, head_dim]"""
        return rows.view(rows.shape[0], *self._slots.shape, -1).transpose(0, 1)

    def _mixed(self, stored: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
        """A layer's stored keys or values [kv_heads, slots, head_dim] with each choice's own rows written over."""
        fresh = self._by_choice(computed)
        mixed = stored[:, : self._length].expand(len(fresh), -1, -1, -1).clone()
        at = self._slots[:, None, :, None].expand_as(fresh)
        return mixed.scatter_(2, at, fresh)
