"""Tests of the sharpened certificate: independent quadrature, brute force, difference rules, Poisson, extremes."""

import dataclasses
import itertools
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpzero_theory as dz
from benchmarks.problems.poisson import poisson_noise, prescribe_poisson
from dpzero_theory.check import PreconditionError
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.theory.noise import noise_std
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import certificate, prescribe
from dpzero_theory.theory.sharp.constants import LAWS
from dpzero_theory.theory.sharp.high_probability import certify_run
from dpzero_theory.theory.sharp.last_iterate import certify_last_iterate, prescribe_last_iterate
from dpzero_theory.theory.sharp.smallest import Search

GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)


def _expectation(function, low, d):  # type: ignore[no-untyped-def]
    """Returns E[function(v) 1{v > low}] for v = |u_1|, u uniform on the sphere in R^d, by quadrature in mpmath."""
    root = mpmath.sqrt(d)
    norm = 2 * mpmath.gamma(mpmath.mpf(d) / 2) / (mpmath.sqrt(mpmath.pi) * mpmath.gamma(mpmath.mpf(d - 1) / 2))
    end = mpmath.acos(min(low / root, mpmath.mpf(1)))
    points = [max(mpmath.mpf(0), end - k * mpmath.mpf(4) / root) for k in (15, 8, 4, 2, 1, 0)]
    points = sorted(set(points))
    if len(points) == 1:
        return mpmath.mpf(0)
    return norm * mpmath.quad(
        lambda a: function(root * mpmath.cos(a)) * mpmath.sin(a) ** (d - 2), points, method="gauss-legendre"
    )


def _theorem(problem, alpha, steps, clip, smoothing, sigma, rate):  # type: ignore[no-untyped-def]
    """Returns the bound of section 2 of proof.md in mpmath, with all moments by quadrature and c' by root finding.

    Args:
        problem: the problem's constants.
        alpha, steps, clip, smoothing, sigma: step size, number of steps, clip, smoothing and noise of the run.
        rate: the sampling rate.
    """
    with mpmath.workdps(30):
        d, r = problem.d, mpmath.mpf(problem.r)
        big_l, ell = mpmath.mpf(problem.lipschitz), mpmath.mpf(problem.smoothness)
        c, e = clip / big_l, ell * smoothing * d / 2

        def rest(v):  # type: ignore[no-untyped-def]
            return (d - v**2) / mpmath.mpf(d - 1)

        beta = _expectation(lambda v: (v - c) * v, c, d)
        chi = _expectation(lambda v: (v - c) * v * (v**2 + (r - 1) * rest(v)), c, d)
        omega2 = _expectation(lambda v: (v - c) ** 2 * (v**2 + (r - 1) * rest(v)), c, d)
        nu = _expectation(lambda v: v, 0, d)

        def excess(x):  # type: ignore[no-untyped-def]
            return _expectation(lambda v: v**2 + c * v, x, d) - beta

        other = mpmath.findroot(excess, (c, min(c + 2, mpmath.sqrt(d))), solver="illinois", tol=1e-20)
        theta = _expectation(lambda v: v**2, other, d)
        bias = max(beta - theta, c * _expectation(lambda v: v, other, d))
        a2 = (r + 2) * d / mpmath.mpf(d + 2)
        q = 1 - theta - alpha * ell / 2 * (a2 - chi)
        p = big_l * bias + e * nu + alpha * ell * (big_l * chi / 2 + e * mpmath.sqrt(a2 * r))
        batch = (1 - rate) / (rate * problem.n)
        k = problem.gap / (alpha * steps) + alpha * ell / 2 * (
            (big_l * mpmath.sqrt(omega2) + e * mpmath.sqrt(r)) ** 2
            + r * sigma**2
            + batch * (big_l * mpmath.sqrt(a2 - 2 * chi + omega2) + e * mpmath.sqrt(r)) ** 2
        )
        return float(((p + mpmath.sqrt(p**2 + 4 * q * k)) / (2 * q)) ** 2)


@pytest.mark.parametrize("seed", range(8))
def test_certificate_is_the_theorem_by_independent_quadrature(seed: int) -> None:
    rng = np.random.default_rng(seed)
    d = int([2, 5, 9, 30, 100, 400, 900, 1500][seed])
    problem = Problem(
        n=500,
        d=d,
        r=float(rng.uniform(1, d)),
        lipschitz=float(rng.uniform(0.3, 3)),
        smoothness=float(rng.uniform(0.3, 3)),
        gap=float(rng.uniform(0.1, 9)),
    )
    alpha = float(rng.uniform(0.05, 0.8)) / (problem.smoothness * (problem.r + 2))
    clip = float(rng.uniform(0.5, min(2.5, 0.9 * math.sqrt(d)))) * problem.lipschitz
    smoothing = float(rng.uniform(1e-4, 1e-2)) * problem.lipschitz / (d * problem.smoothness)
    sigma, rate = float(rng.uniform(0, 1)), float(rng.choice([1.0, 0.05]))
    found = certificate(
        problem,
        step_size=alpha,
        steps=700,
        clip=clip,
        smoothing=smoothing,
        noise_std=sigma,
        sample_rate=rate,
    )
    expected = _theorem(problem, alpha, 700, clip, smoothing, sigma, rate)
    assert found.progress > 0
    assert found.bound == pytest.approx(expected, rel=1e-7)


def test_dimension_free() -> None:
    bounds = [prescribe(dataclasses.replace(PAPER, d=d), GDP, max_steps=5000).bound for d in (10**3, 10**6, 10**12)]
    assert bounds[1] == pytest.approx(bounds[0], rel=0.05)
    assert bounds[2] == pytest.approx(bounds[1], rel=1e-5)


problems = st.builds(
    Problem,
    n=st.integers(1, 10**8),
    d=st.integers(1, 10**7),
    r=st.just(1.0),
    lipschitz=st.floats(1e-6, 1e6),
    smoothness=st.floats(1e-6, 1e6),
    gap=st.floats(1e-6, 1e6),
)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    problem=problems,
    share=st.floats(0, 1),
    gdp=st.floats(1e-3, 1e2),
    cap=st.one_of(st.none(), st.integers(1, 10**9)),
    direction=st.sampled_from(["sphere", "gaussian", "rademacher"]),
    relation=st.sampled_from(["replace-one", "add-remove"]),
)
def test_prescription_is_certified_at_its_parameters(
    problem: Problem, share: float, gdp: float, cap: int | None, direction: str, relation: str
) -> None:
    problem = dataclasses.replace(problem, r=problem.d**share)
    p = prescribe(problem, gdp, max_steps=cap, direction=direction, relation=relation)
    again = certificate(problem, **p.run)
    assert p.bound == p.bound_at_steps == again.bound
    assert (p.relation, p.direction) == (relation, direction)
    assert 0 < p.bound < math.inf
    assert again.vacuous == p.vacuous
    assert p.steps == (cap if cap is not None else p.steps)
    expected = noise_std(gdp, p.steps, p.clip, problem.n, relation)
    assert p.noise_std == pytest.approx(expected, rel=1e-12)
    tiny = certificate(problem, **{**p.run, "smoothing": p.smoothing * 1e-9})
    assert p.bound == pytest.approx(1.01 * tiny.bound, rel=1e-6)


def test_algorithm_1_has_the_same_theorem() -> None:
    parameters = {"step_size": 0.01, "steps": 500, "smoothing": 1e-5, "noise_std": 0.4}
    scalar = certificate(PAPER, clip=2.5, **parameters)
    vector = certificate(PAPER, clip=2.5 * math.sqrt(2000), **parameters, algorithm="dpgd-0th")
    assert vector.bound == pytest.approx(scalar.bound, rel=1e-12)
    p = prescribe(PAPER, GDP, max_steps=4000, algorithm="dpgd-0th")
    assert (p.id, p.algorithm) == ("theorem-2-sharp", "dpgd-0th")
    assert p.noise_std == pytest.approx(noise_std(GDP, 4000, p.clip, 10_000, "replace-one"), rel=1e-12)
    again = certificate(PAPER, **p.run, algorithm="dpgd-0th")
    assert again.bound == pytest.approx(p.bound, rel=1e-12)
    with pytest.raises(PreconditionError, match=r"dpgd-0th requires .* for gaussian directions"):
        prescribe(PAPER, GDP, algorithm="dpgd-0th", direction="gaussian")


def test_sample_rank_frees_the_smoothing_from_d() -> None:
    def smoothing(d: int, rank: float | None) -> float:
        return prescribe(dataclasses.replace(PAPER, d=d, sample_rank=rank), GDP, max_steps=5000).smoothing

    assert smoothing(2000, None) == smoothing(2000, 2000)
    assert smoothing(10**6, None) == pytest.approx(smoothing(2000, None) / 500, rel=0.01)
    assert smoothing(10**6, 8.178) == pytest.approx(smoothing(2000, 8.178), rel=0.01)
    assert smoothing(2000, 8.178) > 100 * smoothing(2000, None)
    loose = certificate(PAPER, step_size=0.03, steps=5000, clip=3, smoothing=1e-4, noise_std=0.1)
    ranked = dataclasses.replace(PAPER, sample_rank=8.178)
    tight = certificate(ranked, step_size=0.03, steps=5000, clip=3, smoothing=1e-4, noise_std=0.1)
    assert tight.bound < loose.bound / 2


@pytest.mark.parametrize("value", [-1.0, math.nan, "1"])
@pytest.mark.parametrize("name", ["step_size", "steps", "clip", "smoothing", "noise_std", "sample_rate"])
def test_bad_parameters(name: str, value: object) -> None:
    good = {"step_size": 0.01, "steps": 10, "clip": 2.0, "smoothing": 1e-6, "noise_std": 0.1, "sample_rate": 0.5}
    with pytest.raises(ValueError, match=name):
        certificate(PAPER, **(good | {name: value}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gdp", 0),
        ("gdp", math.nan),
        ("max_steps", 0),
        ("max_steps", 2.5),
        ("max_steps", math.nan),
        ("max_evaluations", 9999),
        ("max_evaluations", -1),
        ("relation", "add"),
        ("direction", "ball"),
        ("algorithm", "dpgd"),
    ],
)
def test_bad_requests(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        prescribe(PAPER, **({"gdp": GDP} | {name: value}))


@pytest.mark.parametrize("direction", ["sphere", "rademacher", "frame"])
def test_the_best_number_of_directions_by_brute_force(direction: str) -> None:
    problem = Problem(n=2000, d=30, r=4)

    def bound(k: int | str) -> float:
        return prescribe(problem, GDP, max_evaluations=2000 * 900, direction=direction, directions_per_step=k).bound

    assert bound("best") <= 1.005 * min(bound(k) for k in range(1, 31))


def test_the_best_number_for_the_last_iterate() -> None:
    cap = 46_720 * PAPER.n
    with_pl = dataclasses.replace(PAPER, pl=0.05)
    last = prescribe_last_iterate(with_pl, GDP, max_evaluations=cap, directions_per_step="best")
    for k in (1, 4, 256):
        other = prescribe_last_iterate(with_pl, GDP, max_evaluations=cap, directions_per_step=k)
        assert last.bound <= other.bound * 1.01
    assert last.evaluations == PAPER.n * last.directions_per_step * last.steps <= cap


def test_an_impossible_number_of_directions_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^directions_per_step must be an integer"):
        prescribe(PAPER, GDP, directions_per_step="most")
    with pytest.raises(PreconditionError, match=r"^dpgd-0th has one direction a step; got directions_per_step = 2"):
        prescribe(PAPER, GDP, directions_per_step=2, algorithm="dpgd-0th")
    with pytest.raises(PreconditionError, match=r"^max_evaluations >= n directions_per_step is required"):
        prescribe(PAPER, GDP, directions_per_step=2, max_evaluations=PAPER.n)


def test_poisson_with_the_accountant() -> None:
    accountant = poisson_noise(2, 1e-6)
    fixed = prescribe_poisson(PAPER, GDP, accountant, max_evaluations=4_672_000, expected_batch=0.01 * PAPER.n)
    assert fixed.steps == 46_720
    assert fixed.noise_multiplier == pytest.approx(accountant(0.01, 46_720, Relation.REPLACE_ONE), rel=1e-14)
    assert (fixed.sampling, fixed.sample_rate, fixed.relation) == ("poisson", 0.01, Relation.REPLACE_ONE)
    assert fixed.noise_std == pytest.approx(fixed.noise_multiplier * fixed.clip / 100, rel=1e-12)
    found = prescribe_poisson(PAPER, GDP, accountant, max_evaluations=4_672_000, max_steps=200_000)
    assert found.steps <= 200_000
    assert found.evaluations <= 4_672_001
    assert found.bound < fixed.bound < prescribe(PAPER, GDP, max_evaluations=4_672_000).bound
    assert certificate(PAPER, **found.run, sample_rate=found.sample_rate).bound == found.bound


def test_batch_steps_and_directions_are_chosen_together() -> None:
    """At 9,344 evaluations of each record a choice by hand, K = 23, batch 77, 26,355 steps, is beaten.

    No K and rate of a coarse grid has a smaller bound than what is found.
    """
    noise, budget = poisson_noise(2, 1e-6), 9_344 * PAPER.n
    rule: dict[str, Any] = {"max_points": budget, "difference": "forward"}
    found = prescribe_poisson(PAPER, GDP, noise, **rule, directions_per_step="best")
    assert found.points <= budget * (1 + 1e-9)
    by_hand = prescribe_poisson(
        PAPER, GDP, noise, max_points=77 * 24 * 26_355, expected_batch=77, directions_per_step=23, difference="forward"
    )
    assert found.bound < by_hand.bound < prescribe(PAPER, GDP, max_points=budget, directions_per_step="best").bound
    for k, batch in itertools.product((8, 64), (5, 100)):
        other = prescribe_poisson(PAPER, GDP, noise, **rule, expected_batch=batch, directions_per_step=k)
        assert found.bound <= other.bound


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
        {**AT, "direction": law, "smoothing": smoothing, "difference": rule}
        for rule, smoothing in (("exact", 0.0), ("forward", 1e-30))
    )
    run = certify_run(problem, failure=0.05, **exact).bound
    assert run == pytest.approx(certify_run(problem, failure=0.05, **small).bound, rel=1e-12)
    last = certify_last_iterate(problem, **exact)
    assert last == pytest.approx(certify_last_iterate(problem, **small), rel=1e-12)
    prescribed = prescribe_last_iterate(problem, GDP, max_points=3000 * problem.n, direction=law, difference="exact")
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
    cap = round(2 * points)  # for a batch of two
    assert Search(max_points=cap, difference=rule).most_directions(2) == by_trial
    assert Search(max_points=cap, max_evaluations=6, difference=rule).most_directions(2) == min(3, by_trial)
    assert Search(difference=rule).most_directions(2) is None


@pytest.mark.parametrize(("rule", "steps"), [("central", 10), ("forward", 16), ("exact", 16)])
def test_the_cap_on_points(rule: str, steps: int) -> None:
    n = 1000
    points = DIFFERENCES[rule].points(4) * steps * n
    for caps, allowed in (
        ({"max_points": points}, steps),
        ({"max_points": points - 1}, steps - 1),
        ({"max_points": points, "max_steps": 7}, 7),
        ({"max_points": points, "max_evaluations": 4 * n * 3}, 3),
    ):
        assert Search(**caps, difference=rule).steps(n, 4) == allowed
    with pytest.raises(PreconditionError, match=r"^max_points >= "):
        Search(max_points=4999, difference=rule).steps(n, 4)


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


@pytest.mark.parametrize("rule", DIFFERENCES)
def test_a_prescription_is_certified_at_its_rule(rule: str) -> None:
    found = dz.prescribe(PAPER, epsilon=2, delta=1e-6, max_points=9344 * 10_000, difference=rule)
    assert dz.certify(PAPER, found).bound == found.bound
    assert dz.certify(PAPER, found.plan()).bound == pytest.approx(found.bound, rel=1e-9)


ENDS = (5e-324, 1e-300, 1e-150, 1e-50, 1.0, 1e50, 1e150, 1e300, 1.7e308)
LAWS = ("sphere", "gaussian", "rademacher", "frame")


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
        rate = float(rng.choice([5e-324, 1e-150, 1e-9, 1.0]))
        found = _or_one_line(partial(certificate, problem, sample_rate=rate, **at))
        last = _or_one_line(partial(certify_last_iterate, problem, **at))
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
            partial(prescribe_last_iterate, problem, gdp, **at),
            partial(prescribe_poisson, problem, gdp, lambda *_: 1.0, max_evaluations=10**9, **at),
        ):
            found = _or_one_line(function)
            for name in () if found is None else ("step_size", "clip", "smoothing", "noise_std", "bound"):
                assert 0 < getattr(found, name) < math.inf, (name, found)
            answered += found is not None
    assert answered > 10
