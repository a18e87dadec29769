"""Tests of the constants of the sharpened theorem at their ends and limits.

They also test what the registration of a law of directions refuses, and the cost of the smoothing under a root mean
square over samples, against moments by exact Gauss-Hermite quadrature.
"""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpzero_theory.check import PreconditionError
from dpzero_theory.sphere import DIRECTIONS, DirectionLaw, sample_gaussian
from dpzero_theory.theory.sharp import constants

Array = NDArray[np.float64]


@pytest.mark.parametrize("d", [1, 2, 3, 10, 10**9])
def test_constants_at_the_ends(d: int) -> None:
    none = constants.constants(np.array([math.sqrt(d), 2 * math.sqrt(d)]), d, 1.0)
    for name in ("bias", "cross", "excess"):
        np.testing.assert_allclose(getattr(none, name), 0, atol=1e-20)
    np.testing.assert_array_equal(none.kept, 1)
    all_clipped = constants.constants(np.array([1e-9]), d, 1.0)
    assert all_clipped.quadratic[0] == pytest.approx(0, abs=1e-7)
    assert all_clipped.excess[0] == pytest.approx(all_clipped.spread, rel=1e-7)


def _directions(d: int, law: str) -> tuple[Array, Array]:
    """Returns points and weights that integrate polynomials of degree 7 in the direction u in R^d exactly.

    They are 4 Gauss-Hermite nodes for each axis; for `law` "rademacher" all sign vectors. On the sphere a homogeneous
    polynomial of degree 2 k has the Gaussian moment over E|z|^(2k)/d^k, see `_moment`.
    """
    if law == "rademacher":
        points = np.array(list(itertools.product((-1.0, 1.0), repeat=d)))
        return points, np.full(len(points), 2.0**-d)
    nodes, weights = np.polynomial.hermite_e.hermegauss(4)
    points = np.array(list(itertools.product(nodes, repeat=d)))
    mass = np.array([math.prod(w) for w in itertools.product(weights / weights.sum(), repeat=d)])
    return points, mass


def _moment(values: Array, mass: Array, degree: int, d: int, law: str) -> float:
    radial = math.prod(d + 2 * k for k in range(degree // 2)) / d ** (degree // 2) if law == "sphere" else 1.0
    return float(mass @ values) / radial


@pytest.mark.parametrize("law", DIRECTIONS)
def test_the_root_mean_square_of_the_samples_traces_is_enough(law: str) -> None:
    rng = np.random.default_rng(0)
    d = 4
    points, mass = _directions(d, law)
    squares = points * points
    tightest = 0.0
    for case in range(200):
        sizes = rng.beta(0.4, 0.4, (6, d)) * (rng.random((6, 1)) < rng.uniform(0.2, 1))
        whole = np.maximum(sizes.mean(axis=0), rng.beta(0.4, 0.4, d) * (case % 2))
        if case == 0:
            sizes, whole = np.array([np.ones(d)] * 3 + [np.zeros(d)] * 3), np.ones(d)
        r = max(1.0, float(whole.sum()))
        rank = max(1.0, math.sqrt(float((sizes.sum(axis=1) ** 2).mean())))
        k = constants.constants(1.0, d, r, law, rank)
        curved, forms = squares @ whole, squares @ sizes.T
        single = np.mean([_moment(forms[:, i] ** 2 * curved, mass, 6, d, law) for i in range(6)])
        mean = forms.mean(axis=1)
        # For a rank above d/2 the other form of the constant smooth_first, nu d, may be the smaller one.
        if rank < d / 2:
            assert _moment(mean**2, mass, 4, d, law) <= k.smooth_first**2 * (1 + 1e-12)
        assert _moment(mean**2 * curved, mass, 6, d, law) <= k.smooth_second**2 * (1 + 1e-12)
        assert single <= k.smooth_second**2 * (1 + 1e-12)
        tightest = max(tightest, single / k.smooth_second**2)
    assert tightest > 0.4
    # Half of the samples have the identity as their Hessian, and half have nothing.
    mean_only = constants.constants(1.0, d, float(d), law, d / 2)
    exact = _moment(squares.sum(axis=1) ** 3, mass, 6, d, law) / 2
    assert exact > mean_only.smooth_second**2 or law == "rademacher"


@pytest.mark.parametrize("k", [1, 7, 64])
def test_the_sphere_tends_to_the_gaussian_for_every_number_of_directions(k: int) -> None:
    c = np.array([0.3, 1.0, 1.3])
    laws = [constants.constants(c, 10**11, 7.0, kind, 9.0, k) for kind in ("sphere", "gaussian", "frame")]
    for field in dataclasses.fields(laws[0]):
        values = [getattr(law, field.name) for law in laws]
        np.testing.assert_allclose(values[0], values[1], rtol=1e-7)
        np.testing.assert_allclose(values[2], values[1], rtol=1e-7)


def test_a_whole_frame_sees_the_norm_itself() -> None:
    """With K = d directions in an orthogonal frame, the norm of the projected gradient is sqrt(d) times the gradient's.

    So a step along the gradient g is (alpha/d) d g = alpha g, and a clip c >= 1 clips nothing.
    """
    k = constants.constants(np.array([1.0, 5.0]), 6, 3.0, "frame", directions_per_step=6)
    for name in ("bias", "cross", "excess"):
        np.testing.assert_array_equal(getattr(k, name), 0)
    np.testing.assert_allclose(k.kept, 1)
    np.testing.assert_allclose([k.spread, *k.quadratic], 1)


def test_a_frame_has_at_most_d_directions() -> None:
    with pytest.raises(
        PreconditionError, match=r"^directions_per_step must be at most d for a frame; got 7 with d = 6$"
    ):
        constants.constants(1.0, 6, 2.0, "frame", directions_per_step=7)


def test_a_law_without_constants_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    law = DirectionLaw(
        name="dice", sample=sample_gaussian, fourth_moments=lambda d: (3.0, 1.0), table=lambda: np.array([-1.0, 1.0])
    )
    monkeypatch.setattr(DIRECTIONS, "_values", {**DIRECTIONS, "dice": law})
    with pytest.raises(PreconditionError, match=r"covers the directions sphere, .*; it has none for dice$"):
        constants.constants(1.0, 10, 2.0, "dice")
    with pytest.raises(ValueError, match=r"^direction must be one of sphere, gaussian, rademacher, dice; got 'ball'"):
        constants.constants(1.0, 10, 2.0, "ball")
