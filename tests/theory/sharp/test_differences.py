"""Tests of the theory of the difference rules.

Central and forward differences have one certificate, and exact derivatives have that of smoothing lambda = 0.
"""

import math
from typing import Any

import pytest

import dpzero_theory as dz
from dpzero_theory.check import PreconditionError
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.limits import most_directions, step_cap
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import certificate, prescribe
from dpzero_theory.theory.sharp.constants import LAWS
from dpzero_theory.theory.sharp.high_probability import RunParameters, certify_run
from dpzero_theory.theory.sharp.last_iterate import certify_last_iterate, prescribe_last_iterate
from dpzero_theory.theory.sharp.poisson import prescribe_poisson

GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)
AT: dict[str, Any] = {"step_size": 0.05, "steps": 4672, "clip": 3.0, "noise_std": 0.05}


def _unit_noise(rate: float, steps: int, relation: object) -> float:
    return 1.0


@pytest.mark.parametrize("law", LAWS)
def test_one_certificate_for_central_and_forward_and_the_limit_for_exact(law: str) -> None:
    central, forward = (
        certificate(PAPER, **AT, direction=law, smoothing=1e-5, difference=rule) for rule in ("central", "forward")
    )
    assert forward == central
    exact = certificate(PAPER, **AT, direction=law, smoothing=0, difference="exact")
    assert exact.bound < central.bound
    assert exact.bound == pytest.approx(certificate(PAPER, **AT, direction=law, smoothing=1e-30).bound, rel=1e-14)


@pytest.mark.parametrize("law", ["sphere", "rademacher"])
def test_one_run_and_the_last_iterate_at_no_smoothing(law: str) -> None:
    """At smoothing lambda = 0 the certificates for one run and for the last iterate are limits for small lambda."""
    problem = Problem(n=10_000, d=2000, r=8.178, pl=0.1)
    exact, small = (
        RunParameters(**AT, direction=law, smoothing=smoothing, difference=rule)
        for rule, smoothing in (("exact", 0.0), ("forward", 1e-30))
    )
    run = certify_run(problem, exact, failure=0.05).bound
    assert run == pytest.approx(certify_run(problem, small, failure=0.05).bound, rel=1e-12)
    last = certify_last_iterate(problem, **vars(exact))
    assert last == pytest.approx(certify_last_iterate(problem, **vars(small)), rel=1e-12)
    prescribed = prescribe_last_iterate(
        problem, GDP, schedule="constant", max_points=3000 * problem.n, direction=law, difference="exact"
    )
    assert (prescribed.smoothing, prescribed.steps, prescribed.points) == (0, 1500, 3000 * problem.n)
    assert "error rate" in prescribed.notes[0]


@pytest.mark.parametrize(("rule", "smoothing"), [("exact", 1e-9), ("exact", math.nan), ("central", 0), ("forward", 0)])
def test_the_smoothing_of_a_rule(rule: str, smoothing: float) -> None:
    with pytest.raises(ValueError, match=r"^smoothing must be"):
        certificate(PAPER, **AT, smoothing=smoothing, difference=rule)


@pytest.mark.parametrize("rule", ["backward", None])
def test_unknown_rules(rule: Any) -> None:
    for ask in (
        lambda: certificate(PAPER, **AT, smoothing=1e-6, difference=rule),
        lambda: prescribe(PAPER, GDP, max_points=10**8, difference=rule),
        lambda: dz.prescribe(PAPER, epsilon=2, delta=1e-6, difference=rule),
        lambda: prescribe_poisson(PAPER, GDP, _unit_noise, max_points=10**8, difference=rule),
    ):
        with pytest.raises(ValueError, match=r"^difference must be one of central, forward, exact"):
            ask()


@pytest.mark.parametrize("rule", DIFFERENCES)
@pytest.mark.parametrize("points", [2, 3, 4, 7.5, 64, 1e5, 1e9])
def test_most_directions_by_trial(rule: str, points: float) -> None:
    by_trial = sum(DIFFERENCES[rule].points(k) <= points for k in range(1, 2**16 + 1))
    assert most_directions(None, points, rule) == by_trial
    assert most_directions(3, points, rule) == min(3, by_trial)
    assert most_directions(None, None, rule) is None


@pytest.mark.parametrize(("rule", "steps"), [("central", 10), ("forward", 16), ("exact", 16)])
def test_the_cap_on_points(rule: str, steps: int) -> None:
    problem = Problem(n=1000, d=10, r=2)
    points = DIFFERENCES[rule].points(4) * steps * problem.n
    assert step_cap(problem, None, None, 4, max_points=points, difference=rule) == steps
    assert step_cap(problem, None, None, 4, max_points=points - 1, difference=rule) == steps - 1
    assert step_cap(problem, 7, None, 4, max_points=points, difference=rule) == 7
    assert step_cap(problem, None, 4 * 1000 * 3, 4, max_points=points, difference=rule) == 3
    with pytest.raises(PreconditionError, match=r"^max_points >= "):
        step_cap(problem, None, None, 4, max_points=4999, difference=rule)


@pytest.mark.parametrize(("rule", "bound"), [("central", 0.00768), ("forward", 0.0060), ("exact", 0.0060)])
def test_the_best_number_of_directions_for_a_rule(rule: str, bound: float) -> None:
    """The chosen number of directions K is about the best one of K = 1, 4, ... 19, at 9,344 evaluations of a record."""
    found = prescribe(PAPER, GDP, max_points=9344 * PAPER.n, directions_per_step="best", difference=rule)
    assert found.bound <= bound
    assert found.points <= 9344 * PAPER.n < found.points + PAPER.n * DIFFERENCES[rule].points(found.directions_per_step)
    every = [
        prescribe(PAPER, GDP, max_points=9344 * PAPER.n, directions_per_step=k, difference=rule).bound
        for k in range(1, 21, 3)
    ]
    assert found.bound <= 1.002 * min(every)
    parameters = {name: getattr(found, name) for name in (*AT, "smoothing", "directions_per_step", "difference")}
    assert certificate(PAPER, **parameters).bound == found.bound


def test_poisson_batches_have_rules_too() -> None:
    """With Poisson batches at rate one, and the noise of full batches, the prescription is that for full batches."""

    def noise(rate: float, steps: int, relation: object) -> float:
        return 2 * math.sqrt(steps) / GDP

    for rule in DIFFERENCES:
        full = prescribe(PAPER, GDP, max_points=9344 * PAPER.n, directions_per_step=6, difference=rule)
        drawn = prescribe_poisson(
            PAPER, GDP, noise, max_points=9344 * PAPER.n, directions_per_step=6, difference=rule, expected_batch=PAPER.n
        )
        assert (drawn.difference, drawn.steps, drawn.points) == (rule, full.steps, full.points)
        assert drawn.bound == pytest.approx(full.bound, rel=1e-12)
    with pytest.raises(ValueError, match=r"^max_evaluations or max_points must be given"):
        prescribe_poisson(PAPER, GDP, noise)
    with pytest.raises(PreconditionError, match=r"max_points >= expected_batch 4 are required"):
        prescribe_poisson(
            PAPER, GDP, noise, max_points=399, directions_per_step=3, difference="forward", expected_batch=100
        )


@pytest.mark.parametrize("rule", DIFFERENCES)
def test_a_prescription_is_certified_at_its_rule(rule: str) -> None:
    found = dz.prescribe(PAPER, epsilon=2, delta=1e-6, max_points=9344 * 10_000, difference=rule)
    assert dz.certify(PAPER, found).bound == found.bound
    assert dz.certify(PAPER, found.plan()).bound == pytest.approx(found.bound, rel=1e-9)
