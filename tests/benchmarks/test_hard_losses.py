"""Tests of the hardest losses of the theory: their constants, their runs, and the limits that they set."""

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.problems.any_schedule import WORST_EXPONENT, last_iterate_limit
from benchmarks.problems.hardest import hardest
from benchmarks.problems.worst_case import WorstCase, run
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import prescribe

GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)
AT: dict[str, Any] = {"step_size": 0.02, "steps": 5000, "clip": 2.0, "noise_std": 0.1}


@pytest.mark.parametrize(("k", "steps"), [(1, 10**5), (16, 10**4), (256, 10**5)])
def test_the_limit_is_below_the_certificate_and_near_it(k: int, steps: int) -> None:
    problem = Problem(n=10_000, d=2000, r=8.178, lipschitz=3.0, smoothness=0.5, gap=18.0)
    p = prescribe(problem, GDP, max_steps=steps, direction="gaussian", directions_per_step=k)
    at = {name: getattr(p, name) for name in ("step_size", "steps", "clip", "noise_std", "directions_per_step")}
    h = hardest(problem, **at)
    assert 0.75 * p.bound < h.bound < p.bound
    assert math.hypot(h.forward, h.saturation) == pytest.approx(3.0)
    assert h.backward <= h.forward
    assert h.forward / h.width <= 0.5 * (1 + 1e-12)
    assert h.slope / h.width + h.curved * h.curvature == pytest.approx(8.178 * 0.5)
    assert h.slope * (h.start - h.width / 2) == pytest.approx(18.0)
    assert h.slope == pytest.approx(h.share * h.forward - (1 - h.share) * h.backward)
    assert h.start - h.width == pytest.approx(p.step_size * steps * h.drift)
    longer = hardest(problem, **at, lengthened=3.0, coordinates=90)
    assert longer.slope < h.slope
    assert longer.curved == 90


def test_the_drift_is_the_clipped_mean_by_sampling() -> None:
    """The drift of the hardest loss is the clipped mean along its slope, by sampling.

    It is tested where ||grad psi|| is 0 or rho, within 4.5 standard errors, a threshold fixed beforehand.
    """
    h = hardest(PAPER, **{**AT, "clip": 1.2})
    y = np.random.default_rng(0).standard_normal((400_000, 2))
    for inward, sign in ((0.0, 0), (h.saturation, 1)):
        parts = [(h.share, h.forward), (1 - h.share, -h.backward)]
        sample = sum(w * y[:, 0] * np.clip(a * y[:, 0] + inward * y[:, 1], -1.2, 1.2) for w, a in parts)
        error = float(np.std(sample)) / math.sqrt(len(y))
        assert float(np.mean(sample)) <= h.drift + 4.5 * error
        if sign == 0:
            assert float(np.mean(sample)) >= h.drift - 0.02


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


def test_the_worst_exponent_solves_its_equation() -> None:
    assert math.exp(WORST_EXPONENT) == pytest.approx(1 + 2 * WORST_EXPONENT, rel=1e-14)


@pytest.mark.parametrize("d", [3, 40, 2000, 10**7])
def test_the_limit_is_the_least_over_sums_of_the_most_over_curvatures(d: int) -> None:
    problem = Problem(n=5000, d=d, r=2.5, lipschitz=3.0, smoothness=0.7, gap=1.9)
    mu, clip = 0.8, 1.3
    price = 4 * (clip * 3.0) ** 2 / (5000 * mu) ** 2
    least, rank = math.inf, min(2.5, d - 1)
    for total in np.geomspace(1, 1e9, 3000):
        coordinates = np.unique(np.geomspace(rank, d - 1, 800))
        h = rank * 0.7 / coordinates
        most = coordinates * price * np.expm1(-h * total) ** 2
        least = min(least, 1.9 / total + float(most.max()))
    assert last_iterate_limit(problem, mu, clip=clip) == pytest.approx(least, rel=0.01)
