"""Tests that DPZero on many settings at once, on nonlinear losses, equals the line-by-line algorithm."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, random_array

from benchmarks.problems import nonlinear
from benchmarks.problems.lipschitz import LogisticRegression, PseudoHuber
from dpzero_theory.privacy.noise import SeededNoise
from dpzero_theory.sphere import DIRECTIONS
from dpzero_theory.synthetic.lanes import Lanes
from dpzero_theory.synthetic.problems import paper_spectrum
from tests.optim import reference
from tests.synthetic.small import from_array, runs

Array = NDArray[np.float64]
Problem = PseudoHuber | LogisticRegression
STEPS = 50


def problem(kind: str, n: int, d: int) -> Problem:
    rng = np.random.default_rng(n)
    if kind == "pseudo-huber":
        return PseudoHuber(1 + rng.standard_normal((n, d)), paper_spectrum("abc"[n % 3], d))
    labels = rng.choice([-1.0, 1.0], n)
    if kind == "sparse":
        return LogisticRegression(csr_array(random_array((n, d), density=0.2, rng=rng)), labels, row_norm=2.0)
    return LogisticRegression(rng.standard_normal((n, d)), labels, row_norm=30.0)


def run_lanes(
    loss: Problem,
    x0: Array,
    grid: Lanes,
    u: Array,
    evaluations: int,
    block: int,
    seed: int = 0,
    several: int = 1,
) -> nonlinear.NonlinearRuns:
    standard = SeededNoise(7)
    return nonlinear.dpzero(
        loss,
        x0,
        grid,
        directions=from_array(u),
        noise=lambda k: standard.gaussian(1.0, k),
        rng=np.random.default_rng(seed),
        directions_per_step=several,
        evaluations=evaluations,
        block=block,
    )


def random_grid(seed: int) -> Lanes:
    rng = np.random.default_rng(seed)
    return Lanes.of(
        steps=rng.integers(1, STEPS + 1, 8),
        step_size=10 ** rng.uniform(-2, 0, 8),
        clip=10 ** rng.uniform(-2, 2, 8),
        noise_std=[0, 0, 0.01, 0.01, 0.1, 0.1, 1, 1],
        smoothing=10 ** rng.uniform(-2, 0, 8),
    )


@pytest.mark.parametrize("kind", ["pseudo-huber", "dense", "sparse"])
@pytest.mark.parametrize(
    ("n", "d", "start", "block", "several"),
    [
        (1, 1, 0.0, 128, 1),
        (30, 5, 2.0, 7, 1),
        (200, 40, -1.0, 128, 1),
        (1, 1, 0.0, 128, 3),
        (30, 5, 2.0, 7, 3),
        (30, 5, 2.0, 7, 16),
        (200, 40, -1.0, 128, 4),
    ],
)
def test_lanes_equal_the_reference(
    kind: str, n: int, d: int, start: float, block: int, several: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nonlinear, "CHUNK", 256)
    loss = problem(kind, n, d)
    grid, x0 = random_grid(d), np.full(d, start)
    u = DIRECTIONS["sphere"].sample(np.random.default_rng(1), STEPS * several, d)
    outcome = run_lanes(loss, x0, grid, u, STEPS, block, several=several)
    for lane, run in enumerate(runs(reference.dpzero, x0, grid, u, problem=loss, directions_per_step=several)):
        np.testing.assert_allclose(outcome.last[lane], run[-1], rtol=1e-9, atol=1e-9)
        squares = [np.square(loss.gradients(x).mean(axis=0)).sum() for x in run]
        np.testing.assert_allclose(outcome.gradient_squared[lane], np.mean(squares[:-1]), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(outcome.last_gradient_squared[lane], squares[-1], rtol=1e-9, atol=1e-12)


def test_few_evaluations_estimate_the_mean_without_bias() -> None:
    """A mean over a random part of the iterates is an unbiased estimate of the mean over all of them.

    60 independent picks of 30 of 50 iterates are within 4 standard errors of it, which are small.
    """
    loss = problem("pseudo-huber", 50, 10)
    grid = Lanes.of(steps=STEPS, step_size=0.1, clip=2.0, noise_std=0.01, smoothing=0.01)
    u = DIRECTIONS["sphere"].sample(np.random.default_rng(1), STEPS, 10)
    exact = run_lanes(loss, np.zeros(10), grid, u, STEPS, 128).gradient_squared[0]
    estimates = []
    for seed in range(60):
        outcome = run_lanes(loss, np.zeros(10), grid, u, 30, 128, seed)
        estimates.append(outcome.gradient_squared[0])
    error = np.std(estimates, ddof=1) / np.sqrt(len(estimates))
    assert 0 < error < 0.01 * exact
    assert abs(np.mean(estimates) - exact) < 4 * error


@pytest.mark.parametrize("kind", ["pseudo-huber", "dense"])
def test_float32_changes_measurements_by_less_than_1e_4(kind: str) -> None:
    """Measurements in float32 differ from those in float64 by less than 1e-4, at smoothings as small as prescribed.

    A plain difference of float32 losses would be 0 there.
    """
    loss = problem(kind, 2000, 20)
    grid = Lanes.of(steps=500, step_size=[0.02, 0.05], clip=[10.0, 2.0], noise_std=0.1, smoothing=[1e-8, 1e-5])
    found = []
    for dtype in (torch.float64, torch.float32):
        directions, noise = np.random.default_rng(1), np.random.default_rng(2)
        outcome = nonlinear.dpzero(
            loss,
            np.zeros(20),
            grid,
            directions=lambda k, rng=directions: DIRECTIONS["sphere"].sample(rng, k, 20),  # type: ignore[misc]
            noise=noise.standard_normal,
            rng=np.random.default_rng(3),
            dtype=dtype,
        )
        found.append(np.stack([outcome.gradient_squared, outcome.last_gradient_squared]))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)
    assert (found[1] != found[0]).any()


def test_evaluations_weigh_every_iterate_once() -> None:
    for steps, evaluations in ((1, 5), (7, 7), (100, 9), (38_739, 128), (10**6, 2)):
        weights = nonlinear._early(np.random.default_rng(0), steps, evaluations)
        assert sum(weights.values()) == pytest.approx(1)
        assert 0 <= min(weights) <= max(weights) < steps
        assert len(weights) <= evaluations + 1
