"""Tests of the calculator as a function: calibrations, notes, and results that do not apply."""

import math
from typing import Any

import pytest
from mpmath import mp, mpf

from dpzero_theory.check import PreconditionError
from dpzero_theory.theory.calculate import CALIBRATIONS, applicable, calculate, calibrated_gdp
from dpzero_theory.theory.problem import Problem
from tests import paper_oracle as paper

PAPER = Problem(n=10_000, d=2000, r=8.178)
EASY = Problem(n=10**6, d=5, r=2, pl=0.5)
CLOSED = list(paper.STATEMENTS)


def test_corollaries_apply_only_with_pl() -> None:
    assert {"theorem-1", "theorem-2", "theorem-3", "theorem-3-sharp"} <= set(applicable(PAPER))
    assert not any(id.startswith("corollary") for id in applicable(PAPER))
    assert set(applicable(EASY)) >= {*CLOSED, "theorem-3-sharp"}


@pytest.mark.parametrize(("epsilon", "delta"), [(2.0, 1e-6), (0.1, 1e-9), (30.0, 0.1)])
def test_both_calibrations(epsilon: float, delta: float) -> None:
    claimed = mpf(epsilon) / mp.sqrt(8 * mp.log(mp.e + mpf(epsilon) / mpf(delta)))
    assert calibrated_gdp(epsilon, delta, "paper") == pytest.approx(float(claimed), rel=1e-12)
    assert calibrated_gdp(epsilon, delta, "exact") == pytest.approx(float(paper.exact_gdp(epsilon, delta)), rel=1e-10)


def test_one_answer_per_result_and_calibration_in_order() -> None:
    answers, unmet = calculate(EASY, 2.0, 1e-6, results=CLOSED)
    assert [(a.result.id, a.calibration) for a in answers] == [(id, c) for id in CLOSED for c in CALIBRATIONS]
    assert not unmet
    for answer in answers:
        assert answer.best is not None
        assert answer.best.bound <= answer.prescription.bound_at_steps
        assert answer.prescription.gdp == answer.best.gdp == calibrated_gdp(2.0, 1e-6, answer.calibration)


def test_the_exact_calibration_is_better_while_the_lemma_holds() -> None:
    for id in CLOSED:
        answers, _ = calculate(EASY, 2.0, 1e-6, results=[id], minimise=False)
        by = {answer.calibration: answer.prescription.bound for answer in answers}
        assert by["exact"] < by["paper"]
        assert all(answer.best is None for answer in answers)


@pytest.mark.parametrize(("epsilon", "fails"), [(188.0, False), (190.0, True), (1000.0, True)])
def test_a_note_says_where_the_papers_lemma_fails(epsilon: float, fails: bool) -> None:
    """A note says where the paper's composition lemma fails.

    The limit at delta = 1e-6 is epsilon = 188.9; the note gives the epsilon that the noise really guarantees.
    """
    answers, _ = calculate(PAPER, epsilon, 1e-6, results=["theorem-3"], minimise=False)
    by = {answer.calibration: answer for answer in answers}
    notes = " ".join(by["paper"].notes)
    assert ("composition lemma fails" in notes) == fails
    assert "lemma" not in " ".join(by["exact"].notes)
    gdp = mpf(by["paper"].prescription.gdp)
    true = paper.bisect(lambda e: paper.gaussian_delta(e, gdp) > mpf("1e-6"), 1, 10**5, digits=12)
    assert (true > epsilon) == fails
    assert f"{float(true):.6g}" in notes or f"{float(true):.4g}" in notes


def test_what_does_not_apply_is_returned_with_its_reason() -> None:
    """A result that does not apply is returned with the reason.

    Here Corollary 1 never applies, and Corollary 2 only with the exact calibration.
    """
    case = paper.Case(10_000, 2000, 8.178, 1.0, 1.0, 1.0, 1.0, 0.5, 2.0, 1e-6)
    v = {"paper": paper.paper_v(case), "exact": 1 / (2 * mp.sqrt(2) * paper.exact_gdp(2.0, 1e-6))}
    expected = {(id, c) for id in paper.STATEMENTS for c in CALIBRATIONS if paper.STATEMENTS[id](case, v[c]) is None}
    assert expected == {("corollary-1", "paper"), ("corollary-1", "exact"), ("corollary-2", "paper")}
    answers, unmet = calculate(Problem(**case.problem()), 2.0, 1e-6, results=CLOSED, minimise=False)
    assert {(item.result.id, item.calibration) for item in unmet} == expected
    assert all("n^2 epsilon^2 > kappa" in item.reason for item in unmet)
    assert len(answers) + len(unmet) == len(CLOSED) * 2


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"epsilon": value}, "epsilon")
        for value in (0.0, math.nan, "2", 10**400)
    ]
    + [({"delta": value}, "delta") for value in (0.0, 1.0, math.nan, True)]
    + [
        ({"results": ["theorem-4"]}, "result"),
        ({"calibrations": ["rough"]}, "calibration"),
        ({"max_steps": 0}, "max_steps"),
        ({"max_steps": 2.5}, "max_steps"),
        ({"max_steps": math.nan}, "max_steps"),
    ],
)  # fmt: skip
def test_bad_input_names_the_argument(change: dict[str, Any], name: str) -> None:
    arguments: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, **change}
    epsilon, delta = arguments.pop("epsilon"), arguments.pop("delta")
    with pytest.raises(ValueError, match=f"^{name} must be") as error:
        calculate(PAPER, epsilon, delta, **arguments)
    assert not isinstance(error.value, PreconditionError)
