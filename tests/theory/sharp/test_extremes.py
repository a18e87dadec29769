"""Tests of arguments at the ends of what a float holds.

The answer is a correct value, an infinite bound that is called vacuous, or one clear error.
"""

import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import certificate, prescribe
from dpzero_theory.theory.sharp.last_iterate import certify_last_iterate, prescribe_last_iterate
from dpzero_theory.theory.sharp.poisson import prescribe_poisson

ENDS = (5e-324, 1e-300, 1e-150, 1e-50, 1.0, 1e50, 1e150, 1e300, 1.7e308)
LAWS = ("sphere", "gaussian", "rademacher", "frame")
PAPER = Problem(n=10_000, d=2000, r=8.178)


def _or_one_line(function: Callable[..., Any]) -> Any:
    """Returns what the function returns, or None after an error of one line that states a rule.

    Warnings are errors in these tests.
    """
    try:
        return function()
    except ValueError as error:
        if re.fullmatch(r".* (must be|is required|raise the cap).*", str(error)) is None:
            raise
        return None


def _problem(rng: np.random.Generator) -> Problem | None:
    units = {name: float(rng.choice(ENDS)) for name in ("lipschitz", "smoothness", "gap") if rng.random() < 0.4}
    d = int(rng.choice([1, 2, 10**6, 10**18]))
    pl = units.get("smoothness", 1.0) * float(rng.choice([1, 1e-3, 1e-300]))
    rank = [None, 1.0, float(d)][int(rng.integers(3))]
    n, r = int(rng.choice([1, 10**4, 10**18])), float(rng.choice([1.0, d**0.5, d]))
    found: Problem | None = _or_one_line(lambda: Problem(n=n, d=d, r=r, sample_rank=rank, pl=pl, **units))
    return found


def _law(rng: np.random.Generator) -> dict[str, Any]:
    return {"direction": str(rng.choice(LAWS)), "directions_per_step": int(rng.choice([1, 4, 10**6]))}


def test_certificates_at_every_end() -> None:
    rng = np.random.default_rng(0)
    answered = 0
    for problem in filter(None, (_problem(rng) for _ in range(800))):
        at: dict[str, Any] = {name: float(rng.choice(ENDS)) for name in ("step_size", "clip", "smoothing", "noise_std")}
        at |= {"steps": int(rng.choice([1, 10**4, 10**15])), **_law(rng)}
        rate, ratio = float(rng.choice([5e-324, 1e-150, 1e-9, 1.0])), float(rng.choice([1.0, 1.01, 1e300]))
        found = _or_one_line(partial(certificate, problem, sample_rate=rate, **at))
        last = _or_one_line(partial(certify_last_iterate, problem, noise_ratio=ratio, **at))
        if found is not None:
            answered += 1
            assert found.bound > 0
            assert found.vacuous == (found.bound >= problem.lipschitz**2)
        assert last is None or last > 0
    assert answered > 60


def test_prescriptions_at_every_end() -> None:
    rng = np.random.default_rng(1)
    answered = 0
    for problem in filter(None, (_problem(rng) for _ in range(40))):
        gdp = float(rng.choice(ENDS))
        at = {"max_steps": [None, 1, 10**15][int(rng.integers(3))], **_law(rng)}
        for function in (
            partial(prescribe, problem, gdp, **at),
            partial(prescribe_last_iterate, problem, gdp, schedule="shrinking", **at),
            partial(prescribe_poisson, problem, gdp, lambda *_: 1.0, max_evaluations=10**9, **at),
        ):
            found = _or_one_line(function)
            for name in () if found is None else ("step_size", "clip", "smoothing", "noise_std", "bound"):
                assert 0 < getattr(found, name) < math.inf, (name, found)
            answered += found is not None
    assert answered > 10
