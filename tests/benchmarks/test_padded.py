"""Tests of problems of huge dimension that are computed in few coordinates.

They have the law of the same problem in all coordinates.
"""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import ks_2samp

from benchmarks.problems import padded
from dpzero_theory.synthetic import engine
from dpzero_theory.synthetic.lanes import Lanes

Array = NDArray[np.float64]
HEAD, TAIL, N, STEPS = np.array([1.0, 0.5]), 0.05, 4, 3
D = 30


def _rng(seed: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([seed, stream])


def _inner_products(drawn: padded.Drawn, ones: Array) -> list[float]:
    """Returns inner products of all kinds of pairs of directions, noise, samples and the start.

    They are in the metric of the problem. `drawn` has the problem and its random streams, and `ones` is a vector of
    ones.
    """
    u, z = drawn.directions(STEPS), drawn.noise(STEPS)
    a, x = drawn.problem.spectrum, drawn.problem.points / np.sqrt(drawn.problem.spectrum) + drawn.problem.center
    c = drawn.problem.center
    pairs = [(u[0], u[0]), (u[1], u[2]), (u[2], z[0]), (z[1], z[2]), (z[2], z[2]), (u[1], x[0]), (z[2], x[3])]
    return [float(v @ (a * w)) for v, w in [*pairs, (u[0], c), (z[1], c), (c, c), (u[2], ones), (z[0], ones)]]


def test_inner_products_have_the_same_law() -> None:
    """Computed in few or in all coordinates, inner products have the same law.

    12 inner products are compared on 4,000 draws each way by Kolmogorov-Smirnov tests; they fail by chance once in
    4,000.
    """
    found: list[list[list[float]]] = []
    for few in (True, False):
        rows = []
        for seed in range(4_000):
            where = 2 * seed + few
            # with many steps to make, all coordinates are needed
            steps = STEPS if few else D
            drawn = padded.draw(lambda stream, w=where: _rng(w, stream), HEAD, TAIL, D, N, steps)  # type: ignore[misc]
            width = drawn.problem.d
            assert (width < D) == few
            ones = np.append([1.0, 1.0, np.sqrt(D - 2)], np.zeros(width - 3)) if few else np.ones(D)
            rows.append(_inner_products(drawn, ones))
        found.append(rows)
    for one, other in zip(np.array(found[0]).T, np.array(found[1]).T, strict=True):
        assert ks_2samp(one, other).pvalue > 1e-5


def test_cost_does_not_grow_with_the_dimension() -> None:
    """At dimension 10^12 as many coordinates are computed as at 10^3, and a run ends."""
    widths = []
    for d in (10**3, 10**12):
        tail = 0.5 / d
        drawn = padded.draw(lambda stream: _rng(1, stream), HEAD, tail, d, N, STEPS)
        widths.append(drawn.problem.d)
        u = padded.draw(lambda stream: _rng(1, stream), HEAD, tail, d, N, STEPS).directions(STEPS)
        np.testing.assert_allclose(np.linalg.norm(u, axis=1), np.sqrt(d))
        lanes = Lanes.of(steps=STEPS, step_size=0.1, clip=10.0, noise_std=0.1)
        scalars = _rng(1, 3)
        sweeps = [
            engine.Sweep(np.zeros(widths[-1]), lanes, False, scalars.standard_normal),
            engine.Sweep(np.zeros(widths[-1]), lanes, True, drawn.noise),
        ]
        for outcome in engine.run_together(drawn.problem, sweeps, directions=drawn.directions):
            assert np.isfinite(outcome.gradient_squared).all()
    assert widths[0] == widths[1] == 2 + 2 + 2 * STEPS


def test_bad_input_is_one_line() -> None:
    with pytest.raises(ValueError, match="d must be an integer with 2 <= d"):
        padded.draw(lambda stream: _rng(1, stream), HEAD, TAIL, 1, N, STEPS)
    with pytest.raises(ValueError, match="tail must be"):
        padded.draw(lambda stream: _rng(1, stream), HEAD, 0.0, 5, N, STEPS)
