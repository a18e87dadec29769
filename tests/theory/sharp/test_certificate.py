import dataclasses
import math
import time

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.gaussian import gdp_from_epsilon, noise_std
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp import constants
from dpzero_theory.theory.sharp.certificate import certificate, prescribe
from dpzero_theory.theory.sharp.last_iterate import SCHEDULES, certify_last_iterate, prescribe_last_iterate
from dpzero_theory.theory.sharp.poisson import poisson_noise, prescribe_poisson

GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)


def _expectation(function, low, d):  # type: ignore[no-untyped-def]
    """E[function(v) 1{v > low}], v = |u_1| on the sphere, by quadrature in mpmath."""
    root = mpmath.sqrt(d)
    norm = 2 * mpmath.gamma(mpmath.mpf(d) / 2) / (mpmath.sqrt(mpmath.pi) * mpmath.gamma(mpmath.mpf(d - 1) / 2))
    end = mpmath.acos(min(low / root, mpmath.mpf(1)))
    points = [max(mpmath.mpf(0), end - k * mpmath.mpf(4) / root) for k in (15, 8, 4, 2, 1, 0)]
    points = sorted(set(points))
    if len(points) == 1:
        return mpmath.mpf(0)
    return norm * mpmath.quad(lambda a: function(root * mpmath.cos(a)) * mpmath.sin(a) ** (d - 2), points)


def _theorem(problem, alpha, steps, clip, smoothing, sigma, rate):  # type: ignore[no-untyped-def]
    """Section 2 of proof.md in mpmath, all moments by quadrature, c' by root finding."""
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
    directions=st.sampled_from(["sphere", "gaussian", "rademacher"]),
    relation=st.sampled_from(["replace-one", "add-remove"]),
)
def test_prescription_is_certified_at_its_parameters(
    problem: Problem, share: float, gdp: float, cap: int | None, directions: str, relation: str
) -> None:
    problem = dataclasses.replace(problem, r=problem.d**share)
    p = prescribe(problem, gdp, max_steps=cap, directions=directions, relation=relation)
    again = certificate(
        problem,
        step_size=p.step_size,
        steps=p.steps,
        clip=p.clip,
        smoothing=p.smoothing,
        noise_std=p.noise_std,
        directions=directions,
    )
    assert p.bound == p.bound_at_steps == again.bound
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
        directions=directions,
    )
    assert p.bound == pytest.approx(1.01 * tiny.bound, rel=1e-6)


@settings(deadline=None, derandomize=True, max_examples=20)
@given(log_s=st.floats(-6, 6), log_t=st.floats(-6, 6))
def test_scale_invariance(log_s: float, log_t: float) -> None:
    """x -> s x, f -> t f: L -> L t/s, ell -> ell t/s^2, gap -> t gap."""
    s, t = 10**log_s, 10**log_t
    moved = Problem(n=10_000, d=2000, r=8.178, lipschitz=t / s, smoothness=t / s**2, gap=t)
    old, new = prescribe(PAPER, GDP, max_steps=999), prescribe(moved, GDP, max_steps=999)
    assert new.bound == pytest.approx(old.bound * (t / s) ** 2, rel=1e-9)
    assert new.clip == pytest.approx(old.clip * t / s, rel=1e-6)
    assert new.step_size == pytest.approx(old.step_size * s**2 / t, rel=1e-6)
    assert new.smoothing == pytest.approx(old.smoothing * s, rel=1e-6)


def test_monotone() -> None:
    def bound(gdp: float = GDP, steps: int = 3000, **changes: float) -> float:
        return prescribe(dataclasses.replace(PAPER, **changes), gdp, max_steps=steps).bound

    base = bound()
    assert bound(n=20_000) < base < bound(r=9)
    assert bound(gdp=2 * GDP) < base < bound(gap=1.1)
    assert bound(steps=6000) < base < bound(lipschitz=1.1)
    assert base < bound(smoothness=1.1)


def test_limits_without_a_cap() -> None:
    free, loose = prescribe(PAPER, GDP), prescribe(PAPER, GDP, steps_share=0.5)
    limit = prescribe(PAPER, GDP, max_steps=10**15).bound
    assert loose.steps < free.steps
    assert limit < free.bound <= 1.051 * limit
    assert loose.bound <= 1.51 * limit
    assert prescribe(PAPER, GDP, max_steps=500, max_evaluations=10**6).steps == 100


@pytest.mark.parametrize("d", [1, 2, 3, 10, 10**9])
def test_constants_at_the_ends(d: int) -> None:
    none = constants.constants(np.array([math.sqrt(d), 2 * math.sqrt(d)]), d, 1.0)
    for name in ("bias", "cross", "excess"):
        np.testing.assert_allclose(getattr(none, name), 0, atol=1e-20)
    np.testing.assert_array_equal(none.kept, 1)
    all_clipped = constants.constants(np.array([1e-9]), d, 1.0)
    assert all_clipped.quadratic[0] == pytest.approx(0, abs=1e-7)
    assert all_clipped.excess[0] == pytest.approx(all_clipped.spread, rel=1e-7)


def test_sphere_tends_to_the_gaussian() -> None:
    c = np.array([0.1, 1.0, 3.0])
    sphere, gaussian = (constants.constants(c, 10**11, 7.0, kind) for kind in ("sphere", "gaussian"))
    for field in dataclasses.fields(sphere):
        np.testing.assert_allclose(getattr(sphere, field.name), getattr(gaussian, field.name), rtol=1e-8)


@pytest.mark.parametrize("d", [1, 2, 17, 299, 300, 5000])
def test_mean_projection(d: int) -> None:
    with mpmath.workdps(30):
        exact = mpmath.sqrt(d / mpmath.pi) * mpmath.gammaprod([mpmath.mpf(d) / 2], [mpmath.mpf(d + 1) / 2])
    assert constants.mean_projection(d) == pytest.approx(float(exact), rel=1e-11)


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
    with pytest.raises(PreconditionError, match="Gaussian"):
        prescribe(PAPER, GDP, algorithm="dpgd-0th", directions="gaussian")


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


def test_progress_must_be_positive() -> None:
    found = certificate(PAPER, step_size=1.0, steps=10, clip=3, smoothing=1e-6, noise_std=0.1)
    assert found.progress < 0
    assert found.bound == math.inf
    assert found.vacuous


def test_poisson_at_rate_one_is_full_batch() -> None:
    full = prescribe(PAPER, GDP, max_steps=2000)
    sampled = prescribe_poisson(
        PAPER,
        GDP,
        lambda rate, steps: 2 * math.sqrt(steps) / GDP,
        max_evaluations=20_000_000,
        sample_rate=1.0,
    )
    assert sampled.bound == pytest.approx(full.bound, rel=1e-12)
    assert sampled.noise_std == pytest.approx(full.noise_std, rel=1e-12)


def test_poisson_with_the_accountant() -> None:
    accountant = poisson_noise(2, 1e-6, "replace-one")
    fixed = prescribe_poisson(PAPER, GDP, accountant, max_evaluations=4_672_000, sample_rate=0.01)
    assert fixed.steps == 46_720
    assert fixed.noise_multiplier == accountant(0.01, 46_720)
    assert fixed.noise_std == pytest.approx(fixed.noise_multiplier * fixed.clip / 100, rel=1e-12)
    found = prescribe_poisson(PAPER, GDP, accountant, max_evaluations=4_672_000, max_steps=200_000)
    assert found.steps <= 200_000
    assert found.evaluations <= 4_672_001
    assert found.bound < fixed.bound < prescribe(PAPER, GDP, max_evaluations=4_672_000).bound
    again = certificate(
        PAPER,
        step_size=found.step_size,
        steps=found.steps,
        clip=found.clip,
        smoothing=found.smoothing,
        noise_std=found.noise_std,
        sample_rate=found.sample_rate,
    )
    assert again.bound == found.bound


def test_poisson_needs_a_step() -> None:
    with pytest.raises(PreconditionError, match="max_evaluations"):
        prescribe_poisson(PAPER, GDP, lambda rate, steps: 1.0, max_evaluations=10, sample_rate=0.5)
    with pytest.raises(ValueError, match="noise_multiplier"):
        prescribe_poisson(PAPER, GDP, lambda rate, steps: math.nan, max_evaluations=10**6)


PL = dataclasses.replace(PAPER, pl=0.05)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [800, 20_000, None])
def test_last_iterate_is_certified_at_its_parameters(schedule: str, steps: int | None) -> None:
    p = prescribe_last_iterate(PL, GDP, schedule=schedule, max_steps=steps)
    names = ("step_size", "steps", "clip", "smoothing", "noise_std", "noise_ratio")
    assert certify_last_iterate(PL, **{name: getattr(p, name) for name in names}) == p.bound
    assert p.gradient_bound == 2 * p.bound
    assert not p.vacuous
    sigma = p.noise_std * p.noise_ratio ** np.arange(p.steps)
    spent = math.sqrt(np.sum((2 * p.clip / (PL.n * sigma)) ** 2))
    assert spent == pytest.approx(GDP, rel=1e-7)
    assert spent <= GDP * (1 + 1e-12)


def test_shrinking_noise_gains_with_the_steps() -> None:
    gains = []
    for steps in (1000, 10_000, 100_000):
        constant, shrinking = (
            prescribe_last_iterate(PL, GDP, schedule=schedule, max_steps=steps).bound for schedule in SCHEDULES
        )
        gains.append(constant / shrinking)
    assert 1 < gains[0] < gains[1] < gains[2]


def test_last_iterate_recursion_by_brute_force() -> None:
    """The closed form against the recursion run step by step, for every y of a grid."""
    p = prescribe_last_iterate(PL, GDP, schedule="shrinking", max_steps=900)
    at = {"clip": p.clip, "smoothing": p.smoothing, "step_size": p.step_size}
    step = certificate(PL, **at, steps=1, noise_std=0)
    constant = step.floor - PL.gap / p.step_size
    best = math.inf
    for y in np.geomspace(1e-4, 1, 400):
        rho = 1 - 2 * PL.pl * p.step_size * (step.progress - step.drift / (2 * y))
        if 0 < rho < 1:
            value = PL.gap
            for t in range(p.steps):
                sigma = p.noise_std * p.noise_ratio ** (p.steps - 1 - t)
                noise = p.step_size / 2 * PL.r * sigma**2
                value = rho * value + p.step_size * (step.drift * y / 2 + constant + noise)
            best = min(best, value)
    assert p.bound == pytest.approx(best, rel=2e-3)


def test_last_iterate_needs_pl_and_a_contraction() -> None:
    with pytest.raises(PreconditionError, match="pl"):
        prescribe_last_iterate(PAPER, GDP, schedule="constant")
    assert certify_last_iterate(PL, step_size=9, steps=9, clip=3, smoothing=1e-9, noise_std=0.1) == math.inf
    with pytest.raises(ValueError, match="schedule"):
        prescribe_last_iterate(PL, GDP, schedule="rising")


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "1", None, True])
@pytest.mark.parametrize("name", ["step_size", "steps", "clip", "smoothing", "noise_std", "sample_rate"])
def test_bad_parameters(name: str, value: object) -> None:
    good = {"step_size": 0.01, "steps": 10, "clip": 2.0, "smoothing": 1e-6, "noise_std": 0.1, "sample_rate": 0.5}
    if name == "noise_std" and value == 0:
        return
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
        ("directions", "ball"),
        ("algorithm", "dpgd"),
        ("smoothing_share", 0),
        ("steps_share", math.nan),
    ],
)
def test_bad_requests(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        prescribe(PAPER, **({"gdp": GDP} | {name: value}))


def test_extreme_inputs() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        d = int(10 ** rng.uniform(0, 18))
        lipschitz, smoothness, gap = (float(10 ** rng.uniform(-30, 30)) for _ in range(3))
        problem = Problem(
            n=int(10 ** rng.uniform(0, 18)),
            d=d,
            r=float(d ** rng.uniform(0, 1)),
            lipschitz=lipschitz,
            smoothness=smoothness,
            gap=gap,
        )
        cap = [None, int(10 ** rng.uniform(0, 15))][int(rng.integers(2))]
        p = prescribe(problem, float(10 ** rng.uniform(-8, 8)), max_steps=cap)
        assert 0 < p.bound < math.inf
        assert p.smoothing > 0


def test_scales_out_of_range() -> None:
    with pytest.raises(ValueError, match="gap smoothness"):
        prescribe(Problem(n=10, d=10, r=1, lipschitz=1e-200), GDP)


def test_fast() -> None:
    prescribe(PAPER, GDP)
    start = time.perf_counter()
    prescribe(PAPER, GDP)
    prescribe(PAPER, GDP, max_steps=4672)
    prescribe_last_iterate(PL, GDP, schedule="shrinking", max_steps=4672)
    assert time.perf_counter() - start < 3
