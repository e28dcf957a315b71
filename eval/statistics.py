"""Intervals and correlations, on plain arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 2000
SEED = 20260905
TWO_SIDED = NormalDist().inv_cdf(0.975)


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


def share_interval(values: Floats) -> Estimate:
    """The share of ones among values that are 0 or 1, with Wilson's interval: it has a width where all are equal."""
    if len(values) == 0:
        raise ValueError("no values to average")
    return wilson(float(values.mean()), len(values))


def wilson(share: float, count: int) -> Estimate:
    """`share` of `count` tries, with Wilson's 95 % interval."""
    spread = TWO_SIDED**2 / count
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    return Estimate(share, max(0.0, middle - half), min(1.0, middle + half))


def beyond_chance(estimate: Sequence[float], looks: int) -> int:
    """1 or -1 where a difference `[mean, low, high]` with its 95 % interval is above or below zero also if `looks` such
    differences are looked at (Bonferroni, on the interval widened as a normal one would be), else 0."""
    mean, low, high = estimate
    wider = NormalDist().inv_cdf(1 - 0.025 / max(looks, 1)) / TWO_SIDED
    if mean - wider * (mean - low) > 0:
        return 1
    return -1 if mean + wider * (high - mean) < 0 else 0


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
