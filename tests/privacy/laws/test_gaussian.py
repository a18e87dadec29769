"""Tests of the dominating pairs of laws, by enumeration of batches and quadrature of hockey-stick divergences."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy.stats import norm

from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import Span
from dpzero_theory.privacy.step import Release

X = np.linspace(-14, 14, 28_001)
STEP = X[1] - X[0]
GRID = 3e-8
"""The error of a Riemann sum of a function with kinks on the grid used here: 0.1 STEP^2 with a margin of three."""


def hockey_stick(p, q, alpha):
    return float(np.sum(np.maximum(p - alpha * q, 0))) * STEP


def mixture(centres, weights, s):
    return sum(w * norm.pdf(X, c, s) for c, w in zip(centres, weights, strict=True))


def fixed_size_law(records, batch, s):
    """Returns the exact law of the noisy sum of a uniformly random batch of a one-dimensional data set.

    `records` are the contributions, `batch` is the size of the batch, and s the noise multiplier.
    """
    batches = list(itertools.combinations(records, batch))
    return mixture([sum(b) for b in batches], [1 / len(batches)] * len(batches), s)


def poisson_law(records, q, s):
    centres, weights = [], []
    for chosen in itertools.product((0, 1), repeat=len(records)):
        centres.append(float(np.dot(chosen, records)))
        weights.append(math.prod(q if c else 1 - q for c in chosen))
    return mixture(centres, weights, s)


EPSILONS = (0.0, 0.05, 0.2, 0.5, 1.0)
VALUES = (-1.0, 0.0, 0.4, 1.0)


def bracket(sampling, relation, q, s, epsilon):
    unit = Release(s, 1, sampling=sampling, relation=relation, sample_rate=q)
    return delta_of_history([unit], epsilon)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_fixed_size_replace_one_is_the_maximum_over_all_small_data_sets(epsilon):
    n, batch, s = 4, 2, 1.3
    worst = 0.0
    for rest in itertools.combinations_with_replacement(VALUES, n - 1):
        laws = {v: fixed_size_law((*rest, v), batch, s) for v in VALUES}
        for old, new in itertools.permutations(VALUES, 2):
            worst = max(worst, hockey_stick(laws[old], laws[new], math.exp(epsilon)))
    found = bracket("fixed-size", "replace-one", batch / n, s, epsilon)
    assert worst <= found.upper + GRID
    # One step attains the bound, with the other records at -1 and the record at 1 or -1
    assert worst >= found.lower - GRID
    assert found.upper - found.lower < 1e-4 * found.upper


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_fixed_size_add_remove_is_the_maximum_over_all_small_data_sets(epsilon):
    n, batch, s = 4, 2, 1.3
    worst = 0.0
    for rest in itertools.combinations_with_replacement(VALUES, n - 1):
        small = fixed_size_law(rest, batch, s)
        for value in VALUES:
            large = fixed_size_law((*rest, value), batch, s)
            for p, q in ((large, small), (small, large)):
                worst = max(worst, hockey_stick(p, q, math.exp(epsilon)))
    found = bracket("fixed-size", "add-remove", batch / n, s, epsilon)
    assert found.lower - GRID <= worst <= found.upper + GRID


@pytest.mark.parametrize("relation", ["replace-one", "add-remove"])
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_poisson_is_the_maximum_over_all_small_data_sets(epsilon, relation):
    q, s = 0.35, 0.9
    worst = 0.0
    for rest in itertools.combinations_with_replacement(VALUES, 2):
        laws = [poisson_law((*rest, v), q, s) for v in VALUES]
        if relation == "add-remove":
            others = [poisson_law(rest, q, s)]
            couples = [*itertools.product(laws, others), *itertools.product(others, laws)]
        else:
            couples = list(itertools.permutations(laws, 2))
        worst = max(worst, *(hockey_stick(a, b, math.exp(epsilon)) for a, b in couples))
    found = bracket("poisson", relation, q, s, epsilon)
    assert found.lower - GRID <= worst <= found.upper + GRID


def test_replace_one_dominates_vectors_in_the_plane():
    """The pair for replace-one dominates vectors in the plane.

    Half-spaces are optimal against records of a disc, at every threshold, as the module proves.
    """
    q, s = 0.3, 0.8
    grid = np.linspace(-6, 6, 481)
    x, y = np.meshgrid(grid, grid)
    cell = (grid[1] - grid[0]) ** 2

    def law(v):
        still, moved = (np.exp(-((x - c[0]) ** 2 + (y - c[1]) ** 2) / (2 * s * s)) for c in ((0, 0), v))
        return ((1 - q) * still + q * moved) / (2 * math.pi * s * s)

    p = law((1.0, 0.0))
    for angle, length in itertools.product(np.linspace(0, math.pi, 7), (0.5, 1.0)):
        other = law((length * math.cos(angle), length * math.sin(angle)))
        for epsilon in (0.1, 0.6):
            found = bracket("poisson", "replace-one", q, s, epsilon).upper
            assert float(np.sum(np.maximum(p - math.exp(epsilon) * other, 0))) * cell <= found + 1e-5


def test_two_steps_of_fixed_size_replace_one_lie_between_the_two_ends():
    """Two steps with batches of fixed size under replace-one lie between the ends of the bracket.

    An adaptive adversary may mix the two directions, and no order of them exceeds the upper end.
    """
    q, s, epsilon = 0.5, 1.3, 0.3
    base, shifted = norm.pdf(X, 0, s), (1 - q) * norm.pdf(X, 0, s) + q * norm.pdf(X, 2, s)
    x = X[::40]
    weight = (x[1] - x[0]) ** 2
    removed, added = (shifted[::40], base[::40]), (base[::40], shifted[::40])
    values = {}
    for name, (first, second) in {
        "remove, remove": (removed, removed),
        "remove, add": (removed, added),
        "add, add": (added, added),
    }.items():
        joint = np.outer(first[0], second[0]) - math.exp(epsilon) * np.outer(first[1], second[1])
        values[name] = float(np.sum(np.maximum(joint, 0))) * weight
    unit = Release(s, 2, sampling="fixed-size", relation="replace-one", sample_rate=q)
    found = delta_of_history([unit], epsilon)
    assert max(values.values()) <= found.upper + 1e-6
    assert found.lower == pytest.approx(max(values["remove, remove"], values["add, add"]), abs=1e-5)


@pytest.mark.parametrize("kind", ["remove", "add", "replace", "fixed-size"])
def test_the_law_has_mass_one_and_the_loss_is_the_log_ratio(kind):
    q, s = 0.03, 0.7
    pair = Gaussian(kind, q, s)
    x = np.linspace(-8, 10, 57)
    with mpmath.workdps(40):
        exact = [
            mpmath.log(1 - mpmath.mpf(q) + q * mpmath.exp((2 * mpmath.mpf(v) - 1) / (2 * mpmath.mpf(s) ** 2)))
            for v in x
        ]
        found = pair.log_mixture(x)
        assert max(abs((e - f) / e) for e, f in zip(exact, found, strict=True)) < 1e-13
        branch_mass = sum(
            mpmath.quad(
                lambda v, b=b: (
                    mpmath.npdf(v, 0, s) * (1 - q + q * mpmath.exp((2 * v - 1) / (2 * mpmath.mpf(s) ** 2))) ** b.a
                ),
                [max(b.start, -9 * s), 0.5, 1, 3, 1 + 12 * s] if b.start < 0 else [0.5, 1, 3, 1 + 12 * s],
            )
            for b in pair.branches
        )
    assert float(branch_mass) + pair.atom == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("noise", [0.03, 0.0606, 1.0])
def test_cells_of_a_plain_gaussian_are_cut_where_the_loss_is_a_multiple(noise: float) -> None:
    """A loss far below 0, of noise that hides nothing, is inverted as exactly as one above it."""
    span, width = Span(8.0, 8.0), 0.5
    for kind in ("remove", "add", "replace"):
        cells = Gaussian(kind, 1.0, noise).cells(span, 0.3, width, -1e9)
        assert cells.slip < 1e-9
        assert cells.error < 1e-8
