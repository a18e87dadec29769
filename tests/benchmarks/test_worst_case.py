"""Tests of the worst-case loss of the theory.

Its constants are compared with differences, and its reduction to two numbers with the algorithm in all dimensions.
"""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from benchmarks.problems.worst_case import WorstCase, run

LOSS = WorstCase(
    n=5,
    d=6,
    opposing=2,
    forward=0.9,
    backward=0.5,
    width=0.9,
    start=1.6,
    curved=4,
    curvature=0.7,
    saturation=0.3,
)


def test_gradients_are_the_differences_and_the_constants_hold() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        x = rng.standard_normal(6) * rng.choice([0.2, 1.0, 4.0])
        u = rng.standard_normal(6)
        rise = (LOSS.losses(x + 1e-5 * u) - LOSS.losses(x - 1e-5 * u)) / 2e-5
        np.testing.assert_allclose(rise, LOSS.gradients(x) @ u, atol=2e-5)
        np.testing.assert_allclose(LOSS.gradients(x).mean(axis=0), LOSS.gradient(x), atol=1e-14)
        assert LOSS.losses(x).mean() == pytest.approx(LOSS.loss(x), rel=1e-12)
        norms = np.linalg.norm(LOSS.gradients(x), axis=1)
        assert norms.max() <= LOSS.lipschitz
        y = x + 0.1 * u
        curved = np.linalg.norm(LOSS.gradients(y) - LOSS.gradients(x), axis=1) / np.linalg.norm(y - x)
        assert curved.max() <= LOSS.smoothness * (1 + 1e-9)
        assert LOSS.loss(x) >= 0
        # A convex loss lies above its tangents.
        assert LOSS.loss(y) >= LOSS.loss(x) + LOSS.gradient(x) @ (y - x) - 1e-12
    assert LOSS.r == pytest.approx((LOSS.slope / 0.9 + 2.8) / LOSS.smoothness)
    assert LOSS.gap(LOSS.x0) == pytest.approx(LOSS.slope * (1.6 - 0.45))
    steepest = np.zeros(6)
    steepest[0], steepest[1] = 2.0, 1e9
    assert np.linalg.norm(LOSS.gradients(steepest), axis=1).max() == pytest.approx(LOSS.lipschitz, rel=1e-6)


def _in_all_dimensions(chains: int, k: int, at: dict[str, Any], rng: np.random.Generator) -> tuple[Any, Any]:
    """Returns the mean and the last squared gradient of runs of Algorithm 2, computed in all dimensions.

    There are `chains` independent runs with K = `k` Gaussian directions in a step, in the limit of smoothing 0. `at`
    has the algorithm's parameters by name, and `rng` draws.
    """
    x, total = np.tile(LOSS.x0, (chains, 1)), np.zeros(chains)
    for _ in range(at["steps"]):
        all_gradients = np.array([LOSS.gradients(point) for point in x])
        total += np.sum(all_gradients.mean(axis=1) ** 2, axis=1)
        u = rng.standard_normal((chains, k, 6))
        s = np.einsum("ckd,cnd->cnk", u, all_gradients)
        s *= np.minimum(1, at["clip"] / np.linalg.norm(s, axis=2, keepdims=True))
        release = s.mean(axis=1) + at["noise_std"] * rng.standard_normal((chains, k))
        x = x - at["step_size"] / k * np.einsum("ck,ckd->cd", release, u)
    last = np.array([np.sum(LOSS.gradient(point) ** 2) for point in x])
    return total / at["steps"], last


@pytest.mark.parametrize("k", [1, 2, 5])
def test_two_numbers_have_the_law_of_the_algorithm(k: int) -> None:
    """The reduction to two numbers has the law of the algorithm, within 4.5 standard errors.

    Seeds, sizes and that threshold were fixed beforehand.
    """
    at = {"step_size": 0.15, "steps": 25, "clip": 0.8 * math.sqrt(k), "noise_std": 0.4}
    rng = np.random.default_rng(k)
    direct = _in_all_dimensions(400, k, at, rng)
    reduced = run(LOSS, **at, directions_per_step=k, chains=4000, rng=rng, shares=(0.5, 1.0))
    for ours, theirs in zip((reduced.mean, reduced.last), direct, strict=True):
        for power in (1, 2):
            a, b = ours**power, theirs**power
            error = math.sqrt(a.var() / len(a) + b.var() / len(b))
            assert abs(a.mean() - b.mean()) <= 4.5 * error
    np.testing.assert_allclose(reduced.suffix[1], reduced.mean, rtol=1e-12)
    assert (reduced.least[1] <= reduced.least[0]).all()
    assert (reduced.least[0] <= reduced.suffix[0]).all()
    assert (reduced.left > 0).all()
    assert (reduced.left <= 1).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [("n", 0), ("d", 4), ("opposing", -1), ("opposing", 4), ("forward", 0), ("width", math.nan), ("start", 0.5)],
)
def test_bad_arguments(name: str, value: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        dataclasses.replace(LOSS, **{name: value})
