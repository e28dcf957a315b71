"""Rows of a laid-out prompt, ready to run: input embeddings, slots and rotation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from engine.families.base import Family
from engine.passes.forward import Rows
from engine.prompt.layout import Ints, PromptLayout, Query


class PromptRows:
    """`features` [levels, rows, hidden] per span, in prompt order, on the model's device; None where no row of the span
    is asked for."""

    def __init__(self, family: Family, layout: PromptLayout, features: Sequence[torch.Tensor | None]) -> None:
        self._family = family
        self.layout = layout
        self._features = features
        self.rope = family.rope(torch.as_tensor(layout.positions))

    def at(self, slots: Ints) -> Rows:
        """Rows at any ascending slots: words by id, rows of an image by its features."""
        at = self.tensor(slots)
        hidden = self._family.embed(self.tensor(self.layout.ids[slots]))
        levels = max((len(features) for features in self._features if features is not None), default=1)
        added = hidden.new_zeros(levels - 1, *hidden.shape) if levels > 1 else None
        for span, features in zip(self.layout.spans, self._features, strict=True):
            first, last = np.searchsorted(slots, (span.start, span.stop))
            if last > first:
                assert features is not None, "rows of an image without its features"
                inside = at[first:last] - span.start
                hidden[first:last] = features[0][inside].to(hidden.dtype)
                if added is not None:
                    added[:, first:last] = features[1:, inside].to(hidden.dtype)
        return Rows(hidden, at, self.rope.at(at), added)

    def asking(self, query: Query) -> Rows:
        """Rows of a query, which may stand in scratch slots behind the prompt."""
        return Rows(
            self._family.embed(self.tensor(query.ids)),
            self.tensor(query.slots),
            self._family.rope(torch.as_tensor(query.positions)),
        )

    def tensor(self, array: np.ndarray) -> torch.Tensor:
        return torch.as_tensor(array, device=self._family.device)
