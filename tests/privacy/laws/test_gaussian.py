"""The laws of Gaussian noise that dominate: enumeration of batches, sums of hockey-stick divergences, and 40 digits."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import normal_mass
from tests.privacy.oracle import made

X = np.linspace(-14, 14, 14_001)
STEP = X[1] - X[0]
GRID = 1.2e-7
"""The error of a Riemann sum of a function with kinks on this grid: 0.1 STEP^2 with a margin of three."""
VALUES = (-1.0, 0.0, 0.4, 1.0)


def hockey_stick(p, q, epsilon):
    return float(np.sum(np.maximum(p - math.exp(epsilon) * q, 0))) * STEP


def mixture(centres, weights, s):
    return sum(w * norm.pdf(X, c, s) for c, w in zip(centres, weights, strict=True))


def fixed_size_law(records):
    """Returns the exact law of the noisy sum of 2 of the records, with noise 1.3."""
    batches = list(itertools.combinations(records, 2))
    return mixture([sum(b) for b in batches], [1 / len(batches)] * len(batches), 1.3)


def poisson_law(records):
    """Returns that of a Poisson batch at rate 0.35, with noise 0.9."""
    choices = list(itertools.product((0, 1), repeat=len(records)))
    weights = [math.prod(0.35 if c else 0.65 for c in chosen) for chosen in choices]
    return mixture([float(np.dot(chosen, records)) for chosen in choices], weights, 0.9)


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize(
    ("sampling", "q", "s", "law", "count"),
    [("fixed-size", 0.5, 1.3, fixed_size_law, 3), ("poisson", 0.35, 0.9, poisson_law, 2)],
)
def test_one_step_costs_the_maximum_over_all_small_data_sets(sampling, q, s, law, count, relation):
    epsilons = (0.0, 0.05, 0.2, 0.5, 1.0)
    worst = dict.fromkeys(epsilons, 0.0)
    for rest in itertools.combinations_with_replacement(VALUES, count):
        laws = [law((*rest, value)) for value in VALUES]
        pairs = itertools.permutations(laws, 2)
        if relation == "add-remove":
            pairs = (turned for one in laws for turned in itertools.permutations((one, law(rest))))
        for one, other in pairs:
            for epsilon in epsilons:
                worst[epsilon] = max(worst[epsilon], hockey_stick(one, other, epsilon))
    for epsilon in epsilons:
        found = delta_of_history(made(s, 1, q, relation, sampling=sampling), epsilon)
        assert found.lower - GRID <= worst[epsilon] <= found.upper + GRID
        assert found.upper <= 1.0011 * found.lower


def test_replace_one_dominates_vectors_in_the_plane():
    """Half-spaces are the best events against records of a disc, at every threshold, as the module proves."""
    q, s = 0.3, 0.8
    x, y = np.meshgrid(*[np.linspace(-6, 6, 481)] * 2)

    def law(v):
        still, moved = (np.exp(-((x - c[0]) ** 2 + (y - c[1]) ** 2) / (2 * s * s)) for c in ((0, 0), v))
        return ((1 - q) * still + q * moved) / (2 * math.pi * s * s) * (12 / 480) ** 2

    p = law((1.0, 0.0))
    bounds = {epsilon: delta_of_history(made(s, 1, q, "replace-one"), epsilon).upper for epsilon in (0.1, 0.6)}
    for angle, length in itertools.product(np.linspace(0, math.pi, 7), (0.5, 1.0)):
        other = law((length * math.cos(angle), length * math.sin(angle)))
        for epsilon, bound in bounds.items():
            assert float(np.sum(np.maximum(p - math.exp(epsilon) * other, 0))) <= bound + 1e-5


@pytest.mark.parametrize("kind", ["remove", "add", "replace", "fixed-size"])
def test_the_law_has_mass_one_and_the_loss_is_the_log_ratio(kind):
    q, s = 0.03, 0.7
    pair, x = Gaussian(kind, q, s), np.linspace(-8, 10, 57)
    with mpmath.workdps(40):
        ratio = lambda v: 1 - q + q * mpmath.exp((2 * v - 1) / (2 * mpmath.mpf(s) ** 2))  # noqa: E731
        exact = [
            mpmath.log(1 - mpmath.mpf(q) + q * mpmath.exp((2 * mpmath.mpf(v) - 1) / (2 * mpmath.mpf(s) ** 2)))
            for v in x
        ]
        assert max(abs((e - f) / e) for e, f in zip(exact, pair.log_mixture(x), strict=True)) < 1e-13
        mass = sum(
            mpmath.quad(
                lambda v, b=b: mpmath.npdf(v, 0, s) * ratio(v) ** b.a,
                [*([max(b.start, -9 * s)] if b.start < 0 else []), 0.5, 1, 3, 1 + 12 * s],
            )
            for b in pair.branches
        )
    assert float(mass) + pair.atom == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("noise", [0.03, 0.0606, 1.0])
@pytest.mark.parametrize("kind", ["remove", "add", "replace"])
def test_cells_of_a_plain_gaussian_are_cut_where_the_loss_is_a_multiple(noise, kind):
    """A loss far below 0, of noise that hides nothing, is inverted as exactly as one above it."""
    cells = Gaussian(kind, 1.0, noise).cells(8.0, 0.3, 0.5, -1e9)
    assert cells.slip < 1e-9
    assert cells.error < 1e-8


def test_the_error_of_a_normal_mass_is_within_its_bound_far_out():
    """At -37 standard deviations `ndtr` errs by 2.4e-13 of the probability."""
    low = -np.linspace(0.5, 37.0, 400)
    mass, error = normal_mass(low - 0.25, low)
    with mpmath.workdps(40):
        exact = [mpmath.ncdf(high) - mpmath.ncdf(mpmath.mpf(high) - 0.25) for high in low.tolist()]
        wrong = [abs(found - true) for found, true in zip(mass.tolist(), exact, strict=True)]
    assert max(float(one / true) for one, true in zip(wrong, exact, strict=True)) > 4e-15
    assert all(one <= most for one, most in zip(wrong, error.tolist(), strict=True))
    assert (error < 2e-12 * mass).all()
