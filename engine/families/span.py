"""The rows that an image takes in a prompt. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, eq=False)
class SpanShape:
    """What the processor makes of one image in a prompt: its rows in order, most of them visual, some text of its own
    (marks between tiles).

    `ids` [rows]: the image token where a row is visual, else the row's own token. `visual` [rows] says which are.
    `positions` [3, rows] are relative to the span's first; what follows goes on `advance` behind it. `grid`: rows and
    columns of the visual tokens over the picture, None where they are no such grid (tiles, line ends).
    """

    ids: np.ndarray
    visual: np.ndarray
    positions: np.ndarray
    advance: int
    grid: tuple[int, int] | None = None

    @property
    def rows(self) -> int:
        return len(self.ids)

    @property
    def tokens(self) -> int:
        """Visual rows."""
        return int(self.visual.sum())


def grid_span(image_token: int, height: int, width: int) -> SpanShape:
    """`height` x `width` visual tokens at M-RoPE positions (0, row, column); the text behind goes on at
    max(height, width) (Qwen2.5-VL; transformers `get_rope_index`)."""
    tokens = height * width
    rows, columns = np.divmod(np.arange(tokens), width)
    positions = np.stack((np.zeros_like(rows), rows, columns))
    ids = np.full(tokens, image_token, dtype=np.int64)
    return SpanShape(ids, np.ones(tokens, dtype=bool), positions, max(height, width), (height, width))


def line_span(image_token: int, ids: Sequence[int]) -> SpanShape:
    """Rows at consecutive positions, as in a model with one position a row."""
    rows = np.asarray(ids, dtype=np.int64)
    positions = np.broadcast_to(np.arange(len(rows)), (3, len(rows)))
    return SpanShape(rows, rows == image_token, positions, len(rows))
