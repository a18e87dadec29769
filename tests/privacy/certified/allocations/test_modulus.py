"""Tests of a bound on random allocation of k of t steps, against all outputs and random draws.

The bound replaces a coefficient of a polynomial by its modulus.
"""

import itertools
import math

import numpy as np
import pytest
from scipy.special import ive

from dpzero_theory.privacy.certified.allocations.modulus import coefficient_delta


def elementary(y, k):
    """Returns the elementary symmetric polynomial of degree k of the first axis of y."""
    sums = [1.0] + [0.0] * k
    for one in y:
        sums = [sums[0], *(high + low * one for low, high in itertools.pairwise(sums))]
    return sums[k]


def bound(y, k, c):
    """Returns the function F of the module under test: the bound on the density ratio at the outputs' factors y.

    k is the number of steps in which the record is, and c in (0, 1) a parameter of the bound.
    """
    t = len(y)
    a = [1 - c + c * one for one in y]
    spread = sum(c * one * (1 - c) / (each * each) for one, each in zip(y, a, strict=True))
    return math.prod(a) * ive(0, spread) / (math.comb(t, k) * c**k * (1 - c) ** (t - k))


@pytest.mark.parametrize(("s", "t", "k"), [(0.5, 6, 2), (1.0, 12, 3), (2.0, 30, 9), (0.7, 5, 4)])
@pytest.mark.parametrize("c", [0.02, 0.2, 0.6, 0.95])
def test_no_ratio_is_above_the_bound(s, t, k, c):
    x = s * np.random.default_rng(5).standard_normal((t, 20_000))
    x[:k, ::2] += 1
    y = np.exp((2 * x - 1) / (2 * s * s))
    ratio = elementary(y, k) / math.comb(t, k)
    assert np.all(ratio <= bound(y, k, c) * (1 + 1e-12))


@pytest.mark.parametrize(
    ("s", "t", "k", "epsilon"),
    [(0.6, 3, 2, 4.0), (1.2, 3, 2, 1.0), (1.2, 3, 2, 3.0), (2.0, 3, 2, 0.5), (1.0, 2, 1, 1.0)],
)
def test_one_epoch_against_all_outputs(s, t, k, epsilon):
    """For one epoch the bound is above the exact delta, by the trapezoid rule.

    At the best c it is near its own divergence.
    """
    x = np.arange(-6 * s, 6 * s + 1, s / 6)
    grid = np.meshgrid(*[x] * t, indexing="ij", sparse=True)
    weight = math.prod(np.exp(-(g**2) / (2 * s * s)) / (6 * math.sqrt(2 * math.pi)) for g in grid)
    y = [np.exp((2 * g - 1) / (2 * s * s)) for g in grid]
    ratios = [elementary(y, k) / math.comb(t, k), *(bound(y, k, c) for c in np.linspace(0.04, 0.96, 12))]
    exact, *bounds = (float((weight * np.maximum(ratio - math.exp(epsilon), 0)).sum()) for ratio in ratios)
    found = coefficient_delta(epsilon, s, t, k)
    assert exact * (1 - 1e-6) <= min(bounds) * (1 - 1e-6) <= found < 1.3 * min(bounds)


def test_many_steps_are_next_to_draws():
    """For many steps the bound is near what random draws give.

    There are 100,000 draws of 8 of 64 steps from one seed, with the outputs of the record's steps shifted further up;
    five standard errors are allowed.
    """
    s, t, k, epsilon, further, n = 1.0, 64, 8, 5.0, 0.7, 100_000
    x = s * np.random.default_rng(3).standard_normal((t, n))
    x[:k] += 1 + further
    log_weight = (further**2 - 2 * further * (x[:k] - 1)).sum(axis=0) / (2 * s * s)
    ratio = elementary(np.exp((2 * x - 1) / (2 * s * s)), k) / math.comb(t, k)
    gain = np.exp(log_weight) * np.maximum(1 - math.exp(epsilon) / ratio, 0)
    error = 5 * float(gain.std()) / math.sqrt(n)
    found = coefficient_delta(epsilon, s, t, k)
    assert error < 0.25 * found
    assert gain.mean() - error <= found <= 1.3 * (gain.mean() + error)


@pytest.mark.parametrize("case", [(0.0, 1.0, 12, 3), (0.1, 40.0, 1000, 10), (60.0, 0.5, 64, 8)])
def test_extremes_are_probabilities(case):
    assert 0 <= coefficient_delta(*case) <= 1


def test_a_lattice_that_is_too_long_is_refused():
    with pytest.raises(OverflowError, match="lattice"):
        coefficient_delta(3.0, 1.0, 10**6, 2)
