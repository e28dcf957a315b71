"""One pass of rows through the decoder: the loop that compile, full prefill, refresh and decode share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from engine.families.base import Family, ModelShape, Rope
from engine.passes.attention import Attention, LastRow
from engine.passes.kv import RequestKV
from engine.passes.rotation import rotate

# Sees each layer's keys (before RoPE) and values [kv_heads, rows, head_dim] as they are computed.
Capture = Callable[[int, torch.Tensor, torch.Tensor], None]


@dataclass(slots=True)
class Work:
    """Arithmetic of a request so far, in FLOPs, counted from what was executed (2 per weight and row, 4 x heads x
    head_dim per (row, visible slot) pair). `progress` is called layer by layer: a long pass is no stall."""

    progress: Callable[[], None] | None = None
    flops: int = 0

    def project(self, shape: ModelShape, rows: int, query_rows: int) -> None:
        kv, query = shape.kv_heads * shape.head_dim, shape.heads * shape.head_dim
        self.flops += 2 * shape.hidden * (2 * kv * rows + query * query_rows)

    def attend(self, shape: ModelShape, pairs: int) -> None:
        self.flops += 4 * shape.heads * shape.head_dim * pairs

    def finish(self, shape: ModelShape, rows: int) -> None:
        if self.progress is not None:
            self.progress()
        query = shape.heads * shape.head_dim
        self.flops += 2 * shape.hidden * (query + 3 * shape.intermediate) * rows


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one pass: input embeddings [rows, hidden], ascending `slots` [rows] and their rotation. `added`
    [levels - 1, rows, hidden] is what a vision tower adds to the hidden states behind the first layers (DeepStack);
    None, or no level, in most families."""

    hidden: torch.Tensor
    slots: torch.Tensor
    rope: Rope
    added: torch.Tensor | None = None

    def behind(self, layer: int, hidden: torch.Tensor) -> torch.Tensor:
        """`hidden` [rows, hidden] as `layer` leaves it, with what is added there."""
        if self.added is None or layer >= len(self.added):
            return hidden
        return hidden + self.added[layer]

    def only(self, at: torch.Tensor) -> Rows:
        """The rows at these indices."""
        added = None if self.added is None else self.added[:, at]
        return Rows(self.hidden[at], self.slots[at], self.rope.at(at), added)


def run_rows(
    family: Family,
    kv: RequestKV,
    rows: Rows,
    attention: Attention,
    work: Work,
    capture: Capture | None = None,
) -> torch.Tensor:
    """Run `rows` through all layers, writing their KV, and return the last row's final hidden state [1, hidden].

    All rows of a layer are written before that layer's attention, so refreshed rows see one another. At the last layer
    only the last row needs a query, attention and MLP (refresh.md P8); the others leave their keys and values.
    """
    shape = family.shape
    hidden = rows.hidden
    last = shape.layers - 1
    for layer in range(last):
        projected = family.project(layer, hidden)
        keep(kv, layer, rows, projected.keys, projected.values, capture)
        attended = attention(rotate(projected.queries, rows.rope), kv.keys[layer], kv.values[layer])
        hidden = rows.behind(layer, family.finish(layer, hidden, attended))
        work.project(shape, len(hidden), len(hidden))
        work.attend(shape, attention.pairs)
        work.finish(shape, len(hidden))
    keys, values = family.project_kv(last, hidden)
    keep(kv, last, rows, keys, values, capture)
    work.project(shape, len(hidden), 1)
    return last_row(family, last, hidden[-1:], kv, rows, work)


def keep(
    kv: RequestKV,
    layer: int,
    rows: Rows,
    keys: torch.Tensor,
    values: torch.Tensor,
    capture: Capture | None = None,
) -> None:
    """Show a layer's keys and values to `capture`, then write them to the request's KV, the keys rotated."""
    if capture is not None:
        capture(layer, keys, values)
    kv.write(layer, rows.slots, rotate(keys, rows.rope), values)


def last_row(
    family: Family, layer: int, hidden: torch.Tensor, kv: RequestKV, rows: Rows, work: Work
) -> torch.Tensor:
    """What the last layer computes behind keys and values: one row [1, hidden], the last of `rows`."""
    attention = LastRow(int(rows.slots[-1]))
    queries = rotate(family.project(layer, hidden).queries, rows.rope.at(slice(-1, None)))
    attended = attention(queries, kv.keys[layer], kv.values[layer])
    work.attend(family.shape, attention.pairs)
    work.finish(family.shape, 1)
    return family.finish(layer, hidden, attended)
