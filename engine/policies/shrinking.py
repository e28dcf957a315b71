"""How many visual tokens a layer-wise policy computes at each layer."""

from __future__ import annotations

import math

from engine.policies.base import budget

HALVINGS = 64
# What the last bits of a sum may be wrong by.
ROUNDING = 1e-12


def linear_counts(ratio: float, candidates: int, layers: int) -> tuple[int, ...]:
    """All tokens at layer 0, then linearly fewer to none, so that the mean over the layers is `ratio`.

    As in CONDUIT's arms for CacheBlend and KVShare. One layer of all tokens is the least there can be, so a ratio below
    1 / layers costs 1 / layers. Where even a line that ends at the last layer is too little, the line is steeper and
    clipped at all tokens: the mean stays `ratio`.
    """
    if ratio == 0:
        return (0,) * layers
    wanted = ratio * layers
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(_line(middle, layers)) < wanted else (low, middle)
    return tuple(round(share * candidates) for share in _line(high, layers))


def released_counts(ratio: float, candidates: int, layers: int) -> tuple[int, ...]:
    """The counts of CONDUIT's code for the same arms: the line may end above zero at the last layer, and the counts add
    up to layers x ceil(ratio x candidates) exactly (one full layer at least): what rounding down leaves over goes to
    the largest fractions, of equal ones to the first layers."""
    if ratio == 0 or candidates == 0:
        return (0,) * layers
    total = min(max(candidates, budget(ratio, candidates) * layers), candidates * layers)
    line = _falling(total, candidates, layers)
    counts = [math.floor(value + ROUNDING) for value in line]
    fractions = [value - count for value, count in zip(line, counts, strict=True)]
    for _ in range(total - sum(counts)):
        best = 0
        for layer in range(1, layers):
            room = counts[layer] < counts[layer - 1]
            if room and (best == 0 or fractions[layer] > fractions[best] + ROUNDING):
                best = layer
        counts[best] += 1
    return tuple(counts)


def fixed_counts(ratio: float, candidates: int, layers: int, check_layer: int) -> tuple[int, ...]:
    """All tokens up to and with the check layer, ceil(ratio x tokens) behind it."""
    if ratio == 0:
        return (0,) * layers
    before = min(check_layer + 1, layers)
    return (candidates,) * before + (budget(ratio, candidates),) * (layers - before)


def _line(fullness: float, layers: int) -> list[float]:
    """Shares by layer, growing with `fullness` in [0, 1]: up to 1/2 the line reaches zero at depth 2 x fullness of the
    model, from there on it reaches zero at the end and is clipped at 1."""
    if fullness <= 0.5:
        reach = max(2 * fullness * layers, 1e-9)
        return [max(0.0, 1 - layer / reach) for layer in range(layers)]
    height = 1 / max(2 - 2 * fullness, 1e-9)
    return [min(1.0, height * (1 - layer / layers)) for layer in range(layers)]


def _falling(total: int, candidates: int, layers: int) -> list[float]:
    """Tokens by layer on a line that starts with `candidates` and is cut off below zero, `total` together."""
    if total >= candidates * layers:
        return [float(candidates)] * layers
    low, high = 0.0, 1.0
    while sum(_to_zero_at(high, candidates, layers)) < total:
        high *= 2
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(_to_zero_at(middle, candidates, layers)) < total else (low, middle)
    return _to_zero_at(high, candidates, layers)


def _to_zero_at(depth: float, candidates: int, layers: int) -> list[float]:
    return [candidates * max(0.0, 1 - layer / max(depth, ROUNDING)) for layer in range(layers)]
