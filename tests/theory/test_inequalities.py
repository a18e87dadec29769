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
from dpzero_theory.theory.inequalities import Inequality
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


def test_last_iterate_needs_pl() -> None:
    with pytest.raises(PreconditionError, match="pl must be given"):
        inequalities.dpzero(dataclasses.replace(PROBLEM, pl=None), 1.0).last_iterate(1e-3, 10, 1e-4, 20.0)
