"""Intervals and rank correlation against what is known of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from eval.statistics import mean_interval, rank_correlation


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
