"""Tests of the side conditions of the corollaries; their numbers are tested with those of the theorems."""

import math

import pytest

from dpzero_theory.theory.problem import Guarantee, Problem
from tests.theory.test_theorems import prescribe


@pytest.mark.parametrize(("id", "power"), [("corollary-1", 3), ("corollary-2", 2), ("corollary-3", 0)])
def test_a_corollary_never_prescribes_zero_steps(id: str, power: int) -> None:
    """A corollary never prescribes zero steps, which would look free.

    T = 8 kappa k log X is below 1 where X = n^2/(kappa d^3 v^2) is just above 1.
    """
    problem = Problem(n=1000, d=2, r=1, pl=1.0)
    v = problem.n / math.sqrt(1.001 * 2.0**power)
    p = prescribe(id, problem, 1 / (2 * math.sqrt(2) * v))
    assert 0 < p.T < 1
    assert p.steps == 1
    assert p.evaluations == problem.n
    assert p.guarantee is Guarantee.SUBOPTIMALITY
