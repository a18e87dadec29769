"""Tests of the grid engine: closed forms, independent values and the contour engine's brackets.

The laws on the grid are tested too.
"""

import itertools
import math

import mpmath
import numpy as np
import pytest

from benchmarks.independent import independent_delta, lattice_delta
from dpzero_theory.privacy.certified.analytic.contour import delta_bracket
from dpzero_theory.privacy.certified.grids import grid
from dpzero_theory.privacy.grid import grid_delta
from dpzero_theory.privacy.laws.gaussian import Pair
from dpzero_theory.privacy.certified.router import direction_delta
from tests.privacy.certified.analytic.test_single import exact
from tests.privacy.oracle import closed_form

POINTS = 2**16
EXTENDED = pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs 80-bit floats")


@pytest.mark.parametrize(
    ("kind", "q", "s", "epsilon", "width"),
    [
        ("remove", 0.3, 2.0, 0.5, 1e-5),
        ("add", 0.3, 2.0, 0.2, 1e-5),
        ("replace", 0.3, 2.0, 0.5, 1e-5),
        ("fixed-size", 0.3, 2.0, 0.5, 1e-5),
        ("remove", 0.1, 0.3, 20.0, 1e-5),
        ("replace", 1e-3, 0.06, 150.0, 1e-4),
        ("remove", 1e-4, 0.5, 0.05, 1e-4),
        pytest.param("replace", 2e-5, 0.844, 0.01413, 2e-3, marks=EXTENDED),
        pytest.param("add", 1e-4, 0.9, 9e-5, 1e-4, marks=EXTENDED),
    ],
)
def test_one_release_against_its_closed_form(kind, q, s, epsilon, width):
    # For epsilon >= 0 the pair of laws of fixed-size batches has the same deltas as "remove"
    exact = closed_form("remove" if kind == "fixed-size" else kind, q, s, epsilon)
    found = grid_delta(epsilon, [(Pair(kind, q, s), 1)], points=POINTS)
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower < width * exact
    assert found.method == "grid"


@EXTENDED
@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon", "width"),
    [
        ("remove", 1 / 16, 12.496428, 10_000, 2.0, 2e-2),
        ("add", 0.3, 2.0, 60, 1.0, 1e-4),
        ("replace", 0.05, 3.0, 300, 0.7, 1e-3),
    ],
)
def test_composition_against_extended_precision(kind, q, s, steps, epsilon, width):
    value, error = independent_delta(kind, q, s, steps, epsilon)
    assert error < 1e-12
    found = grid_delta(epsilon, [(Pair(kind, q, s), steps)], points=POINTS)
    assert found.lower <= value <= found.upper
    assert found.upper - found.lower < width * value


@pytest.mark.parametrize(
    ("kind", "q", "s", "steps", "epsilon"),
    [("remove", 1.150876e-5, 0.0587336, 28, 165.2811), ("replace", 5.564232e-5, 0.0538259, 3164, 180.722)],
)
def test_rare_events_against_a_tilted_lattice(kind, q, s, steps, epsilon):
    value, error = lattice_delta(kind, q, s, steps, epsilon)
    assert error < 1e-4
    found = grid_delta(epsilon, [(Pair(kind, q, s), steps)], points=2**18)
    assert found.lower <= value * (1 + error)
    assert value * (1 - error) <= found.upper
    assert found.upper / found.lower - 1 < 1e-5


def two_removals(q: float, s: float, epsilon: float) -> mpmath.mpf:
    """Returns delta_2(epsilon) of two releases as E_P delta_1(epsilon - L), with the closed form of delta_1 inside.

    L is the loss of the first release. The integral is over panels that end at the integrand's kink; q is the sampling
    rate and s the noise multiplier.
    """
    rate, noise, points = mpmath.mpf(q), mpmath.mpf(s), np.polynomial.legendre.leggauss(16)
    kink = float(0.5 + noise**2 * mpmath.log((mpmath.exp(epsilon) / (1 - rate) - 1 + rate) / rate))
    edges = np.sort(np.append(np.arange(-12 * s, 1 + 22 * s, s / 2), kink))
    total = mpmath.mpf(0)
    for low, high in itertools.pairwise(edges):
        for node, weight in zip(*points, strict=True):
            x = mpmath.mpf((low + high) / 2 + (high - low) / 2 * node)
            ratio = 1 - rate + rate * mpmath.exp((2 * x - 1) / (2 * noise**2))
            left = epsilon - mpmath.log(ratio)
            one = 1 - mpmath.exp(left) if mpmath.exp(left) <= 1 - rate else exact("remove", q, s, left)
            density = ratio * mpmath.exp(-(x**2) / (2 * noise**2)) / (noise * mpmath.sqrt(2 * mpmath.pi))
            total += (high - low) / 2 * weight * density * one
    return total


@pytest.mark.parametrize(("q", "s", "epsilon"), [(3e-3, 2.5, 0.05), (1e-6, 0.8, 0.3)])
@pytest.mark.parametrize("points", [2**12, 2**16])
def test_two_releases_whose_delta_is_one_large_loss(q, s, epsilon, points):
    """Two releases whose delta comes from one large loss are in the bracket.

    Their deltas, 3e-16 and 1e-28, are far below what one tilt for small and large losses would resolve.
    """
    with mpmath.workdps(40):
        value = two_removals(q, s, epsilon)
    found = grid_delta(epsilon, [(Pair("remove", q, s), 2)], points=points)
    assert found.lower <= value * (1 + 1e-12)
    assert value * (1 - 1e-12) <= found.upper
    assert found.upper / found.lower - 1 < 1e3 / points


@pytest.mark.parametrize("log_cut", [-25.0, -40.0, -60.0])
def test_where_large_losses_begin_changes_the_width_alone(monkeypatch, log_cut):
    parts = [(Pair("remove", 1.33e-6, 0.72), 44_751)]
    reference = grid_delta(0.22, parts, points=POINTS)
    monkeypatch.setattr(grid, "rough_cut", lambda *_: (log_cut, math.log(reference.value)))
    moved = grid_delta(0.22, parts, points=POINTS)
    assert moved != reference
    assert max(moved.lower, reference.lower) <= min(moved.upper, reference.upper)


@pytest.mark.parametrize("gdp", [0.0, 0.3])
@pytest.mark.parametrize("kind", ["remove", "add", "replace", "fixed-size"])
def test_both_engines_agree_on_mixed_histories(kind, gdp):
    parts = [(Pair(kind, 0.05, 1.1), 40), (Pair(kind, 0.2, 4.0), 200)]
    contour = delta_bracket(0.8, parts, gdp)
    found = grid_delta(0.8, parts, gdp, points=POINTS)
    assert max(found.lower, contour.lower) <= min(found.upper, contour.upper)
    assert found.upper / found.lower - 1 < 1e-2
    assert found.value == pytest.approx(contour.value, rel=1e-3)


def test_more_points_narrow_the_bracket_as_their_square():
    parts = [(Pair("remove", 0.05, 0.8), 30)]
    widths = []
    for points in (2**13, 2**15):
        found = grid_delta(2.0, parts, points=points)
        widths.append(found.upper - found.lower)
    assert 12 < widths[0] / widths[1] < 20


def test_tiny_gaussian_part_goes_to_the_grid():
    parts = ((Pair("remove", 1e-4, 0.07), 20),)
    alone = direction_delta(120.0, parts, 0.0)
    mixed = direction_delta(120.0, parts, 1e-5)
    assert alone.method == mixed.method == "grid"
    assert mixed.lower <= alone.upper * (1 + 1e-4)
    assert alone.lower <= mixed.upper


def test_what_is_out_of_range_is_refused():
    with pytest.raises(OverflowError):
        grid_delta(1e5, [(Pair("remove", 0.5, 1e-3), 10)])
