"""Attention of a pass: rows at given slots see every slot up to their own, in sequence order.

Four forms with one meaning. `Causal` is the full prefill (all slots, the kernel's causal flag), `LastRow` a single row.
`Staircase` serves scattered rows on a CPU, `Masked` on an accelerator; `Masked` is also the plain reference that the
others are tested against.
Never is the order derived from "the queries are the last keys": with scattered rows that lets early rows read later
slots (the mask fault of several public implementations).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

# Rows of one chunk of `Staircase`. Measured on 2 x 64-wide KV heads, 510 rows over 4,196 slots (one AVX2 core):
# 16: 59 ms, 32: 49, 64: 55, 128: 59; the same with one boolean mask 96 ms.
CHUNK = 32


class Attention(Protocol):
    """`pairs` counts the (row, visible slot) pairs of one call, for the cost model."""

    pairs: int

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Rotated queries [heads, rows, head_dim] over keys, values [kv_heads, slots, head_dim] -> like queries."""
        ...


class Causal:
    """Rows are the slots 0 .. rows - 1, all of them."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.pairs = rows * (rows + 1) // 2

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        keys, values = keys[None, :, : self._rows], values[None, :, : self._rows]
        return F.scaled_dot_product_attention(queries[None], keys, values, is_causal=True, enable_gqa=True)[0]


class Masked:
    """One boolean mask [group x rows, slots]: slot b is visible to the row at slot a iff b <= a.

    The query heads of one KV head are laid out as rows: a mask together with grouped heads would leave an accelerator
    nothing but its slowest kernel, which repeats the keys.
    """

    def __init__(self, slots: torch.Tensor, group: int) -> None:
        self._end = int(slots[-1]) + 1
        visible = slots[:, None] >= torch.arange(self._end, device=slots.device)[None, :]
        self._mask = visible.repeat(group, 1)
        self.pairs = int(slots.sum()) + len(slots)

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        keys, values = keys[None, :, : self._end], values[None, :, : self._end]
        rows = queries.reshape(1, keys.shape[1], -1, queries.shape[-1])
        return F.scaled_dot_product_attention(rows, keys, values, attn_mask=self._mask).view(queries.shape)


class LastRow:
    """One row at `slot`, behind which nothing stands: decode, and the last layer of a prefill."""

    def __init__(self, slot: int) -> None:
        self._end = slot + 1
        self.pairs = slot + 1

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        keys, values = keys[None, :, : self._end], values[None, :, : self._end]
        rows = queries.view(1, keys.shape[1], -1, queries.shape[-1])
        return F.scaled_dot_product_attention(rows, keys, values).view_as(queries)


@dataclass(frozen=True, slots=True)
class _Step:
    """Rows [first, last) see all slots before `below` and, of those in [below, end), what `mask` adds 0 to."""

    first: int
    last: int
    below: int
    end: int
    mask: torch.Tensor


class Staircase:
    """Sorted rows in chunks: every row of a chunk sees all slots before the chunk's first one, so that part needs no
    mask and no expanded keys; the short staircase behind it does. Both parts are merged by their log-sum-exp."""

    def __init__(self, slots: torch.Tensor, group: int) -> None:
        self._group = group
        self._steps = [_step(slots, first, group) for first in range(0, len(slots), CHUNK)]
        self.pairs = int(slots.sum()) + len(slots)

    def __call__(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        attended = torch.empty_like(queries)
        for step in self._steps:
            part = queries[:, step.first : step.last]
            # The query heads of one KV head stand in a row, so their rows can share its keys without a copy.
            rows = part.reshape(1, keys.shape[0], -1, part.shape[-1])
            attended[:, step.first : step.last] = self._attend(rows, keys, values, step).view_as(part)
        return attended

    def _attend(
        self, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, step: _Step
    ) -> torch.Tensor:
        below, end = step.below, step.end
        mask = step.mask.to(rows.dtype)[None, None]
        near, near_weight = _flash(rows, keys[None, :, below:end], values[None, :, below:end], mask)
        if below == 0:
            return near
        far, far_weight = _flash(rows, keys[None, :, :below], values[None, :, :below], None)
        share = torch.sigmoid(far_weight - near_weight).unsqueeze(-1).to(rows.dtype)
        return torch.lerp(near, far, share)


def _step(slots: torch.Tensor, first: int, group: int) -> _Step:
    rows = slots[first : first + CHUNK]
    below, end = int(rows[0]), int(rows[-1]) + 1
    visible = rows[:, None] >= torch.arange(below, end)[None, :]
    mask = torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))
    return _Step(first, first + len(rows), below, end, mask.repeat(group, 1))


def _flash(
    rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The CPU kernel behind `scaled_dot_product_attention`, which also returns the log-sum-exp."""
    flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    attended, weight = flash(rows, keys, values, attn_mask=mask)
    return attended, weight


def by_order(slots: torch.Tensor, group: int) -> Attention:
    """Attention of rows at ascending `slots` [rows], in the form that is fast where they lie."""
    return Staircase(slots, group) if slots.device.type == "cpu" else Masked(slots, group)
