"""Tests that searches return the side that meets the condition, by brute force over every threshold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpzero_theory.bisection import (
    halved,
    largest,
    outward,
    roots,
    smallest,
)
from dpzero_theory.privacy.laws.law import crossing


@pytest.mark.parametrize("low", [1, 2, 7])
@pytest.mark.parametrize("high", [7, 8, 40])
def test_integers_against_brute_force(low: int, high: int) -> None:
    for threshold in range(low - 2, high + 3):
        met = [k for k in range(low, high + 1) if k >= threshold]
        assert smallest(threshold.__le__, low, high) == (met[0] if met else None)
        met = [k for k in range(low, high + 1) if k <= threshold]
        assert largest(threshold.__ge__, low, high) == (met[-1] if met else None)


@given(st.floats(-9, 9).map(lambda x: 10.0**x))
def test_reals_are_on_the_side_that_meets(threshold: float) -> None:
    found = smallest(lambda x: x >= threshold, 1e-9, 1e9)
    assert found is not None
    assert threshold <= found <= threshold * (1 + 1e-11)


def test_reals_at_the_ends() -> None:
    assert smallest(lambda _: True, 2.0, 5.0) == 2.0
    assert smallest(lambda _: False, 2.0, 5.0) is None
    assert smallest(lambda x: x >= 5.0, 2.0, 5.0) == 5.0
    tight = smallest(lambda x: x > 1.0, 0.75, 4.0, tolerance=0.0)
    assert tight == math.nextafter(1.0, 2.0)


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("low", [1, 2, 7])
@pytest.mark.parametrize("high", [7, 8, 40])
def test_whole_crossings_against_brute_force(low: int, high: int, rising: bool) -> None:
    for last in range(low - 2, high + 3):
        inside = range(low, high + 1)
        missed = [k for k in inside if (k > last) == rising]
        met = [k for k in inside if (k > last) != rising]
        nearest = (min, max) if rising else (max, min)
        sign = 1 if rising else -1
        for guess in (low, high, (low + high) / 2, -3.0, 1e6):
            for excess in (
                lambda k, t=last, sign=sign: sign * (k - t - 0.5),
                lambda k, t=last, sign=sign: sign * (math.inf if k > t else -math.inf),
            ):
                found = crossing(excess, guess, least=low, most=high, rising=rising, whole=True)
                assert found == tuple(pick(ks) if ks else None for pick, ks in zip(nearest, (missed, met), strict=True))


@pytest.mark.parametrize("threshold", [-1.0, 1.0, 1.5, 2.0, 3.0, 7.0, 8.0, 9.0, 10.0, 1e9])
def test_a_search_outward_tries_no_point_twice_and_none_beyond_its_end(threshold: float) -> None:
    tried: list[float] = []

    def meets(x: float) -> bool:
        tried.append(x)
        return x >= threshold

    before, found = outward(meets, 1.0, 1.0, most=9.0)
    points = [1.0, 2.0, 4.0, 8.0]
    assert tried == [x for k, x in enumerate(points) if k == 0 or points[k - 1] < threshold]
    assert found == next((x for x in points if x >= threshold), 9.0)
    assert before == max([x for x in points if x < threshold], default=1.0)


def test_a_search_outward_goes_down_too_and_ends_at_infinity() -> None:
    assert outward(lambda k: k <= -6, 2, -1) == (-5, -13)
    assert outward(lambda x: x < 0.1, 1.0, -0.5, growth=0.5) == (0.125, 0.0625)
    assert outward(lambda _: False, 3, 4, growth=1, most=16) == (15, 16)
    assert outward(lambda _: False, 1.0, 1.0)[1] == math.inf
    assert outward(lambda _: False, 5.0, 1.0, most=5.0) == (5.0, 5.0)


def test_halving_takes_ends_in_either_order_and_points_of_the_callers_choice() -> None:
    assert halved(lambda x: x >= 37, 64, 1, middle=lambda low, high: (low + high) // 2) == (37, 36)
    low, high = halved(lambda x: x < 50, 1.0, 1e4, 4, middle=lambda low, high: math.sqrt(low * high))
    assert low < 50 <= high
    assert math.log(high / low) == pytest.approx(math.log(1e4) / 16)


@pytest.mark.parametrize("low", [0, -3])
def test_a_search_that_doubles_refuses_to_start_at_0(low: int) -> None:
    with pytest.raises(ValueError, match=f"0 < low < inf; got {low}$"):
        smallest(lambda k: k > 5, low, 100)
    with pytest.raises(ValueError, match=f"0 < low < inf; got {low}$"):
        largest(lambda k: k < 5, low, 100)
    with pytest.raises(ValueError, match="0 < low < inf; got nan"):
        smallest(lambda x: x > 5, math.nan, 100.0)


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


@given(st.floats(-20, 20), st.floats(-20, 20), st.floats(0.2, 5.0), st.booleans(), st.sampled_from([1e-2, 1e-6]))
def test_crossings_are_on_both_sides_of_the_root_from_any_guess(
    log_root: float, log_start: float, power: float, rising: bool, share: float
) -> None:
    def excess(x: float) -> float:
        value = math.sinh(min(max(power * (math.log(x) - log_root), -50.0), 50.0))
        return value if rising else -value

    missed, met = crossing(excess, math.exp(log_start), rising=rising, share=share)
    assert missed is not None
    assert met is not None
    assert excess(met) <= 0 < excess(missed)
    assert abs(math.log(met / missed)) <= share * (1 + 1e-9)


def test_few_calls_find_a_smooth_crossing_and_steep_or_infinite_ones_are_found_too() -> None:
    asked: list[float] = []

    def excess(x: float) -> float:
        asked.append(x)
        return -6 * math.log(x / 12.5)

    assert crossing(excess, 12.0, share=1e-6)[1] == pytest.approx(12.5, rel=1e-6)
    assert len(asked) <= 6
    # Beyond 5 nothing can be computed, and all is met.
    assert crossing(lambda x: -math.inf if x > 5 else 3.0, 100.0, share=1e-9)[0] == pytest.approx(5, rel=1e-8)
    assert crossing(lambda _: 1.0, 2.0, most=7.0) == (7.0, None)
    assert crossing(lambda _: -1.0, 2.0, least=0.5) == (None, 0.5)


@pytest.mark.parametrize(("aim", "met"), [((-0.01, 0.0), True), ((1e-9, 0.01), False), ((-0.01, 0.01), None)])
def test_a_search_that_aims_at_values_ends_at_the_first_of_them(aim: tuple[float, float], met: bool | None) -> None:
    asked: list[float] = []

    def excess(x: float) -> float:
        asked.append(x)
        return -6 * math.log(x / 12.5) - math.log(x / 12.5) ** 2

    found = crossing(excess, 11.0, share=1e-3, slope=3, aim=aim)
    assert aim[0] <= excess(asked[-1]) <= aim[1]
    assert asked[-2] in found
    assert len(asked) <= 5
    if met is not None:
        assert found[met] == asked[-2]
        assert aim[0] <= excess(found[met] or math.nan) <= aim[1]
    # A function that jumps over the values is enclosed all the same.
    lower, upper = crossing(lambda x: 1.0 if x < 7 else -1.0, 11.0, share=1e-3, slope=3, aim=aim)
    assert lower is not None
    assert upper is not None
    assert lower < 7 <= upper <= 1.0011 * lower
