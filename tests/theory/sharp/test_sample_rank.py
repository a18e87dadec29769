"""The smoothing's cost under a root mean square over samples, against moments by exact Gauss-Hermite quadrature."""

import itertools
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from dpzero_theory.check import PreconditionError
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.constants import constants

Array = NDArray[np.float64]


def _directions(d: int, law: str) -> tuple[Array, Array]:
    """Points and weights that integrate polynomials of degree 7 in u exactly: 4 Gauss-Hermite nodes an axis.

    On the sphere a homogeneous polynomial of degree 2 k has the Gaussian moment over E|z|^(2k)/d^k, see `_moment`.
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


@pytest.mark.parametrize("law", ["sphere", "gaussian", "rademacher"])
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
        k = constants(1.0, d, r, law, rank)
        curved, forms = squares @ whole, squares @ sizes.T
        single = np.mean([_moment(forms[:, i] ** 2 * curved, mass, 6, d, law) for i in range(6)])
        mean = forms.mean(axis=1)
        if rank < d / 2:  # above it the other form of smooth_first, nu d, may be the smaller
            assert _moment(mean**2, mass, 4, d, law) <= k.smooth_first**2 * (1 + 1e-12)
        assert _moment(mean**2 * curved, mass, 6, d, law) <= k.smooth_second**2 * (1 + 1e-12)
        assert single <= k.smooth_second**2 * (1 + 1e-12)
        tightest = max(tightest, single / k.smooth_second**2)
    assert tightest > 0.4
    mean_only = constants(1.0, d, float(d), law, d / 2)  # half the samples have the identity, half nothing
    exact = _moment(squares.sum(axis=1) ** 3, mass, 6, d, law) / 2
    assert exact > mean_only.smooth_second**2 or law == "rademacher"


def test_sample_rank_is_between_one_and_d() -> None:
    for rank in (0.5, math.nan, 0):
        with pytest.raises(ValueError, match="sample_rank"):
            Problem(n=10, d=5, r=2.0, sample_rank=rank)
    with pytest.raises(PreconditionError, match="sample_rank must be at most d"):
        Problem(n=10, d=5, r=2.0, sample_rank=6)
