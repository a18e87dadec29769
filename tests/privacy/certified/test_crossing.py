"""Tests of the search for where brackets of a decreasing curve cross a target, on curves whose crossing is known."""

import math
from typing import Any

import pytest

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.crossing import Curve, crossing, lower_crossing


def curve(rate: float, width: float = 0.0, bias: float = 1.0, power: float = 1.0) -> Curve:
    """Returns the curve delta(x) = exp(-rate x^power) with brackets and estimates of it.

    The brackets have the relative width `width`, and the estimates are wrong by the factor `bias`.
    """

    def bracket(x: float, *_: Any) -> Bracket:
        value = math.exp(-rate * x**power)
        return Bracket(value * (1 - width), value, value * (1 + width), "known")

    return Curve(bracket, lambda x, tau: (-rate * x**power + math.log(bias), tau))


def root(rate: float, target: float, power: float = 1.0) -> float:
    return float((-math.log(target) / rate) ** (1 / power))


@pytest.mark.parametrize("target", [0.3, 1e-5, 1e-30])
@pytest.mark.parametrize("rate", [1e-3, 1.0, 40.0])
@pytest.mark.parametrize("power", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("start", [0.01, 1.0, 1e3])
def test_the_root_is_in_a_narrow_bracket_from_any_start(start: float, power: float, rate: float, target: float) -> None:
    known = curve(rate, width=1e-12, power=power)
    lower, upper, point = crossing([known], start, -10.0, target)
    assert lower < root(rate, target, power) < upper
    assert upper / lower - 1 < 1e-6
    assert known.bracket(lower, None).lower > target >= known.bracket(upper, None).upper
    assert point == known.bracket(upper, None)


@pytest.mark.parametrize("width", [0.0, 1e-6, 0.1, 0.9])
@pytest.mark.parametrize("bias", [0.2, 1.0, 5.0])
def test_only_brackets_decide(width: float, bias: float) -> None:
    """Only the brackets decide: wide ones and wrong estimates widen the answer, and do not move it off the root."""
    known = curve(2.0, width, bias)
    lower, upper, _ = crossing([known], 1.0, -10.0, 1e-6)
    assert known.bracket(upper, None).upper <= 1e-6
    assert lower == 0 or known.bracket(lower, None).lower > 1e-6
    assert lower < root(2.0, 1e-6) < upper


def test_of_several_curves_the_last_to_fall_decides() -> None:
    for rates in ([1.0, 2.0, 5.0], [5.0, 2.0, 1.0], [2.0, 1.0, 5.0]):
        lower, upper, point = crossing([curve(rate, 1e-9) for rate in rates], 1.0, -10.0, 1e-5)
        assert lower < root(1.0, 1e-5) < upper
        assert upper / lower - 1 < 1e-6
        assert point.upper <= 1e-5


def test_the_lower_end_alone_is_below_the_root_and_as_near() -> None:
    for rates in ([1.0, 2.0, 5.0], [5.0, 2.0, 1.0], [2.0, 1.0, 5.0]):
        for width in (1e-12, 1e-3):
            known = [curve(rate, width) for rate in rates]
            lower = lower_crossing(known, 1.0, -10.0, 1e-5)
            assert max(one.bracket(lower, None).lower for one in known) > 1e-5
            assert root(1.0, 1e-5) * (1 - width / 2 - 1e-6) < lower < root(1.0, 1e-5)


def test_estimates_that_jump_do_not_keep_the_search() -> None:
    """Estimates that jump do not keep the search from ending.

    Two estimates disagree by a factor of 50 where the target is between them.
    """
    asked: list[float] = []
    known = curve(3.0, 1e-9)

    def jumping(x: float, tau: float | None) -> tuple[float, None]:
        asked.append(x)
        return -3.0 * x - (0.0 if x < 3 else 3.9), None

    lower, upper, _ = crossing([Curve(known.bracket, jumping)], 1.0, -10.0, math.exp(-11.0))
    assert lower < 11 / 3 < upper < 11 / 3 * (1 + 1e-6)
    assert len(asked) < 25


def test_a_curve_that_is_too_small_to_resolve_is_followed_upwards() -> None:
    """Where estimates are -inf beyond some x, because the curve is too small to resolve, the search turns back."""
    known = curve(3.0, 1e-9)

    def estimate(x: float, tau: float | None) -> tuple[float, float | None]:
        return (-math.inf, tau) if x > 6 else known.estimate(x, tau)

    lower, upper, _ = crossing([Curve(known.bracket, estimate)], 100.0, -10.0, 1e-5)
    assert lower < root(3.0, 1e-5) < upper
    assert upper / lower - 1 < 1e-6


@pytest.mark.parametrize("bias", [1e-4, 1e-2, 1e2, 1e12])
def test_an_end_is_found_from_far_on_either_side(bias: float) -> None:
    """The crossing is found from far away on either side, with estimates wrong by orders of magnitude.

    The curve falls slowly.
    """
    known = curve(9.0, 1e-4, bias, power=0.3)
    lower, upper, _ = crossing([known], 1.0, -10.0, 1e-8)
    assert root(9.0, 1e-8, 0.3) * (1 - 1e-3) < lower < root(9.0, 1e-8, 0.3) < upper < root(9.0, 1e-8, 0.3) * (1 + 1e-3)


def test_an_end_beside_a_fall_is_found() -> None:
    """The crossing is found beside a point, x = 2, beyond which delta falls to nothing at once."""
    known = curve(1.0)

    def bracket(x: float, *_: Any) -> Bracket:
        return known.bracket(x, 0.0) if x < 2 else Bracket(0.0, 0.0, 0.0, "none")

    def estimate(x: float, tau: float | None) -> tuple[float, float | None]:
        return (-x, tau) if x < 2 else (-math.inf, tau)

    lower, upper, _ = crossing([Curve(bracket, estimate)], 1.0, -10.0, 1e-5)
    assert 2 * (1 - 1e-6) < lower < 2 <= upper < 2 * (1 + 1e-6)
