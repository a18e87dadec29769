"""Tests of the bound that holds for one run with high probability.

They test its scaling, its order, its limits, the pieces of its proof, and what is refused.
"""

import dataclasses
import math

import numpy as np
import pytest

from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import prescribe
from dpzero_theory.theory.sharp.high_probability import RunParameters, certify_run, step_of

GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)


def _at(problem: Problem, steps: int, k: int = 1, direction: str = "sphere") -> tuple[float, RunParameters]:
    p = prescribe(problem, GDP, max_steps=steps, direction=direction, directions_per_step=k)
    return p.bound, RunParameters.of(p)


@pytest.mark.parametrize("direction", ["sphere", "gaussian", "rademacher", "frame"])
def test_one_run_beside_the_mean_over_runs(direction: str) -> None:
    for k, steps, most in ((1, 155_200, 1.15), (4, 38_800, 1.26), (32, 10**9, 1.04)):
        bound, at = _at(PAPER, steps, k, direction)
        runs = [certify_run(PAPER, at, failure=failure) for failure in (0.5, 0.05, 1e-6)]
        assert bound < runs[0].bound < runs[1].bound < runs[2].bound < 1
        assert runs[1].bound < most * bound
        assert not runs[1].vacuous


def test_units() -> None:
    _, at = _at(PAPER, 50_000, 4)
    scaled = dataclasses.replace(PAPER, lipschitz=10.0, smoothness=0.2, gap=500.0)
    unit = 10 / 0.2
    moved = dataclasses.replace(
        at,
        step_size=at.step_size / 0.2,
        smoothing=at.smoothing * unit,
        clip=10 * at.clip,
        noise_std=10 * at.noise_std,
    )
    ours, theirs = (certify_run(p, a, failure=0.1) for p, a in ((PAPER, at), (scaled, moved)))
    assert theirs.bound == pytest.approx(100 * ours.bound, rel=1e-9)
    assert theirs.exponent == pytest.approx(ours.exponent / 500, rel=1e-9)


def test_the_leading_terms() -> None:
    """As the step size alpha goes to 0, the bound loses against the mean's what theory says.

    It is theta alpha (sigma^2/(2 K)) G^2, and half of the corresponding term of the directions.
    """
    at = RunParameters(step_size=1e-9, steps=10, clip=8.0, smoothing=1e-12, noise_std=0.6, direction="gaussian")
    step = step_of(PAPER, at, failure=0.1)
    share = 1e-4
    kept, g, lost = step.progress(PAPER, share / 1e-9)
    expected = share / 2 * (0.36 * g**2 + 2 * g**4)
    excess = lost - 8.0 * math.sqrt(step.overlong) * g
    i = int(np.searchsorted(g, 0.5))
    assert kept == pytest.approx(1, abs=1e-12)
    assert excess[i] == pytest.approx(expected[i], rel=1e-2)


@pytest.mark.parametrize("value", [0, 1, -0.1, math.nan, "0.1", None])
def test_bad_failure(value: object) -> None:
    _, at = _at(PAPER, 100)
    with pytest.raises(ValueError, match="failure must be"):
        certify_run(PAPER, at, failure=value)  # type: ignore[arg-type]
