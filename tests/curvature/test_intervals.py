"""Tests of intervals: against scipy's, by hand, and as JSON."""

import math

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.curvature.intervals import Interval, mean_interval, quantiles, quotient


def test_t_intervals() -> None:
    """The t intervals are scipy's, and wider where the draws are known only between bounds."""
    draws = np.array([1.0, 2.0, 4.0, 3.0, 7.0])
    found = mean_interval(draws, 0.9, shift=10)
    low, high = stats.t.interval(0.9, 4, loc=draws.mean(), scale=stats.sem(draws))
    assert (found.low, found.high) == (pytest.approx(10 + low), pytest.approx(10 + high))
    wide = mean_interval(draws, 0.9, lows=draws - 1, highs=draws + 2, shift=10)
    assert (wide.low, wide.high) == (pytest.approx(9 + low), pytest.approx(12 + high))
    with pytest.raises(ValueError, match="at least 2 draws"):
        mean_interval([1.0], 0.9)


def test_quotients_take_opposite_ends_and_add_failures() -> None:
    top = Interval(2.0, 4.0, 6.0, "interval", 0.95)
    bottom = Interval(1.0, 1.0, 2.0, "probability", 0.97)
    found = quotient(top, bottom, 1.5, 5.0)
    assert (found.low, found.estimate, found.high) == (1.5, 4.0, 5.0)
    assert found.kind == "interval"
    assert found.level == pytest.approx(0.92)
    with pytest.raises(ValueError, match="low <= estimate <= high"):
        Interval(2.0, 1.0, 3.0, "interval", 0.95)


def test_quantiles_by_name() -> None:
    assert quantiles([3.0, 1.0, 2.0], (0.0, 0.25, 0.5, 1.0)) == {"0": 1.0, "0.25": 1.5, "0.5": 2.0, "1": 3.0}
    with pytest.raises(ValueError, match="values must be finite"):
        quantiles([1.0, math.nan], (0.5,))
