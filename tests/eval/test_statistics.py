"""Intervals and rank correlation against what is known of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eval.statistics import beyond_chance, mean_interval, rank_correlation, share_interval


def test_interval_holds_the_mean_and_shrinks_with_n() -> None:
    rng = np.random.default_rng(0)
    few, many = rng.normal(size=50), rng.normal(size=5000)
    for values in (few, many):
        found = mean_interval(values)
        assert found.mean == pytest.approx(values.mean())
        assert found.low < found.mean < found.high
        assert found.high - found.low == pytest.approx(
            2 * 1.96 * values.std() / math.sqrt(len(values)), rel=0.2
        )
    assert mean_interval(few) == mean_interval(few)


def test_interval_of_equal_values_is_a_point() -> None:
    assert mean_interval(np.ones(20)).as_list() == [1.0, 1.0, 1.0]


def test_nothing_has_no_mean() -> None:
    with pytest.raises(ValueError, match="no values"):
        mean_interval(np.empty(0))


def test_rank_correlation() -> None:
    a = np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(a, a**3) == pytest.approx(1)
    assert rank_correlation(a, -a) == pytest.approx(-1)
    # ties share their mean rank: ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4
    assert rank_correlation(np.array([1.0, 5.0, 5.0, 9.0]), a) == pytest.approx(0.9486833)
    assert math.isnan(rank_correlation(a, np.ones(4)))


@pytest.mark.parametrize(
    ("ones", "zeros", "low", "high"),
    # Wilson 1927; the first two are the textbook's 1 - 1 / (1 + n / z^2).
    [(10, 0, 0.7225, 1.0), (0, 10, 0.0, 0.2775), (5, 5, 0.2366, 0.7634), (999, 1, 0.9944, 0.9998)],
)
def test_share_has_wilson_s_interval(ones: int, zeros: int, low: float, high: float) -> None:
    found = share_interval(np.asarray([1.0] * ones + [0.0] * zeros))
    assert found.as_list() == [round(ones / (ones + zeros), 4), low, high]


def test_nothing_has_no_share() -> None:
    with pytest.raises(ValueError, match="no values"):
        share_interval(np.empty(0))


def test_more_looks_ask_for_larger_differences() -> None:
    """2.2 standard errors are beyond chance for one look and not for ten; four are for ten and for a hundred."""
    small, large = [2.2, 2.2 - 1.96, 2.2 + 1.96], [4.0, 4.0 - 1.96, 4.0 + 1.96]
    assert [beyond_chance(small, looks) for looks in (0, 1, 10)] == [1, 1, 0]
    assert [beyond_chance(large, looks) for looks in (1, 100, 1000)] == [1, 1, 0]
    assert [beyond_chance([-x for x in (mean, high, low)], 1) for mean, low, high in (small, large)] == [
        -1,
        -1,
    ]
    assert beyond_chance([0.0, 0.0, 0.0], 5) == 0
