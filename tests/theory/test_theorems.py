"""Tests of Theorems 1-3 and Corollaries 1-3 against the paper's displayed formulas in mpmath."""

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpzero_theory.check import PreconditionError
from dpzero_theory.theory.calculate import calibrated_gdp
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.results import RESULTS
from tests import paper_oracle as paper

IDS = list(paper.STATEMENTS)
DISPLAYED = ("step_size", "T", "smoothing", "clip", "bound")
SEEDS = {id: 20_000 + i for i, id in enumerate(IDS)}
BASE: dict[str, Any] = {"n": 10_000, "d": 2000, "r": 8.178}


def prescribe(id: str, problem: Problem, gdp: float) -> Prescription:
    closed_form = RESULTS[id].closed_form
    assert closed_form is not None
    return closed_form(problem, gdp)


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
    assert bool(p.notes) == (numbers["T"] < 1)
    trivial = mpf(case.lipschitz) ** 2 / (2 * mpf(case.pl) if id.startswith("corollary") else 1)
    assert_close(p.trivial_bound, trivial, (id, "trivial_bound", case))
    assert p.vacuous == (p.bound >= p.trivial_bound)


@pytest.mark.parametrize("id", IDS)
def test_200_random_inputs_with_the_papers_calibration(id: str) -> None:
    for case, v, numbers in paper.admissible(id, 200, SEEDS[id]):
        check_against_paper(id, case, "paper", v, numbers)
        steps = max(1, round(float(numbers["T"])))
        p = prescribe(id, Problem(**case.problem()), calibrated_gdp(case.epsilon, case.delta, "paper"))
        sigma = paper.paper_sigma(mpf(numbers["clip"]), mpf(p.steps), case.n, case)
        assert_close(p.noise_std, sigma, (id, steps, case))


@pytest.mark.parametrize("id", IDS)
def test_random_inputs_with_the_exact_calibration(id: str) -> None:
    """With the exact calibration the formulas are those of the test before, and one number that enters them differs."""
    checked = 0
    for case, _, _ in paper.admissible(id, 60, SEEDS[id] + 100):
        v = 1 / (2 * mp.sqrt(2) * paper.exact_gdp(case.epsilon, case.delta))
        numbers = paper.STATEMENTS[id](case, v)
        if numbers is not None:
            check_against_paper(id, case, "exact", v, numbers)
            checked += 1
    assert checked >= 55


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


@pytest.mark.parametrize("id", IDS)
def test_displayed_bound_is_the_unsubstituted_inequality_at_the_prescribed_parameters(id: str) -> None:
    """The displayed bound is the proof's inequality at the prescribed parameters, with C_0 = C/sqrt(2).

    The proof of Theorem 3 sets C_0 so. The two are equal where the smoothing is not cut by the clip.
    """
    equal = 0
    for case, v, _ in paper.admissible(id, 60, SEEDS[id] + 300):
        p = prescribe(id, Problem(**case.problem()), 1 / (2 * math.sqrt(2) * float(v)))
        alpha, T, lam, C = (mpf(getattr(p, field)) for field in ("step_size", "T", "smoothing", "clip"))
        value = paper.UNSUBSTITUTED[id](case, v, alpha, T, lam, C, C / mp.sqrt(2))
        assert value <= mpf(p.bound) * (1 + mpf(10) ** -9)
        cut = id == "theorem-3" and mpf(case.d) ** mpf("0.5") * lam < mpf("0.999") * mp.sqrt(
            mpf(case.lipschitz) ** 2 / mpf(case.smoothness) ** 2 / mpf(case.d) ** 2 * mp.sqrt(case.r) * v / case.n
        )
        if not cut:
            assert_close(value, p.bound, (id, case))
            equal += 1
    assert equal >= 50


def test_must_show_at_the_papers_synthetic_setting() -> None:
    problem = Problem(**BASE)
    p = prescribe("theorem-3", problem, calibrated_gdp(2, 1e-6, "paper"))
    assert round(p.bound, 3) == 1.284
    assert p.vacuous
    assert round(p.T) == 4672
    assert round(p.clip, 1) == 23.9
    exact = prescribe("theorem-3", problem, calibrated_gdp(2, 1e-6, "exact"))
    assert round(exact.bound, 3) == 0.557
    assert not exact.vacuous


POWERS = st.integers(-20, 20).map(lambda k: 2.0**k)


@settings(max_examples=40)
@given(length=POWERS, loss=POWERS, index=st.integers(0, 30), id=st.sampled_from(IDS))
def test_scale_invariance(length: float, loss: float, index: int, id: str) -> None:
    """Scaling x by s and f by t changes every field of a prescription by its unit and nothing else."""
    case = SCALED[id][index]
    problem = Problem(**case.problem())
    scaled = dataclasses.replace(
        problem,
        lipschitz=problem.lipschitz * loss / length,
        smoothness=problem.smoothness * loss / length**2,
        gap=problem.gap * loss,
        loss_bound=problem.loss_bound * loss,
        pl=case.pl * loss / length**2,
    )
    gdp = calibrated_gdp(case.epsilon, case.delta, "exact")
    before, after = prescribe(id, problem, gdp), prescribe(id, scaled, gdp)
    slope = loss / length
    value = loss if id.startswith("corollary") else slope**2
    units = {
        "step_size": length**2 / loss,
        "T": 1.0,
        "smoothing": length,
        "clip": slope,
        "noise_std": slope,
        "bound": value,
        "bound_at_steps": value,
        "trivial_bound": value,
    }
    assert after.steps == before.steps
    assert after.evaluations == before.evaluations
    assert after.vacuous == before.vacuous
    for field, unit in units.items():
        assert getattr(after, field) == pytest.approx(unit * getattr(before, field), rel=1e-12), field


SCALED = {
    id: [case for case, _, _ in paper.admissible(id, 60, SEEDS[id] + 400) if case.epsilon < 20][:31] for id in IDS
}


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
