import dataclasses
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.gaussian import gdp_from_epsilon, noise_std
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import certificate, prescribe

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


def test_the_papers_setting() -> None:
    capped = prescribe(PAPER, GDP, max_steps=4672)
    assert 0.004 < prescribe(PAPER, GDP).bound < capped.bound < 0.013
    assert 1.284 / capped.bound > 100
    assert capped.steps == 4672
    expected = noise_std(GDP, 4672, capped.clip, 10_000, "replace-one")
    assert capped.noise_std == pytest.approx(expected, rel=1e-15)
    assert capped.evaluations == 46_720_000
    assert capped.id == "theorem-3-sharp"


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
    again = certificate(
        problem,
        step_size=p.step_size,
        steps=p.steps,
        clip=p.clip,
        smoothing=p.smoothing,
        noise_std=p.noise_std,
        direction=direction,
    )
    assert p.bound == p.bound_at_steps == again.bound
    assert (p.relation, p.direction) == (relation, direction)
    assert 0 < p.bound < math.inf
    assert again.vacuous == p.vacuous
    assert p.steps == (cap if cap is not None else p.steps)
    expected = noise_std(gdp, p.steps, p.clip, problem.n, relation)
    assert p.noise_std == pytest.approx(expected, rel=1e-12)
    tiny = certificate(
        problem,
        step_size=p.step_size,
        steps=p.steps,
        clip=p.clip,
        smoothing=p.smoothing * 1e-9,
        noise_std=p.noise_std,
        direction=direction,
    )
    assert p.bound == pytest.approx(1.01 * tiny.bound, rel=1e-6)


def test_algorithm_1_has_the_same_theorem() -> None:
    parameters = {"step_size": 0.01, "steps": 500, "smoothing": 1e-5, "noise_std": 0.4}
    scalar = certificate(PAPER, clip=2.5, **parameters)
    vector = certificate(PAPER, clip=2.5 * math.sqrt(2000), **parameters, algorithm="dpgd-0th")
    assert vector.bound == pytest.approx(scalar.bound, rel=1e-12)
    p = prescribe(PAPER, GDP, max_steps=4000, algorithm="dpgd-0th")
    assert (p.id, p.algorithm) == ("theorem-2-sharp", "dpgd-0th")
    assert p.noise_std == pytest.approx(noise_std(GDP, 4000, p.clip, 10_000, "replace-one"), rel=1e-12)
    again = certificate(
        PAPER,
        step_size=p.step_size,
        steps=p.steps,
        clip=p.clip,
        smoothing=p.smoothing,
        noise_std=p.noise_std,
        algorithm="dpgd-0th",
    )
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
    for rank in (0.5, 2001, math.nan):
        with pytest.raises(ValueError, match="sample_rank"):
            smoothing(2000, rank)


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
