"""Tests of what a problem refuses, and of what a prescription says of itself."""

import dataclasses
import math
from typing import Any

import pytest

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.sampling import Poisson
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.theorems import theorem_3

BASE: dict[str, Any] = {"n": 10_000, "d": 2000, "r": 8.178}


@pytest.mark.parametrize("name", ["n", "d", "r", "lipschitz", "smoothness", "gap", "loss_bound", "pl"])
@pytest.mark.parametrize("value", [math.nan, 0, "3", 10**400])
def test_a_problem_refuses_what_is_no_number_in_range(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be") as error:
        Problem(**{**BASE, name: value})
    assert not isinstance(error.value, PreconditionError)


def test_a_rank_below_one_and_a_fractional_count_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^r must be .*1 <= r"):
        Problem(n=10, d=10, r=0.999)
    with pytest.raises(ValueError, match=r"^n must be an integer"):
        Problem(n=10.5, d=10, r=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^d must be an integer"):
        Problem(n=10, d=2.5, r=1)  # type: ignore[arg-type]


def test_vacuous_means_at_least_lipschitz_squared() -> None:
    """A bound is called vacuous if it is at least L^2, since it is the minimum with L^2 (Remark rmk:bound)."""
    for lipschitz, n in ((3.0, 10**4), (3.0, 10**6), (0.5, 10**5)):
        p = theorem_3(Problem(n=n, d=50, r=5, lipschitz=lipschitz, gap=1.0), 0.4)
        assert p.vacuous == (p.bound >= lipschitz**2)
        assert p.trivial_bound == lipschitz**2


def test_sample_rank_is_between_one_and_d() -> None:
    for rank in (0.5, math.nan, 0):
        with pytest.raises(ValueError, match="sample_rank"):
            Problem(n=10, d=5, r=2.0, sample_rank=rank)
    with pytest.raises(PreconditionError, match="sample_rank must be at most d"):
        Problem(n=10, d=5, r=2.0, sample_rank=6)


def test_the_noise_multiplier_is_the_noise_of_the_sum_over_the_clip() -> None:
    p = theorem_3(Problem(**BASE), 0.4)
    assert p.expected_batch == 10_000
    assert p.noise_multiplier == pytest.approx(2 * math.sqrt(p.steps) / 0.4, rel=1e-12)
    sampled = dataclasses.replace(p, batches=Poisson(0.01))
    assert sampled.expected_batch == 100
    assert sampled.noise_multiplier == pytest.approx(p.noise_multiplier / 100, rel=1e-12)
