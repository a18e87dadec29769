"""Tests of the inequalities of the proofs and of their minima, against mpmath and a stochastic search."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import optimize

from benchmarks.problems.minimise import SMOOTHING_SHARE, STEPS_SHARE, minimised
from dpzero_theory.check import PreconditionError
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.results import RESULTS
from dpzero_theory.theory.theorems import Inequality
from tests import paper_oracle as paper

IDS = list(paper.IDS)
PROBLEM = Problem(n=500, d=40, r=6.5, lipschitz=1.5, smoothness=2.5, gap=0.8, loss_bound=1.2, pl=0.3)


def right_side(id: str, problem: Problem, gdp: float) -> Callable[..., Any]:
    return Inequality.of(id, problem, gdp).bound


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
        Inequality.of("corollary-3", dataclasses.replace(PROBLEM, pl=None), 1.0).bound(1e-3, 10, 1e-4, 20.0)


MINIMISE_IDS = list(paper.STATEMENTS)
BOTH_SHARES = (1 + SMOOTHING_SHARE) ** 2 * (1 + STEPS_SHARE) * 1.003
"""The factor by which the smoothing lambda and the search for T may raise a minimised bound.

lambda costs one share by itself and, where C grows with it, one more through the noise; T is found to 0.1%.
"""


def both(id: str, case: paper.Case, v: Any, max_steps: int | None = None) -> tuple[Prescription, Prescription]:
    problem, gdp = Problem(**case.problem()), float(1 / (2 * mp.sqrt(2) * v))
    closed = RESULTS[id].prescribe(problem, gdp)
    return closed, minimised(Inequality.of(id, problem, gdp), closed, max_steps=max_steps)


def objective(id: str, case: paper.Case, v: float) -> Callable[[Any], float]:
    """Returns the log of the bound at lambda = 0 as a function of log(2 k ell alpha), log T and log(C/L), vectorised.

    `id` names the result, `case` has the problem's constants, and v is the number by which privacy enters the formulas.
    """
    n, d, r, L, ell, gap, B, mu = (float(x) for x in case.letters())
    k, trace = (d, d) if id.endswith("-1") else (r + 2, r)

    def value(x: Any) -> Any:
        share, T = np.exp(x[0]), np.exp(x[1])
        alpha = share / (2 * k * ell)
        clip, fail = L * d, 0.0
        if id.endswith("-3"):
            clip = L * np.exp(x[2])
            fail = 2 * math.sqrt(2 * math.pi) * n * T * np.exp(-((clip / L) ** 2) / 8)
        per_step = ell * alpha * trace * (4 * clip * v / n) ** 2 * 2 * T / 2 + (L**2 * d + 2 * B / alpha) * fail
        if id.startswith("corollary"):
            shrink = np.exp(-np.minimum(700.0, mu * alpha * (1 - share) * T))
            return np.log(shrink * gap + per_step / (mu * (1 - share)) + 2 * B * fail)
        return np.log(2 / (1 - share) * (gap / (alpha * T) + per_step))

    return value


def stochastic_minimum(id: str, case: paper.Case, v: float, most_steps: float) -> float:
    low, high = [math.log(1e-18), 0.0, math.log(0.5)], [math.log(1 - 1e-9), math.log(most_steps) + 1e-12, math.log(60)]
    free = 3 if id.endswith("-3") else 2
    bounds = optimize.Bounds(np.array(low[:free]), np.array(high[:free]))
    function = objective(id, case, v)
    rough = optimize.differential_evolution(
        function, bounds, seed=5, maxiter=120, tol=1e-10, polish=False, updating="deferred", vectorized=True
    )
    fine = optimize.minimize(
        function, rough.x, method="Nelder-Mead", bounds=bounds, options={"xatol": 1e-9, "fatol": 1e-11, "maxiter": 2000}
    )
    return math.exp(min(rough.fun, fine.fun))


def assert_is_its_own_inequality(id: str, case: paper.Case, v: Any, p: Prescription) -> None:
    alpha, T, lam, C = (mpf(x) for x in (p.step_size, p.steps, p.smoothing, p.clip))
    value = paper.UNSUBSTITUTED[id](case, v, alpha, T, lam, C, paper.largest_threshold(case, lam, C))
    assert abs(mpf(p.bound) / value - 1) < 1e-9
    assert p.bound_at_steps == p.bound
    assert p.steps == p.T
    assert p.evaluations == case.n * p.steps
    assert abs(mpf(p.noise_std) / (4 * C * mp.sqrt(2 * T) * v / case.n) - 1) < 1e-9
    assert p.vacuous == (p.bound >= p.trivial_bound)
    assert p.smoothing > 0
    if not id.endswith("-3"):
        assert p.clip >= case.lipschitz * case.d


@pytest.mark.parametrize("id", MINIMISE_IDS)
def test_no_worse_than_a_stochastic_search_by_more_than_the_stated_shares(id: str) -> None:
    for case, v, _ in paper.admissible(id, 8, 40):
        closed, best = both(id, case, v)
        assert best.bound <= BOTH_SHARES * stochastic_minimum(id, case, float(v), 1e15), case
        assert_is_its_own_inequality(id, case, v, best)
        assert best.bound <= closed.bound_at_steps * (1 + 1e-12)


@pytest.mark.parametrize("id", MINIMISE_IDS)
def test_no_worse_than_the_closed_form_with_as_many_steps(id: str) -> None:
    for case, v, _ in paper.admissible(id, 40, 42):
        closed, _ = both(id, case, v, 1)
        _, best = both(id, case, v, closed.steps)
        assert best.steps <= closed.steps
        assert best.bound <= closed.bound_at_steps * (1 + 1e-12), case
