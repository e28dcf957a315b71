"""The pass of a layer-wise policy: visual rows drop out on the way down, text rows stay to the end."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from engine.families.base import Family, Projection
from engine.passes.attention import by_order
from engine.passes.forward import Rows, Work, keep, last_row
from engine.passes.kv import RequestKV
from engine.passes.rotation import rotate
from engine.passes.score import WEIGHT_ROWS, attention_weights
from engine.policies.base import EMPTY, LayerProbe, LayerwisePolicy, top


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The last row's final hidden state [1, hidden], and how many layers computed each candidate [candidates]."""

    hidden: torch.Tensor
    layers_computed: torch.Tensor


class ShrinkingPass:
    """Runs text rows and candidates, the candidates as many at each layer as `counts` says."""

    def __init__(self, family: Family, kv: RequestKV, policy: LayerwisePolicy, work: Work) -> None:
        self._family, self._kv, self._policy, self._work = family, kv, policy, work

    def run(self, rows: Rows, candidate: torch.Tensor, counts: tuple[int, ...]) -> Shrunk:
        """`rows` are all text rows and all candidates, ascending; `candidate` [rows] marks the latter. The first count
        must be all of them or none. Which stay is decided with what a layer's own keys and values show."""
        shape = self._family.shape
        computed = torch.zeros(int(candidate.sum()), dtype=torch.long, device=candidate.device)
        number = candidate.cumsum(0) - 1
        if counts[0] == 0:
            rows, candidate, number = _only(rows, candidate, number, ~candidate)
        for layer in range(shape.layers - 1):
            computed[number[candidate]] += 1
            projected = self._family.project(layer, rows.hidden)
            self._work.project(shape, len(rows.slots), len(rows.slots))
            staying, attended = self._layer(layer, rows, candidate, projected, counts[layer + 1])
            rows, candidate, number = _only(rows, candidate, number, staying)
            hidden = rows.behind(layer, self._family.finish(layer, rows.hidden, attended))
            self._work.finish(shape, len(hidden))
            rows = replace(rows, hidden=hidden)
        computed[number[candidate]] += 1
        keep(self._kv, shape.layers - 1, rows, *self._family.project_kv(shape.layers - 1, rows.hidden))
        self._work.project(shape, len(rows.slots), 1)
        hidden = last_row(self._family, shape.layers - 1, rows.hidden[-1:], self._kv, rows, self._work)
        return Shrunk(hidden, computed)

    def _layer(
        self, layer: int, rows: Rows, candidate: torch.Tensor, projected: Projection, next_count: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's KV. Returns which rows go on [rows] and what those attended to [heads, staying, head_dim]."""
        kv, active = self._kv, rows.slots[candidate]
        old_keys, old_values = kv.keys[layer][:, active], kv.values[layer][:, active]
        keep(kv, layer, rows, projected.keys, projected.values)
        queries = rotate(projected.queries, rows.rope)
        if next_count == len(active):
            return torch.ones_like(candidate), self._attend(layer, queries, rows.slots)
        mass = EMPTY
        if self._policy.wants_mass:
            mass = self._mass(layer, queries, rows.slots)[active]
        seen = LayerProbe(kv.keys[layer][:, active], old_keys, kv.values[layer][:, active], old_values, mass)
        staying = ~candidate
        staying[candidate.nonzero().flatten()[top(self._policy.importance(seen), next_count)]] = True
        return staying, self._attend(layer, queries[:, staying], rows.slots[staying])

    def _attend(self, layer: int, queries: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        attention = by_order(slots, self._family.shape.group)
        self._work.attend(self._family.shape, attention.pairs)
        return attention(queries, self._kv.keys[layer], self._kv.values[layer])

    def _mass(self, layer: int, queries: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Mean attention over all rows and heads that each slot gets: float32 [slots]."""
        shape, end = self._family.shape, int(slots[-1]) + 1
        keys = self._kv.keys[layer, :, :end]
        mass = torch.zeros(end, device=slots.device)
        every = torch.arange(end, device=slots.device)
        for first in range(0, len(slots), WEIGHT_ROWS):
            part = slots[first : first + WEIGHT_ROWS]
            mask = torch.zeros(len(part), end, device=slots.device).masked_fill_(
                every > part[:, None], float("-inf")
            )
            weights = attention_weights(
                queries[:, first : first + WEIGHT_ROWS], keys, mask.repeat(shape.group, 1)
            )
            mass += weights.sum(dim=(0, 1))
        # Half of the arithmetic of an attention: weights, no values.
        self._work.attend(shape, (int(slots.sum()) + len(slots)) // 2)
        return mass / (shape.heads * len(slots))


def _only(
    rows: Rows, candidate: torch.Tensor, number: torch.Tensor, staying: torch.Tensor
) -> tuple[Rows, torch.Tensor, torch.Tensor]:
    if bool(staying.all()):
        return rows, candidate, number
    at = staying.nonzero().flatten()
    return rows.only(at), candidate[at], number[at]
