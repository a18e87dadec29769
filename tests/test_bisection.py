"""Tests that searches return the side that meets the condition, by brute force over every threshold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzero_theory.bisection import (
    LogSecant,
    halved,
    largest_integer,
    last_integer,
    roots,
    smallest_integer,
    smallest_real,
)


@pytest.mark.parametrize("low", [1, 2, 7])
@pytest.mark.parametrize("high", [7, 8, 40])
def test_integers_against_brute_force(low: int, high: int) -> None:
    for threshold in range(low - 2, high + 3):
        smallest = [k for k in range(low, high + 1) if k >= threshold]
        assert smallest_integer(threshold.__le__, low, high) == (smallest[0] if smallest else None)
        largest = [k for k in range(low, high + 1) if k <= threshold]
        assert largest_integer(threshold.__ge__, low, high) == (largest[-1] if largest else None)


@given(st.integers(1, 10**15))
def test_integers_over_many_decades_with_few_trials(threshold: int) -> None:
    tried: list[int] = []

    def meets(k: int) -> bool:
        tried.append(k)
        return k >= threshold

    assert smallest_integer(meets, 1, 10**15) == threshold
    assert len(tried) <= 105
    assert all(1 <= k <= 10**15 for k in tried)
    assert largest_integer(lambda k: k <= threshold, 1, 10**15) == threshold


@given(st.floats(-9, 9).map(lambda x: 10.0**x))
def test_reals_are_on_the_side_that_meets(threshold: float) -> None:
    found = smallest_real(lambda x: x >= threshold, 1e-9, 1e9)
    assert found is not None
    assert threshold <= found <= threshold * (1 + 1e-11)


def test_reals_at_the_ends() -> None:
    assert smallest_real(lambda _: True, 2.0, 5.0) == 2.0
    assert smallest_real(lambda _: False, 2.0, 5.0) is None
    assert smallest_real(lambda x: x >= 5.0, 2.0, 5.0) == 5.0
    tight = smallest_real(lambda x: x > 1.0, 0.75, 4.0, tolerance=0.0)
    assert tight == math.nextafter(1.0, 2.0)


@pytest.mark.parametrize("low", [1, 2, 7])
@pytest.mark.parametrize("high", [7, 8, 40])
def test_the_last_integer_against_brute_force(low: int, high: int) -> None:
    for threshold in range(low - 2, high + 3):
        holding = [k for k in range(low, high + 1) if k <= threshold]
        for guess in (low, high, (low + high) / 2, -3.0, 1e6):
            for excess in (
                lambda k, t=threshold: float(k - t),
                lambda k, t=threshold: math.inf if k > t else -math.inf,
            ):
                assert last_integer(excess, low, high, guess) == (holding[-1] if holding else None)


@given(st.integers(1, 10**15), st.floats(-0.5, 0.5))
def test_the_last_integer_takes_few_trials_where_the_excess_is_smooth(threshold: int, miss: float) -> None:
    tried: list[int] = []

    def excess(k: int) -> float:
        tried.append(k)
        return math.log(k / threshold) * 3

    assert last_integer(excess, 1, 10**15, threshold * math.exp(miss)) == threshold
    assert len(tried) <= 40


def test_halving_ends_on_both_sides_of_the_turn() -> None:
    low, high = halved(lambda x: x * x < 2, 1.0, 2.0, 60)
    assert low * low < 2 <= high * high
    assert high == math.nextafter(low, 2.0)
    assert halved(lambda x: x * x < 2, 1.0, 2.0, 2) == (1.25, 1.5)


def test_each_entry_of_an_array_is_a_search_of_its_own() -> None:
    squares = np.array([2.0, 3.0, 0.25])
    ends = halved(lambda x: x * x < squares, np.zeros(3), np.full(3, 4.0), 30)
    for k, square in enumerate(squares):
        alone = halved(lambda x, square=square: x * x < square, 0.0, 4.0, 30)
        assert (ends[0][k], ends[1][k]) == alone


@pytest.mark.parametrize("low", [0, -3])
def test_a_search_that_doubles_refuses_to_start_at_0(low: int) -> None:
    with pytest.raises(ValueError, match=f"0 < low < inf; got {low}$"):
        smallest_integer(lambda k: k > 5, low, 100)
    with pytest.raises(ValueError, match=f"0 < low < inf; got {low}$"):
        largest_integer(lambda k: k < 5, low, 100)
    with pytest.raises(ValueError, match="0 < low < inf; got nan"):
        smallest_real(lambda x: x > 5, math.nan, 100.0)


def test_halving_arrays_ends_where_each_entry_has_its_two_floats() -> None:
    thresholds, calls = np.array([0.0, 1e-3, 0.75, 1e300, 1.5e308]), 0

    def before(x: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        return np.asarray(x <= thresholds)

    low, high = halved(before, np.zeros(5), np.full(5, 1.7e308), 10_000)
    assert (low == thresholds).all()
    assert (high == np.nextafter(low, math.inf)).all()
    assert calls < 2200


@pytest.mark.parametrize("rising", [True, False])
def test_roots_are_the_float_on_the_side_that_is_at_most_0(rising: bool) -> None:
    thresholds, calls = 10.0 ** np.linspace(-9, 9, 41), 0

    def function(x: np.ndarray) -> np.ndarray:
        nonlocal calls
        calls += 1
        return np.asarray((x - thresholds) * (1 if rising else -1) / thresholds)

    found = roots(function, thresholds / 3, thresholds * 2.5, rising=rising)
    assert (found == thresholds).all()
    beyond = np.nextafter(found, math.inf if rising else 0.0)
    assert (function(beyond) > 0).all()
    assert calls < 40


@given(st.floats(-20, 20), st.floats(-20, 20), st.floats(0.2, 5.0), st.floats(-8, -0.2))
def test_secants_in_log_x_find_the_root_from_any_guess(
    log_root: float, log_start: float, power: float, slope: float
) -> None:
    search = LogSecant(math.exp(log_start), slope)
    for _ in range(200):
        value = -math.sinh(min(max(power * (math.log(search.x) - log_root), -50.0), 50.0))
        search.measure(value)
        if abs(value) < 1e-9:
            break
        search.move(value)
    # Points of a search that are closer to each other would not show the slope of its function.
    assert math.log(search.x) == pytest.approx(log_root, abs=1e-5)
    assert search.slope < 0
    assert math.log(search.low or 1e-300) <= log_root + 1e-9 <= math.log(search.high) + 2e-9


def test_secants_take_no_slope_from_an_error() -> None:
    search = LogSecant(1.0, -3.0)
    search.move(0.5)
    search.measure(0.6, error=0.2)
    assert search.slope == -3.0
    search.measure(0.6)
    assert search.slope == -1e-6
    search.retreat()
    assert search.high < math.inf
    assert 1.0 < search.x < search.high
