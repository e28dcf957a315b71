"""The closed formula for the arithmetic of a prefill, to hold beside what the engine counts as it runs.

Per layer, a row costs p = 2 (2 d H d_h + 2 d G d_h + 3 d f) FLOPs and a (row, visible slot) pair 4 H d_h (d hidden,
f MLP width, H query heads, G key/value heads, d_h their width). A pass costs L (p rows + 4 H d_h pairs). At the last
layer the engine leaves out what nobody reads (all but the last row's attention and MLP), and so does `prefill`.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.families.base import ModelShape
from engine.prompt.layout import PromptLayout


def row_flops(shape: ModelShape) -> int:
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return 2 * shape.hidden * (2 * query + 2 * kv + 3 * shape.intermediate)


def pair_flops(shape: ModelShape) -> int:
    return 4 * shape.heads * shape.head_dim


def untrimmed(shape: ModelShape, rows: int, pairs: float) -> float:
    """F(rows, pairs) as it stands above, every layer in full."""
    return shape.layers * (row_flops(shape) * rows + pair_flops(shape) * pairs)


def prefill(shape: ModelShape, rows: int, pairs: float, length: int) -> float:
    """One pass that ends in the logits of the last of `length` slots (the head itself left out)."""
    body = (shape.layers - 1) * (row_flops(shape) * rows + pair_flops(shape) * pairs)
    keys_and_values = 4 * shape.hidden * shape.kv_heads * shape.head_dim
    last_row = row_flops(shape) - keys_and_values + pair_flops(shape) * length
    return body + keys_and_values * rows + last_row


def full(shape: ModelShape, length: int) -> float:
    return prefill(shape, length, length * (length + 1) / 2, length)


def compiling(shape: ModelShape, prefix: int, images: Sequence[int]) -> float:
    """Compiles of images with so many visual tokens each, behind a canonical prefix of `prefix` tokens."""
    return sum(full(shape, prefix + tokens) for tokens in images)


def refresh(shape: ModelShape, layout: PromptLayout, refreshed: Sequence[int]) -> float:
    """The refresh pass: all text, and `refreshed` visual tokens of each span, taken to lie evenly in it."""
    text = layout.text_slots()
    pairs = float(text.sum() + len(text))
    for span, count in zip(layout.spans, refreshed, strict=True):
        pairs += count * ((span.start + span.stop - 1) / 2 + 1)
    return prefill(shape, len(text) + sum(refreshed), pairs, layout.length)


def scoring(shape: ModelShape, layout: PromptLayout, layers: Sequence[int]) -> float:
    """The query rows over all visual tokens and one another, up to the last of `layers`, where nothing but queries,
    keys and values is needed."""
    rows, visual = len(layout.query.ids), layout.visual_tokens
    pairs = rows * visual + rows * (rows + 1) / 2
    depth = max(layers) + 1
    query, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    projections = 2 * shape.hidden * (query + 2 * kv) * rows
    whole = (depth - 1) * (row_flops(shape) * rows + pair_flops(shape) * pairs)
    return whole + projections + pair_flops(shape) * pairs
