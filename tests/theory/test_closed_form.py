"""Tests of what all results share: at least one step, and a refusal of what leaves the range of float64."""

import math
from typing import Any

import pytest

from dpzero_theory.check import PreconditionError
from dpzero_theory.theory.calculate import calibrated_gdp
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.theorems import theorem_2
from tests.theory.test_theorems import DISPLAYED, IDS, prescribe

BASE: dict[str, Any] = {"n": 10_000, "d": 2000, "r": 8.178}


def test_less_than_one_step_becomes_one_with_a_note() -> None:
    """Where the theorem gives less than one step, one step is prescribed, with a note (Remark rmk:bound)."""
    problem = Problem(n=10, d=10**6, r=10)
    p = theorem_2(problem, calibrated_gdp(0.1, 1e-6, "paper"))
    assert p.T < 1
    assert p.steps == 1
    assert p.evaluations == 10
    assert p.noise_std == pytest.approx(2 * p.clip / (10 * p.gdp), rel=1e-12)
    assert any("below 1" in note for note in p.notes)
    assert p.vacuous
    assert p.bound_at_steps > p.bound


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("field", ["lipschitz", "smoothness", "gap", "loss_bound"])
@pytest.mark.parametrize("value", [1e-300, 1e300])
def test_results_beyond_float_range_are_refused_not_returned(id: str, field: str, value: float) -> None:
    problem = Problem(**{**BASE, "n": 10**15, "d": 3, "r": 2.0, field: value, "pl": min(1e-3, value)})
    try:
        p = prescribe(id, problem, 0.4)
    except PreconditionError:
        return
    for name in (*DISPLAYED, "noise_std"):
        assert 0 < getattr(p, name) < math.inf


@pytest.mark.parametrize("id", IDS)
@pytest.mark.parametrize("gdp", [math.nan, 0.0, "1"])
def test_bad_gdp_is_refused(id: str, gdp: Any) -> None:
    with pytest.raises(ValueError, match="gdp must be"):
        prescribe(id, Problem(**BASE, pl=0.5), gdp)
