import math
from typing import Any

import pytest

from dpzero_theory.check import PreconditionError
from dpzero_theory.theory.limits import MOST_STEPS, step_cap
from dpzero_theory.theory.problem import Problem

PROBLEM = Problem(n=1000, d=10, r=2)


@pytest.mark.parametrize(
    ("max_steps", "max_evaluations", "expected"),
    [
        (None, None, None),
        (7, None, 7),
        (None, 1000, 1),
        (None, 7999, 7),
        (7, 5999, 5),
        (3, 5999, 3),
        (None, 10**18, MOST_STEPS),
    ],
)
def test_the_smaller_cap(max_steps: int | None, max_evaluations: int | None, expected: int | None) -> None:
    assert step_cap(PROBLEM, max_steps, max_evaluations) == expected


@pytest.mark.parametrize("bad", [0, -1, 2.5, math.nan, math.inf, "3", True])
@pytest.mark.parametrize("name", ["max_steps", "max_evaluations"])
def test_bad_caps(name: str, bad: Any) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be an integer"):
        step_cap(PROBLEM, **({"max_steps": None, "max_evaluations": None} | {name: bad}))


def test_less_than_one_step() -> None:
    with pytest.raises(PreconditionError, match="max_evaluations >= n directions_per_step is required"):
        step_cap(PROBLEM, None, 999)
