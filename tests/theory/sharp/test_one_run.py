"""Tests of the bounds for one run with high probability and for the last iterate under the PL inequality."""

import dataclasses
import math
from typing import cast

import numpy as np
import pytest

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Guarantee, Problem, Run
from dpzero_theory.theory.sharp.certificate import certificate, prescribe
from dpzero_theory.theory.sharp.high_probability import certify_run, step_moments
from dpzero_theory.theory.sharp.last_iterate import certify_last_iterate, prescribe_last_iterate

GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)


def _at(problem: Problem, steps: int, k: int = 1, direction: str = "sphere") -> tuple[float, Run]:
    p = prescribe(problem, GDP, max_steps=steps, direction=direction, directions_per_step=k)
    return p.bound, p.run


@pytest.mark.parametrize("direction", ["sphere", "gaussian", "rademacher", "frame"])
def test_one_run_beside_the_mean_over_runs(direction: str) -> None:
    for k, steps, most in ((1, 155_200, 1.15), (4, 38_800, 1.26), (32, 10**9, 1.04)):
        bound, at = _at(PAPER, steps, k, direction)
        runs = [certify_run(PAPER, failure=failure, **at) for failure in (0.5, 0.05, 1e-6)]
        assert bound < runs[0].bound < runs[1].bound < runs[2].bound < 1
        assert runs[1].bound < most * bound
        assert not runs[1].vacuous


def test_units() -> None:
    _, at = _at(PAPER, 50_000, 4)
    scaled = dataclasses.replace(PAPER, lipschitz=10.0, smoothness=0.2, gap=500.0)
    unit = 10 / 0.2
    units = {"step_size": 1 / 0.2, "smoothing": unit, "clip": 10, "noise_std": 10}
    moved = cast(Run, at | {name: at[name] * factor for name, factor in units.items()})  # type: ignore[literal-required]
    ours, theirs = (certify_run(p, failure=0.1, **a) for p, a in ((PAPER, at), (scaled, moved)))
    assert theirs.bound == pytest.approx(100 * ours.bound, rel=1e-9)
    assert theirs.exponent == pytest.approx(ours.exponent / 500, rel=1e-9)


def test_the_leading_terms() -> None:
    """As the step size alpha goes to 0, the bound loses against the mean's what theory says.

    It is theta alpha (sigma^2/(2 K)) G^2, and half of the corresponding term of the directions.
    """
    at = Run(step_size=1e-9, steps=10, clip=8.0, smoothing=1e-12, noise_std=0.6, direction="gaussian")
    step = step_moments(PAPER, failure=0.1, **at)
    share = 1e-4
    kept, g, lost = step.progress(PAPER, share / 1e-9)
    expected = share / 2 * (0.36 * g**2 + 2 * g**4)
    excess = lost - 8.0 * math.sqrt(step.overlong) * g
    i = int(np.searchsorted(g, 0.5))
    assert kept == pytest.approx(1, abs=1e-12)
    assert excess[i] == pytest.approx(expected[i], rel=1e-2)


PL = Problem(n=10_000, d=2000, r=8.178, pl=0.05)


@pytest.mark.parametrize("steps", [800, 20_000, None])
def test_last_iterate_is_certified_at_its_parameters(steps: int | None) -> None:
    p = prescribe_last_iterate(PL, GDP, max_steps=steps)
    assert certify_last_iterate(PL, **p.run) == p.bound
    assert p.guarantee is Guarantee.SUBOPTIMALITY
    assert not p.vacuous
    assert math.sqrt(p.steps) * 2 * p.clip / (PL.n * p.noise_std) == pytest.approx(GDP, rel=1e-12)


def test_last_iterate_recursion_by_brute_force() -> None:
    """The closed form of the last iterate's bound agrees with the recursion run step by step, for every y of a grid."""
    p = prescribe_last_iterate(PL, GDP, max_steps=900)
    at = {"clip": p.clip, "smoothing": p.smoothing, "step_size": p.step_size}
    step = certificate(PL, **at, steps=1, noise_std=0)
    constant = step.floor - PL.gap / p.step_size
    best = math.inf
    for y in np.geomspace(1e-4, 1, 400):
        rho = 1 - 2 * PL.pl * p.step_size * (step.progress - step.drift / (2 * y))
        if 0 < rho < 1:
            value = PL.gap
            noise = p.step_size / 2 * PL.r * p.noise_std**2
            for _ in range(p.steps):
                value = rho * value + p.step_size * (step.drift * y / 2 + constant + noise)
            best = min(best, value)
    assert p.bound == pytest.approx(best, rel=2e-3)


def test_last_iterate_needs_pl_and_a_contraction() -> None:
    with pytest.raises(PreconditionError, match="pl"):
        prescribe_last_iterate(PAPER, GDP)
    assert certify_last_iterate(PL, step_size=9, steps=9, clip=3, smoothing=1e-9, noise_std=0.1) == math.inf
