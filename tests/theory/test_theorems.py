"""Tests of the theorems and corollaries against the paper's displayed formulas in mpmath."""

import math
from typing import Any

import pytest
from mpmath import mp, mpf

from dpzero_theory.check import PreconditionError
from dpzero_theory.theory.problem import Guarantee, Prescription, Problem
from dpzero_theory.theory.results import RESULTS, calibrated_gdp
from tests import paper_oracle as paper

IDS = list(paper.STATEMENTS)
DISPLAYED = ("step_size", "T", "smoothing", "clip", "bound")
SEEDS = {id: 20_000 + i for i, id in enumerate(IDS)}
BASE: dict[str, Any] = {"n": 10_000, "d": 2000, "r": 8.178}


def prescribe(id: str, problem: Problem, gdp: float) -> Prescription:
    return RESULTS[id].prescribe(problem, gdp)


def assert_close(actual: Any, expected: Any, what: object, tolerance: float = 1e-9) -> None:
    assert abs(mpf(actual) / mpf(expected) - 1) <= tolerance, (what, actual, expected)


def neighbours(T: Any) -> list[int]:
    return sorted({max(1, int(mp.floor(T))), max(1, int(mp.ceil(T)))})


def check_against_paper(id: str, case: paper.Case, calibration: str, v: Any, numbers: paper.Numbers) -> None:
    """Requires that every number of a prescription agrees with the paper's formulas.

    The number of steps is checked by brute force over T's neighbours.

    Args:
        id: the name of the result.
        case: the problem's constants and the privacy parameters.
        calibration: how the noise is calibrated, "paper" or "exact".
        v: the number by which privacy enters the formulas.
        numbers: the paper's numbers for the case.
    """
    gdp = calibrated_gdp(case.epsilon, case.delta, calibration)
    p = prescribe(id, Problem(**case.problem()), gdp)
    assert p.id == id
    assert p.algorithm == ("dpzero" if id.endswith("-3") else "dpgd-0th")
    assert p.gdp == gdp
    assert_close(gdp, 1 / (2 * mp.sqrt(2) * v), (id, calibration, case))
    for field in DISPLAYED:
        assert_close(getattr(p, field), numbers[field], (id, field, calibration, case))
    inequality = paper.UNSUBSTITUTED[id]
    c0 = paper.largest_threshold(case, numbers["smoothing"], numbers["clip"])
    at = [mpf(numbers[field]) for field in ("step_size", "smoothing", "clip")]

    def bound(steps: int) -> Any:
        return inequality(case, v, at[0], mpf(steps), at[1], at[2], c0)

    candidates = neighbours(numbers["T"])
    assert p.steps in candidates or abs(p.steps - numbers["T"]) <= 1 + 1e-9 * numbers["T"], (id, case)
    assert bound(p.steps) <= min(bound(t) for t in candidates) * (1 + mpf(10) ** -9), (id, case, candidates)
    assert_close(p.bound_at_steps, bound(p.steps), (id, "bound_at_steps", case))
    assert_close(p.noise_std, 4 * mpf(numbers["clip"]) * mp.sqrt(2 * p.steps) * v / case.n, (id, "noise_std", case))
    assert p.evaluations == case.n * p.steps
    worse = p.bound_at_steps > 1.0005 * numbers["bound"]
    assert len(p.notes) == (numbers["T"] < 1) + worse
    trivial = mpf(case.lipschitz) ** 2 / (2 * mpf(case.pl) if id.startswith("corollary") else 1)
    assert_close(p.trivial_bound, trivial, (id, "trivial_bound", case))
    assert p.vacuous == (p.bound >= p.trivial_bound)


@pytest.mark.parametrize("id", IDS)
def test_200_random_inputs(id: str) -> None:
    for case, v, numbers in paper.admissible(id, 200, SEEDS[id]):
        check_against_paper(id, case, "paper", v, numbers)
        exact = 1 / (2 * mp.sqrt(2) * paper.exact_gdp(case.epsilon, case.delta))
        if case.epsilon < 1 and (other := paper.STATEMENTS[id](case, exact)) is not None:
            check_against_paper(id, case, "exact", exact, other)
        steps = max(1, round(float(numbers["T"])))
        p = prescribe(id, Problem(**case.problem()), calibrated_gdp(case.epsilon, case.delta, "paper"))
        sigma = paper.paper_sigma(mpf(numbers["clip"]), mpf(p.steps), case.n, case)
        assert_close(p.noise_std, sigma, (id, steps, case))


@pytest.mark.parametrize("id", IDS)
def test_applies_exactly_where_the_papers_logarithms_are_positive(id: str) -> None:
    drawn = paper.cases(SEEDS[id] + 200)
    for case in (next(drawn) for _ in range(400)):
        numbers = paper.STATEMENTS[id](case, paper.paper_v(case))
        gdp = calibrated_gdp(case.epsilon, case.delta, "paper")
        if numbers is None:
            with pytest.raises(PreconditionError):
                prescribe(id, Problem(**case.problem()), gdp)
        else:
            prescribe(id, Problem(**case.problem()), gdp)


@pytest.mark.parametrize(
    ("id", "change", "words"),
    [
        ("theorem-1", {"r": 2001.0}, ("r", "d")),
        ("corollary-1", {"pl": 2.0}, ("pl", "smoothness")),
        ("corollary-1", {"pl": None}, ("pl",)),
        ("corollary-2", {"pl": None}, ("pl",)),
        ("corollary-3", {"pl": None}, ("pl",)),
        ("corollary-1", {"pl": 0.5}, ("corollary-1", "kappa d^3")),
        ("corollary-2", {"pl": 0.5}, ("corollary-2", "kappa r d^2")),
        ("corollary-3", {"pl": 0.5, "n": 5}, ("corollary-3", "kappa r ")),
        ("corollary-3", {"pl": 0.5, "gap": 2.5}, ("gap", "loss_bound")),
        ("theorem-3", {"n": 1, "d": 1, "r": 1.0, "loss_bound": 1e-6}, ("theorem-3", "logarithm")),
    ],
)
def test_an_unmet_precondition_is_named(id: str, change: dict[str, Any], words: tuple[str, ...]) -> None:
    gdp = 1e-3 if id == "theorem-3" else 0.2
    with pytest.raises(PreconditionError) as error:
        prescribe(id, Problem(**{**BASE, **change}), gdp)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize(("id", "power"), [("corollary-1", 3), ("corollary-2", 2), ("corollary-3", 0)])
def test_a_corollary_never_prescribes_zero_steps(id: str, power: int) -> None:
    """T = 8 kappa k log X is below 1 where X = n^2/(kappa d^3 v^2) is just above 1; no step would look free."""
    problem = Problem(n=1000, d=2, r=1, pl=1.0)
    p = prescribe(id, problem, math.sqrt(1.001 * 2.0**power / 8) / problem.n)
    assert 0 < p.T < 1
    assert (p.steps, p.evaluations, p.guarantee) == (1, problem.n, Guarantee.SUBOPTIMALITY)


def test_less_than_one_step_becomes_one_with_a_note() -> None:
    """Where the theorem gives less than one step, one step is prescribed, with a note (Remark rmk:bound)."""
    problem = Problem(n=10, d=10**6, r=10)
    p = prescribe("theorem-2", problem, calibrated_gdp(0.1, 1e-6, "paper"))
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
