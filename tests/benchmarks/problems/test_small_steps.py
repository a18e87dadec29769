"""Tests of the limit of many small steps of the algorithms on the quadratic.

It is compared with runs of many steps and, where nothing is clipped, with the exact solution.
"""

from typing import Any

import numpy as np

from benchmarks.problems.small_steps import many_small_steps
from dpzero_theory.synthetic import engine
from dpzero_theory.synthetic.lanes import Lanes
from tests.synthetic.small import quadratic

D = 8


def test_the_engine_goes_there() -> None:
    """Runs of 4,000 steps without noise are within five standard errors and 1% of the limit of many small steps.

    That holds for clips at which all samples are clipped, and at which few are.
    """
    problem, x0, time, clip = quadratic(1, 40, D, "b"), np.full(D, 3.0), 12.0, np.array([0.1, 1.0, 4.0])
    nothing: dict[str, Any] = {"noise": np.zeros(3), "normals": lambda count: np.zeros((count, D))}
    limit = many_small_steps(problem, x0, time=np.full(3, time), clip=clip, **nothing)
    grid = Lanes.of(steps=4_000, step_size=time / 4_000, clip=clip, noise_std=0.0)
    rng = np.random.default_rng(2)
    runs = [
        engine.dpzero(problem, x0, grid, directions=lambda count: rng.standard_normal((count, D)), noise=np.zeros)
        for _ in range(6)
    ]
    found = np.array([run.gradient_squared[0] for run in runs])
    error = found.std(axis=0, ddof=1) / np.sqrt(len(runs))
    assert (error < 0.02 * limit.gradient_squared).all()
    assert (abs(found.mean(axis=0) - limit.gradient_squared) < 5 * error + 0.01 * limit.gradient_squared).all()


def test_without_clipping_it_is_an_ornstein_uhlenbeck_process() -> None:
    """Without clipping the limit is an Ornstein-Uhlenbeck process.

    Means over 400 random streams are within five standard errors of its closed form.
    """
    problem, x0, s, noise = quadratic(2, 5, 3, "c"), np.array([2.0, -1.0, 0.5]), 6.0, 0.8
    rng = np.random.default_rng(3)
    runs = [
        many_small_steps(
            problem, x0, time=np.array([s]), clip=np.array([1e4]), noise=np.array([noise]), pieces=12,
            normals=lambda k: rng.standard_normal((k, 3)),
        )
        for _ in range(400)
    ]  # fmt: skip
    rate, away, a = noise**2 / s, x0 - problem.center, problem.spectrum
    decay = np.exp(-2 * a * s)
    last = (np.square(a * away) * decay + rate * a * (1 - decay) / 2).sum()
    mean = (np.square(a * away) * (1 - decay) / (2 * a * s) + rate * a / 2 * (1 - (1 - decay) / (2 * a * s))).sum()
    for found, expected in (
        ([run.gradient_squared[0] for run in runs], mean),
        ([np.square(problem.gradient(run.last[0])).sum() for run in runs], last),
    ):
        error = np.std(found, ddof=1) / np.sqrt(len(found))
        assert error < 0.05 * expected
        assert abs(np.mean(found) - expected) < 5 * error


def test_pieces_converge() -> None:
    """Dividing the time into four times as many pieces changes the means over time by less than 1%."""
    problem, x0 = quadratic(4, 60, 20, "c"), np.zeros(20)
    found = [
        many_small_steps(
            problem, x0, time=np.array([5.0, 50.0, 500.0]), clip=np.array([3.0, 0.3, 0.1]), noise=np.zeros(3),
            normals=lambda k: np.zeros((k, 20)), pieces=pieces,
        ).gradient_squared
        for pieces in (128, 512)
    ]  # fmt: skip
    np.testing.assert_allclose(found[0], found[1], rtol=0.01)
