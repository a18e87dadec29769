"""Tests of the inequalities of the proofs before parameters are plugged in.

They are compared with mpmath at any parameters, and with the recursions that they resolve.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf

from dpzero_theory.check import PreconditionError
from dpzero_theory.theory import inequalities
from dpzero_theory.theory.inequalities import Inequality, clipping_probability
from dpzero_theory.theory.problem import Problem
from tests import paper_oracle as paper

PROOFS: dict[str, Callable[[Problem, float], Inequality]] = {
    "theorem-1": inequalities.dpgd_0th,
    "theorem-2": inequalities.dpgd_0th_rank,
    "theorem-3": inequalities.dpzero,
    "corollary-1": inequalities.dpgd_0th,
    "corollary-2": inequalities.dpgd_0th_rank,
    "corollary-3": inequalities.dpzero,
}
IDS = list(PROOFS)
PROBLEM = Problem(n=500, d=40, r=6.5, lipschitz=1.5, smoothness=2.5, gap=0.8, loss_bound=1.2, pl=0.3)
CASE = paper.Case(500, 40, 6.5, 1.5, 2.5, 0.8, 1.2, 0.3, 1.0, 1e-3)


def right_side(id: str, problem: Problem, gdp: float) -> Callable[..., Any]:
    inequality = PROOFS[id](problem, gdp)
    return inequality.last_iterate if id.startswith("corollary") else inequality.gradient


def growth(id: str, problem: Problem) -> float:
    return problem.d if id.endswith("-1") else problem.r + 2


@pytest.mark.parametrize("id", IDS)
def test_at_random_parameters(id: str) -> None:
    """At random parameters the inequalities agree with mpmath to 1e-9.

    Step sizes are from the whole admissible range, and T, lambda, C and C_0 are arbitrary.
    """
    rng = np.random.default_rng(31)
    finite = 0
    for case, v, _ in paper.admissible(id, 100, 900):
        problem = Problem(**case.problem())
        gdp = float(1 / (2 * mp.sqrt(2) * v))
        alpha = rng.uniform(1e-6, 0.999) / (2 * growth(id, problem) * problem.smoothness)
        T = 10 ** rng.uniform(-1, 9)
        C = problem.lipschitz * (problem.d * 10 ** rng.uniform(0, 1) if not id.endswith("-3") else rng.uniform(1, 50))
        lam = rng.uniform(0, 0.5) * C / (problem.smoothness * problem.d)
        c0 = rng.uniform(0.2, 1) * (C - problem.smoothness * lam * problem.d / 2)
        arguments = [mpf(float(x)) for x in (alpha, T, lam, C, c0)]
        expected = paper.UNSUBSTITUTED[id](case, v, *arguments)
        if expected < mpf("1e300"):
            actual = float(right_side(id, problem, gdp)(alpha, T, lam, C, c0))
            assert abs(mpf(actual) / expected - 1) < 1e-9, (id, case)
            default = float(right_side(id, problem, gdp)(alpha, T, lam, C))
            arguments[4] = paper.largest_threshold(case, arguments[2], arguments[3])
            assert abs(mpf(default) / paper.UNSUBSTITUTED[id](case, v, *arguments) - 1) < 1e-9, (id, case)
            finite += 1
    assert finite >= 95


@pytest.mark.parametrize("id", [id for id in IDS if id.startswith("corollary")])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_last_iterate_bounds_the_recursion_stepped_by_hand(id: str, share: float) -> None:
    """The bound on the last iterate is above the recursion made step by step, and close to it.

    The recursion is e_{t+1} = (1 - mu alpha (1 - 2 k ell alpha)) e_t + alpha c, made T times.
    """
    p, gdp, T = PROBLEM, 3.0, 400
    k, trace = (p.d, p.d) if id == "corollary-1" else (p.r + 2, p.r)
    alpha = share / (2 * k * p.smoothness)
    clip = p.lipschitz * p.d if not id.endswith("-3") else 15 * p.lipschitz
    smoothing = 1e-3
    sigma = math.sqrt(T) * 2 * clip / (p.n * gdp)
    fail = 0.0
    if id.endswith("-3"):
        c0 = clip - p.smoothness * smoothing * p.d / 2
        fail = 2 * math.sqrt(2 * math.pi) * p.n * T * math.exp(-(c0**2) / (8 * p.lipschitz**2))
    assert p.pl is not None
    rho = p.pl * alpha * (1 - 2 * k * p.smoothness * alpha)
    smooth = p.smoothness**2 * alpha * smoothing**2 * p.d**2 * (p.d + 2 * trace * p.smoothness * alpha) / 8
    noise = p.smoothness * alpha**2 * trace * sigma**2 / 2
    error = p.gap
    for _ in range(T):
        error = (1 - rho) * error + smooth + noise + (p.lipschitz**2 * p.d * alpha + 2 * p.loss_bound) * fail
    error += 2 * p.loss_bound * fail
    value = float(right_side(id, p, gdp)(alpha, T, smoothing, clip))
    # The proofs round 1 + 2 s ell alpha/d up to 2, extend the geometric sum to infinity, and use 1 - rho <= e^-rho.
    stationary = (smooth + noise + (p.lipschitz**2 * p.d * alpha + 2 * p.loss_bound) * fail) / rho
    assert error <= value <= math.exp(-rho * T) * p.gap + 2 * stationary + 2 * p.loss_bound * fail


@pytest.mark.parametrize("id", IDS)
def test_increases_with_every_error_and_falls_with_the_privacy_parameter(id: str) -> None:
    p = PROBLEM
    alpha = 0.4 / (2 * growth(id, p) * p.smoothness)
    clip = p.lipschitz * p.d if not id.endswith("-3") else 14 * p.lipschitz

    def at(problem: Problem = p, gdp: float = 2.0, smoothing: float = 1e-3) -> float:
        return float(right_side(id, problem, gdp)(alpha, 100, smoothing, clip))

    base = at()
    assert at(gdp=2.5) < base < at(gdp=1.5)
    assert at(smoothing=0.0) < base < at(smoothing=2e-3)
    assert at(dataclasses.replace(p, gap=0.7)) < base
    assert at(dataclasses.replace(p, n=600)) < base
    if id.endswith("-3"):
        assert at(dataclasses.replace(p, loss_bound=2.0)) > base
    if not id.endswith("-1"):
        assert at(dataclasses.replace(p, r=5.0)) < base


@pytest.mark.parametrize("id", IDS)
def test_inadmissible_parameters_are_infinite(id: str) -> None:
    p = PROBLEM
    bound = right_side(id, p, 2.0)
    limit = 1 / (2 * growth(id, p) * p.smoothness)
    clip = p.lipschitz * p.d if not id.endswith("-3") else 14 * p.lipschitz
    assert math.isfinite(bound(0.5 * limit, 10, 1e-4, clip))
    for alpha in (limit, 1.5 * limit, 0.0, -limit):
        assert bound(alpha, 10, 1e-4, clip) == math.inf
    if id.endswith("-3"):
        largest = clip - p.smoothness * 1e-4 * p.d / 2
        assert math.isfinite(bound(0.5 * limit, 10, 1e-4, clip, largest))
        assert bound(0.5 * limit, 10, 1e-4, clip, largest * (1 + 1e-9)) == math.inf
        assert bound(0.5 * limit, 10, 1e-4, clip, 0.0) == math.inf
        assert bound(0.5 * limit, 10, 3 * clip / (p.smoothness * p.d), clip) == math.inf
    else:
        assert bound(0.5 * limit, 10, 1e-4, clip * (1 - 1e-9)) == math.inf


@pytest.mark.parametrize("id", IDS)
def test_arrays_broadcast(id: str) -> None:
    bound = right_side(id, PROBLEM, 2.0)
    alphas = np.array([1e-4, 1e-3])[:, None]
    steps = np.array([1.0, 20.0, 300.0])
    clip = 20.0 if id.endswith("-3") else 100.0
    grid = bound(alphas, steps, 1e-4, clip)
    assert grid.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            assert grid[i, j] == pytest.approx(float(bound(alphas[i, 0], steps[j], 1e-4, clip)), rel=1e-14)


def test_last_iterate_needs_pl() -> None:
    with pytest.raises(PreconditionError, match="pl must be given"):
        inequalities.dpzero(dataclasses.replace(PROBLEM, pl=None), 1.0).last_iterate(1e-3, 10, 1e-4, 20.0)


def test_clipping_probability_is_the_papers_union_bound() -> None:
    problem = Problem(n=4, d=3, r=2, lipschitz=2.0)
    for threshold in (0.5, 3.0, 40.0):
        exact = 2 * mp.sqrt(2 * mp.pi) * 4 * 3 * mp.exp(-(mpf(threshold) ** 2) / (8 * 4))
        assert float(clipping_probability(problem, 3, threshold)) == pytest.approx(float(exact), rel=1e-12)
