"""The limit for the last iterate against a brute-force minimum, and what it refuses."""

import math

import numpy as np
import pytest

from benchmarks.problems.any_schedule import WORST_EXPONENT, last_iterate_limit
from dpzero_theory.check import PreconditionError
from dpzero_theory.theory.problem import Problem


def test_the_worst_exponent_solves_its_equation() -> None:
    assert math.exp(WORST_EXPONENT) == pytest.approx(1 + 2 * WORST_EXPONENT, rel=1e-14)


@pytest.mark.parametrize("d", [3, 40, 2000, 10**7])
def test_the_limit_is_the_least_over_sums_of_the_most_over_curvatures(d: int) -> None:
    problem = Problem(n=5000, d=d, r=2.5, lipschitz=3.0, smoothness=0.7, gap=1.9)
    mu, clip = 0.8, 1.3
    price = 4 * (clip * 3.0) ** 2 / (5000 * mu) ** 2
    least, rank = math.inf, min(2.5, d - 1)
    for total in np.geomspace(1, 1e9, 3000):
        coordinates = np.unique(np.geomspace(rank, d - 1, 800))
        h = rank * 0.7 / coordinates
        most = coordinates * price * np.expm1(-h * total) ** 2
        least = min(least, 1.9 / total + float(most.max()))
    assert last_iterate_limit(problem, mu, clip=clip) == pytest.approx(least, rel=0.01)


def test_what_the_limit_refuses() -> None:
    with pytest.raises(PreconditionError, match=r"^d must be at least 2"):
        last_iterate_limit(Problem(n=10, d=1, r=1), 1.0)
    with pytest.raises(PreconditionError, match=r"^lipschitz must be given"):
        last_iterate_limit(Problem(n=10, d=5, r=1, gradient_moment=(2, 1.0)), 1.0)
    with pytest.raises(ValueError, match=r"^clip must be"):
        last_iterate_limit(Problem(n=10, d=5, r=1), 1.0, clip=math.nan)
