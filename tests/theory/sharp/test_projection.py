"""Tests of the law of v, the norm of a direction's projection: moments against mpmath, ends, and the constant law."""

import math

import mpmath
import numpy as np
import pytest

from dpzero_theory.theory.sharp.projection import Projection

POWERS = ((1, 1), (1, 3), (2, 0), (2, 2), (3, 0), (4, 0))


def _exact(k: int, d: float, c: float, i: int, j: int) -> float:
    """Returns E[(v - c)_+^i v^j] for K = `k` directions in R^d, in 60 digits.

    It follows by the binomial formula from incomplete beta functions, or incomplete gamma functions for infinite d.
    """
    with mpmath.workdps(60):
        first, second, scale = mpmath.mpf(k) / 2, mpmath.mpf(d - k) / 2, mpmath.mpf(d) / k

        def tail(power: int) -> mpmath.mpf:
            if math.isinf(d):
                above = mpmath.gammainc(first + mpmath.mpf(power) / 2, first * mpmath.mpf(c) ** 2)
                return above / mpmath.gamma(first) / first ** (mpmath.mpf(power) / 2)
            above = mpmath.betainc(first + mpmath.mpf(power) / 2, second, mpmath.mpf(c) ** 2 / scale, 1)
            return scale ** (mpmath.mpf(power) / 2) * above / mpmath.beta(first, second)

        return float(sum(math.comb(i, m) * (-mpmath.mpf(c)) ** (i - m) * tail(j + m) for m in range(i + 1)))


@pytest.mark.parametrize(
    ("k", "d"), [(1, 2), (1, 40), (2, 3), (3, 50), (7, 8), (32, 2000), (100, 30_000), (1, math.inf), (64, math.inf)]
)
def test_moments_to_eleven_digits(k: int, d: float) -> None:
    law = Projection(k, d)
    for c in (0.3, 0.95, 1.1):
        if c < law.largest:
            for power, found in zip(POWERS, law.excess(np.array([c]), *POWERS), strict=True):
                assert float(found[0]) == pytest.approx(_exact(k, d, c, *power), rel=1e-11)
            for power, found in zip(((0, 1), (0, 2)), law.tails(np.array([c])), strict=True):
                assert float(found[0]) == pytest.approx(_exact(k, d, c, *power), rel=1e-11)


@pytest.mark.parametrize("k", [1, 2, 30, 4096, 2**16])
def test_gaussian_moments(k: int) -> None:
    law = Projection(k, math.inf)
    second, fourth = law.excess(np.zeros(1), (0, 2), (0, 4))
    assert float(second[0]) == pytest.approx(1, rel=1e-12)
    assert float(fourth[0]) == pytest.approx((k + 2) / k, rel=1e-12)
    ratio = math.exp(math.lgamma((k + 1) / 2) - math.lgamma(k / 2)) * math.sqrt(2 / k)
    assert law.mean == pytest.approx(ratio, rel=1e-9)


def test_beyond_the_largest_value_and_far_in_the_tail() -> None:
    assert Projection(3, 12).largest == 2
    for moment in Projection(3, 12).excess(np.array([2.0, 3.0, 1e200]), *POWERS):
        np.testing.assert_array_equal(moment, 0)
    assert 0 < Projection(64, math.inf).excess(np.array([4.0]), (2, 0))[0][0] < 1e-150


def test_the_constant_law() -> None:
    law = Projection(5, 5)
    assert law.mean == 1
    assert law.excess(np.array([0.25]), (2, 0))[0][0] == 0.75**2
    assert [float(x[0]) for x in law.tails(np.array([0.9]))] == [1, 1]
    assert [float(x[0]) for x in law.tails(np.array([1.0]))] == [0, 0]
