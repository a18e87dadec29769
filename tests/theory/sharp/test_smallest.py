"""Tests of the search for the parameters with the smallest certificate.

Its closed forms are compared with brute force, and its answers must behave as they should.
"""

import dataclasses
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.problem import Prescription, Problem
from dpzero_theory.theory.sharp import certificate
from dpzero_theory.theory.sharp.certificate import prescribe
from dpzero_theory.theory.sharp.last_iterate import prescribe_last_iterate
from dpzero_theory.theory.sharp.poisson import prescribe_poisson
from dpzero_theory.theory.sharp.smallest import Terms, largest_below, quadratic_terms, smallest_root, solve_quadratic

GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER = Problem(n=10_000, d=2000, r=8.178)


def test_the_smallest_root_by_brute_force_over_the_step_size() -> None:
    rng = np.random.default_rng(3)
    for _ in range(10):
        kept = float(rng.uniform(0.3, 1))
        quadratic, first, second, constant, gap = (float(x) for x in rng.lognormal(-1, 1, 5))
        terms = Terms(*(np.array([x]) for x in (kept, quadratic, first, second, constant)))
        alphas = np.geomspace(1e-6, 2 * kept / quadratic, 5_000)
        values = [solve_quadratic(*(float(x[0]) for x in quadratic_terms(terms, gap, a))) for a in alphas[:, None]]
        assert float(smallest_root(terms, gap)[0]) == pytest.approx(min(values), rel=1e-5)
        assert float(smallest_root(terms, gap)[0]) <= min(values) * (1 + 1e-12)


def test_largest_below() -> None:
    assert largest_below(math.expm1, 3.0) == pytest.approx(math.log(4), rel=1e-11)
    assert largest_below(lambda e: e**2, 1e-20) == pytest.approx(1e-10, rel=1e-11)


def test_limits_without_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    free = prescribe(PAPER, GDP)
    with monkeypatch.context() as patch:
        patch.setattr(certificate, "STEPS_SHARE", 0.5)
        loose = prescribe(PAPER, GDP)
    limit = prescribe(PAPER, GDP, max_steps=10**15).bound
    assert loose.steps < free.steps
    assert limit < free.bound <= 1.051 * limit
    assert loose.bound <= 1.51 * limit
    assert prescribe(PAPER, GDP, max_steps=500, max_evaluations=10**6).steps == 100


def test_monotone() -> None:
    def bound(gdp: float = GDP, steps: int = 3000, **changes: float) -> float:
        return prescribe(dataclasses.replace(PAPER, **changes), gdp, max_steps=steps).bound

    base = bound()
    assert bound(n=20_000) < base < bound(r=9)
    assert bound(gdp=2 * GDP) < base < bound(gap=1.1)
    assert bound(steps=6000) < base < bound(lipschitz=1.1)
    assert base < bound(smoothness=1.1)


@settings(deadline=None, derandomize=True, max_examples=20)
@given(log_s=st.floats(-6, 6), log_t=st.floats(-6, 6))
def test_scale_invariance(log_s: float, log_t: float) -> None:
    """Scaling x by s and f by t scales the prescription: L becomes L t/s, ell becomes ell t/s^2 and the gap t gap."""
    s, t = 10**log_s, 10**log_t
    moved = Problem(n=10_000, d=2000, r=8.178, lipschitz=t / s, smoothness=t / s**2, gap=t)
    old, new = prescribe(PAPER, GDP, max_steps=999), prescribe(moved, GDP, max_steps=999)
    assert new.bound == pytest.approx(old.bound * (t / s) ** 2, rel=1e-9)
    assert new.clip == pytest.approx(old.clip * t / s, rel=1e-6)
    assert new.step_size == pytest.approx(old.step_size * s**2 / t, rel=1e-6)
    assert new.smoothing == pytest.approx(old.smoothing * s, rel=1e-6)


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


def test_the_table_of_bounds_over_the_number_of_directions() -> None:
    """The table of bounds over the number of directions at the paper's setting has the announced numbers.

    Smoothing is included, and evaluations are those of one record.
    """

    def best(evaluations: int, direction: str = "sphere") -> Prescription:
        cap = evaluations * PAPER.n
        found = prescribe(PAPER, GDP, max_evaluations=cap, direction=direction, directions_per_step="best")
        assert found.evaluations == PAPER.n * found.directions_per_step * found.steps <= cap
        return found

    assert best(155_200).bound <= 0.0027
    assert best(4_672).bound <= 0.0079
    assert prescribe(PAPER, GDP, max_steps=4_672, directions_per_step=32).bound <= 0.0028
    assert prescribe(PAPER, GDP, directions_per_step="best").bound <= 0.0020
    for evaluations, k in ((4_672, 4), (46_720, 16), (155_200, 32)):
        assert k / 1.5 <= best(evaluations).directions_per_step <= 1.5 * k


@pytest.mark.parametrize("direction", ["sphere", "rademacher", "frame"])
def test_the_best_number_of_directions_by_brute_force(direction: str) -> None:
    problem = Problem(n=2000, d=30, r=4)

    def bound(k: int | str) -> float:
        return prescribe(problem, GDP, max_evaluations=2000 * 900, direction=direction, directions_per_step=k).bound

    assert bound("best") <= 1.005 * min(bound(k) for k in range(1, 31))


def test_the_best_number_for_poisson_batches_and_for_the_last_iterate() -> None:
    def by_clt(rate: float, steps: int, _: object) -> float:
        return 2 / math.sqrt(math.log1p((GDP / rate) ** 2 / steps))

    cap = 46_720 * PAPER.n
    found = prescribe_poisson(PAPER, GDP, by_clt, max_evaluations=cap, directions_per_step="best")
    assert round(found.sample_rate * PAPER.n * found.directions_per_step * found.steps) == found.evaluations <= cap
    for k in (1, 16, 1024):
        other = prescribe_poisson(PAPER, GDP, by_clt, max_evaluations=cap, directions_per_step=k)
        assert found.bound <= other.bound * 1.005
    with_pl = dataclasses.replace(PAPER, pl=0.05)
    last = prescribe_last_iterate(with_pl, GDP, schedule="shrinking", max_evaluations=cap, directions_per_step="best")
    for k in (1, 4, 256):
        other = prescribe_last_iterate(with_pl, GDP, schedule="shrinking", max_evaluations=cap, directions_per_step=k)
        assert last.bound <= other.bound * 1.01
    assert last.evaluations == PAPER.n * last.directions_per_step * last.steps <= cap


def test_an_impossible_number_of_directions_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match=r"^directions_per_step must be an integer"):
        prescribe(PAPER, GDP, directions_per_step="most")
    with pytest.raises(PreconditionError, match=r"^dpgd-0th has one direction a step; got directions_per_step = 2"):
        prescribe(PAPER, GDP, directions_per_step=2, algorithm="dpgd-0th")
    with pytest.raises(PreconditionError, match=r"^max_evaluations >= n directions_per_step is required"):
        prescribe(PAPER, GDP, directions_per_step=2, max_evaluations=PAPER.n)


def test_fast() -> None:
    prescribe(PAPER, GDP)
    start = time.perf_counter()
    prescribe(PAPER, GDP)
    prescribe(PAPER, GDP, max_steps=4672)
    prescribe_last_iterate(dataclasses.replace(PAPER, pl=0.05), GDP, schedule="shrinking", max_steps=4672)
    assert time.perf_counter() - start < 3
