"""Intervals and correlations, on plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 2000
SEED = 20260905


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its 95 % bootstrap interval over prompts."""

    mean: float
    low: float
    high: float

    def as_list(self, digits: int = 4) -> list[float]:
        return [round(x, digits) for x in (self.mean, self.low, self.high)]


def mean_interval(values: Floats) -> Estimate:
    """Percentile bootstrap. Given the difference of two arms prompt by prompt, it is the paired interval."""
    if len(values) == 0:
        raise ValueError("no values to average")
    rng = np.random.default_rng(SEED)
    picks = rng.integers(0, len(values), (RESAMPLES, len(values)))
    means = values[picks].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(float(values.mean()), float(low), float(high))


def rank_correlation(a: Floats, b: Floats) -> float:
    """Spearman's, equal values sharing their mean rank; nan where one side is constant."""
    ranks = [_ranks(x) for x in (a, b)]
    if any(rank.std() == 0 for rank in ranks):
        return float("nan")
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Floats) -> Floats:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    middle = last - (counts - 1) / 2
    found: Floats = middle[inverse].astype(np.float64)
    return found
