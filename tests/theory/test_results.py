"""Tests of problems, of the list of results and of the calculator as a function."""

import dataclasses
import math
from typing import Any

import pytest
from mpmath import mp, mpf

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import Poisson
from dpzero_theory.sphere import DIRECTIONS
from dpzero_theory.theory.problem import Guarantee, Problem
from dpzero_theory.theory.results import CALIBRATIONS, RESULTS, calculate, calibrated_gdp
from tests import paper_oracle as paper

BASE: dict[str, Any] = {"n": 10_000, "d": 2000, "r": 8.178}


@pytest.mark.parametrize("name", ["n", "d", "r", "lipschitz", "smoothness", "gap", "loss_bound", "pl"])
@pytest.mark.parametrize("value", [math.nan, 0, "3", 10**400])
def test_a_problem_refuses_what_is_no_number_in_range(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be") as error:
        Problem(**{**BASE, name: value})
    assert not isinstance(error.value, PreconditionError)


def test_sample_rank_is_between_one_and_d() -> None:
    for rank in (0.5, math.nan, 0):
        with pytest.raises(ValueError, match="sample_rank"):
            Problem(n=10, d=5, r=2.0, sample_rank=rank)
    with pytest.raises(PreconditionError, match="sample_rank must be at most d"):
        Problem(n=10, d=5, r=2.0, sample_rank=6)


def test_the_noise_multiplier_is_the_noise_of_the_sum_over_the_clip() -> None:
    p = RESULTS["theorem-3"].prescribe(Problem(**BASE), 0.4)
    assert p.expected_batch == 10_000
    assert p.noise_multiplier == pytest.approx(2 * math.sqrt(p.steps) / 0.4, rel=1e-12)
    sampled = dataclasses.replace(p, batches=Poisson(0.01))
    assert sampled.expected_batch == 100
    assert sampled.noise_multiplier == pytest.approx(p.noise_multiplier / 100, rel=1e-12)


CLOSED = list(paper.STATEMENTS)
EASY = Problem(n=10**6, d=5, r=2, lipschitz=1.5, pl=0.3)


def test_results_are_the_contracts_ids() -> None:
    assert set(RESULTS) >= {*paper.STATEMENTS, "theorem-3-sharp"}
    assert [id for id, result in RESULTS.items() if result.search is None] == CLOSED


@pytest.mark.parametrize("id", RESULTS)
def test_a_prescription_says_what_it_is_for(id: str) -> None:
    result = RESULTS[id]
    p = result.prescribe(EASY, 2.0, max_steps=100)
    assert (p.id, p.guarantee, p.n) == (id, result.guarantee, EASY.n)
    assert (p.relation, p.sampling, p.sample_rate) == (Relation.REPLACE_ONE, "full", 1.0)
    assert (p.direction, p.directions_per_step) == ("sphere", 1)
    assert result.needs_pl == (p.guarantee is Guarantee.SUBOPTIMALITY)
    assert (result.search is None) == (id in CLOSED)
    trivial = EASY.lipschitz**2 if p.guarantee is Guarantee.GRADIENT else EASY.lipschitz**2 / (2 * 0.3)
    assert p.trivial_bound == pytest.approx(trivial, rel=1e-15)


@pytest.mark.parametrize("id", RESULTS)
@pytest.mark.parametrize("direction", ["gaussian", "rademacher"])
def test_only_the_sharpened_results_hold_for_other_directions(id: str, direction: str) -> None:
    if id in CLOSED or (RESULTS[id].id == "theorem-2-sharp" and not DIRECTIONS[direction].fixed_norm):
        with pytest.raises(PreconditionError, match=direction):
            RESULTS[id].prescribe(EASY, 2.0, max_steps=100, direction=direction)
    else:
        assert RESULTS[id].prescribe(EASY, 2.0, max_steps=100, direction=direction).direction == direction


@pytest.mark.parametrize("id", CLOSED)
def test_the_papers_results_are_about_central_differences(id: str) -> None:
    with pytest.raises(PreconditionError, match=f"^{id} is proved for central differences, not for forward"):
        RESULTS[id].prescribe(EASY, 2.0, difference="forward")


PAPER = Problem(n=10_000, d=2000, r=8.178)
CALCULATE_EASY = Problem(n=10**6, d=5, r=2, pl=0.5)


def test_corollaries_apply_only_with_pl() -> None:
    without, with_pl = (
        {answer.result.id for answer in calculate(problem, 2.0, 1e-6, max_steps=100)[0]}
        for problem in (PAPER, CALCULATE_EASY)
    )
    assert without == {"theorem-1", "theorem-2", "theorem-3", "theorem-3-sharp"}
    assert with_pl == {*CLOSED, "theorem-3-sharp"}


@pytest.mark.parametrize(("epsilon", "delta"), [(2.0, 1e-6), (0.1, 1e-9), (30.0, 0.1)])
def test_both_calibrations(epsilon: float, delta: float) -> None:
    claimed = mpf(epsilon) / mp.sqrt(8 * mp.log(mp.e + mpf(epsilon) / mpf(delta)))
    assert calibrated_gdp(epsilon, delta, "paper") == pytest.approx(float(claimed), rel=1e-12)
    assert calibrated_gdp(epsilon, delta, "exact") == pytest.approx(float(paper.exact_gdp(epsilon, delta)), rel=1e-10)


def test_one_answer_per_result_and_calibration_in_order() -> None:
    answers, unmet = calculate(CALCULATE_EASY, 2.0, 1e-6, results=CLOSED)
    assert [(a.result.id, a.calibration) for a in answers] == [(id, c) for id in CLOSED for c in CALIBRATIONS]
    assert not unmet
    for answer in answers:
        assert answer.prescription.gdp == calibrated_gdp(2.0, 1e-6, answer.calibration)


@pytest.mark.parametrize(("epsilon", "fails"), [(188.0, False), (190.0, True), (1000.0, True)])
def test_a_note_says_where_the_papers_lemma_fails(epsilon: float, fails: bool) -> None:
    """A note says where the paper's composition lemma fails.

    The limit at delta = 1e-6 is epsilon = 188.9; the note gives the epsilon that the noise really guarantees.
    """
    answers, _ = calculate(PAPER, epsilon, 1e-6, results=["theorem-3"])
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
    answers, unmet = calculate(Problem(**case.problem()), 2.0, 1e-6, results=CLOSED)
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
