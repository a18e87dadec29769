"""Tests of the search for the parameters with the smallest certificate.

Its closed forms are compared with brute force, and its answers must behave as they should.
"""

import dataclasses
import math

import pytest

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import prescribe
from dpzero_theory.theory.sharp.last_iterate import prescribe_last_iterate
from dpzero_theory.theory.sharp.poisson import prescribe_poisson

GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)


def test_scales_out_of_range() -> None:
    with pytest.raises(ValueError, match="gap smoothness"):
        prescribe(Problem(n=10, d=10, r=1, lipschitz=1e-200), GDP)


@pytest.mark.parametrize("direction", ["sphere", "rademacher", "frame"])
def test_the_best_number_of_directions_by_brute_force(direction: str) -> None:
    problem = Problem(n=2000, d=30, r=4)

    def bound(k: int | str) -> float:
        return prescribe(problem, GDP, max_evaluations=2000 * 900, direction=direction, directions_per_step=k).bound

    assert bound("best") <= 1.005 * min(bound(k) for k in range(1, 31))


def test_the_best_number_for_poisson_batches_and_for_the_last_iterate() -> None:
    def by_clt(rate: float, steps: int, _: object) -> float:
        return 2 / math.sqrt(math.log1p((GDP / rate) ** 2 / steps))

    cap = 46_720 * PAPER.n
    found = prescribe_poisson(PAPER, GDP, by_clt, max_evaluations=cap, directions_per_step="best")
    assert round(found.sample_rate * PAPER.n * found.directions_per_step * found.steps) == found.evaluations <= cap
    for k in (1, 16, 1024):
        other = prescribe_poisson(PAPER, GDP, by_clt, max_evaluations=cap, directions_per_step=k)
        assert found.bound <= other.bound * 1.005
    with_pl = dataclasses.replace(PAPER, pl=0.05)
    last = prescribe_last_iterate(with_pl, GDP, schedule="shrinking", max_evaluations=cap, directions_per_step="best")
    for k in (1, 4, 256):
        other = prescribe_last_iterate(with_pl, GDP, schedule="shrinking", max_evaluations=cap, directions_per_step=k)
        assert last.bound <= other.bound * 1.01
    assert last.evaluations == PAPER.n * last.directions_per_step * last.steps <= cap


def test_an_impossible_number_of_directions_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^directions_per_step must be an integer"):
        prescribe(PAPER, GDP, directions_per_step="most")
    with pytest.raises(PreconditionError, match=r"^dpgd-0th has one direction a step; got directions_per_step = 2"):
        prescribe(PAPER, GDP, directions_per_step=2, algorithm="dpgd-0th")
    with pytest.raises(PreconditionError, match=r"^max_evaluations >= n directions_per_step is required"):
        prescribe(PAPER, GDP, directions_per_step=2, max_evaluations=PAPER.n)
