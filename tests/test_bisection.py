"""Searches return the side that meets the condition, by brute force over every threshold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzero_theory.bisection import halved, largest_integer, last_integer, smallest_integer, smallest_real


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
