"""The sharpened theorem without a Lipschitz constant: what a problem takes in its place, the suprema of the proof
against quadrature, and certificates that must agree where two assumptions say the same."""

import math
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from benchmarks.problems.hardest import hardest
from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.theory.calculate import calculate
from dpzero_theory.theory.problem import Problem
from dpzero_theory.theory.sharp.certificate import certificate, prescribe
from dpzero_theory.theory.sharp.constants import LAWS
from dpzero_theory.theory.sharp.high_probability import RunParameters, certify_run
from dpzero_theory.theory.sharp.moments import suprema

GDP = float(gdp_from_epsilon(2, 1e-6))
PAPER: dict[str, Any] = {"n": 10_000, "d": 2000, "r": 8.178}
STEP: dict[str, Any] = {"step_size": 0.003, "steps": 20_000, "clip": 3.0, "smoothing": 1e-6, "noise_std": 0.2}


def test_exactly_one_bound_on_gradients_is_taken() -> None:
    for both in (
        {"lipschitz": 1.0, "gradient_moment": (2.0, 1.0)},
        {"lipschitz": 1.0, "mean_excess": (1.0, 0.1)},
        {"gradient_moment": (2.0, 1.0), "mean_excess": (1.0, 0.1)},
    ):
        with pytest.raises(ValueError, match=r"^only one of lipschitz, gradient_moment and mean_excess"):
            Problem(**PAPER, **both)
    for name, value in (
        ("lipschitz", math.inf),
        *(("gradient_moment", bad) for bad in ((2, math.nan), (1.9, 1), (65, 1), (2, 0), (2, "1"), (2,), 2.0)),
        *(("mean_excess", bad) for bad in ((0, 1), (1, -1e-9), (math.inf, 1), [1, 1])),
    ):
        with pytest.raises(ValueError, match=f"{name} must be"):
            Problem(**PAPER, **{name: value})
    assert Problem(**PAPER).lipschitz == 1
    assert Problem(**PAPER, gradient_moment=(2, 9.0)).gradient_unit == 3


@pytest.mark.parametrize(("law", "d"), [("gaussian", 10**6), ("sphere", 3), ("sphere", 40), ("frame", 3)])
@pytest.mark.parametrize("power", [2.0, 7.5])
def test_the_suprema_are_those_of_quadrature(law: str, d: int, power: float) -> None:
    r = 2.5

    def expectation(function: Any, low: float) -> float:
        if law == "gaussian":
            scale = math.sqrt(2 / math.pi)
            return float(quad(lambda v: function(v) * scale * math.exp(-v * v / 2), low, low + 15)[0])
        norm = quad(lambda a: math.sin(a) ** (d - 2), 0, math.pi / 2)[0]
        end = math.acos(min(low / math.sqrt(d), 1.0))
        return float(quad(lambda a: function(math.sqrt(d) * math.cos(a)) * math.sin(a) ** (d - 2) / norm, 0, end)[0])

    def weight(v: float) -> float:
        return v * v + (r - 1) * (1.0 if law == "gaussian" else (d - v * v) / (d - 1))

    def beta(x: float) -> float:
        return expectation(lambda v: (v - x) * v, x)

    def omega(x: float) -> float:
        return math.sqrt(expectation(lambda v: (v - x) ** 2 * weight(v), x))

    end = 6.0 if law == "gaussian" else math.sqrt(d) - 1e-6
    for function, found in zip((beta, omega), suprema(d, r, law, 1, power), strict=True):

        def lost(x: float, function: Any = function) -> float:
            return float(-(x ** (power - 1)) * function(x))

        start = min(np.linspace(0.01, end, 60), key=lost)
        best = minimize_scalar(lost, bounds=(max(start - 0.2, 1e-3), min(start + 0.2, end)))
        assert 1 - 1e-8 <= found / -float(best.fun) <= 1 + (power - 1) / 3000


def test_the_suprema_of_many_directions_are_a_quarter_and_27_of_256() -> None:
    for law in LAWS:
        second, fourth = (suprema(10**9, 8.178, law, 2**16, power) for power in (2.0, 4.0))
        assert second[0] == pytest.approx(0.25, rel=2e-3)
        assert fourth[0] == pytest.approx(27 / 256, rel=3e-3)


@pytest.mark.parametrize("law", LAWS)
def test_no_excess_is_a_lipschitz_constant(law: str) -> None:
    for rate in (1.0, 0.1):
        at = {**STEP, "direction": law, "sample_rate": rate}
        bounded = certificate(Problem(**PAPER, lipschitz=2.0), **at)
        assert certificate(Problem(**PAPER, mean_excess=(2.0, 0.0)), **at) == bounded
        more = [certificate(Problem(**PAPER, mean_excess=(2.0, x)), **at).bound for x in (0.0, 1e-4, 1e-2, 0.1)]
        assert sorted(set(more)) == more


@pytest.mark.parametrize("law", LAWS)
def test_a_lipschitz_constant_says_more_than_its_moments(law: str) -> None:
    at = {**STEP, "direction": law}
    bounds = [
        certificate(Problem(**PAPER, **given), **at).bound
        for given in ({"lipschitz": 1.0}, {"gradient_moment": (4, 1.0)}, {"gradient_moment": (2, 1.0)})
    ]
    assert bounds == sorted(bounds)


@pytest.mark.parametrize("given", [{"gradient_moment": (2, 1.0)}, {"mean_excess": (1.0, 0.01)}])
def test_certificates_have_the_unit_of_the_gradient_squared(given: dict[str, tuple[float, float]]) -> None:
    factor = 7.0
    (name, (first, second)), *_ = given.items()
    scaled = (first, second * factor**2) if name == "gradient_moment" else (first * factor, second * factor)
    small = prescribe(Problem(**PAPER, **given), GDP, max_steps=5000)  # type: ignore[arg-type]
    large = prescribe(Problem(**PAPER, gap=factor**2, **{name: scaled}), GDP, max_steps=5000)  # type: ignore[arg-type]
    assert large.bound == pytest.approx(factor**2 * small.bound, rel=1e-9)
    assert large.clip == pytest.approx(factor * small.clip, rel=1e-9)
    assert large.trivial_bound == pytest.approx(factor**2 * small.trivial_bound, rel=1e-12)
    assert any("no Lipschitz constant" in note for note in small.notes)


def test_results_that_need_a_lipschitz_constant_are_refused() -> None:
    problem = Problem(**PAPER, gradient_moment=(2, 1.0), pl=0.1)
    answers, unmet = calculate(problem, 2, 1e-6, calibrations=["exact"], max_steps=1000)
    assert [answer.result.id for answer in answers] == ["theorem-3-sharp"]
    answers, unmet = calculate(problem, 2, 1e-6, calibrations=["exact"], results=["theorem-3", "corollary-1"])
    assert not answers
    assert [item.reason.startswith("lipschitz must be given") for item in unmet] == [True, True]
    with pytest.raises(PreconditionError, match=r"^lipschitz must be given"):
        certify_run(problem, RunParameters(**STEP), failure=0.05)
    with pytest.raises(PreconditionError, match=r"^lipschitz must be given"):
        hardest(problem, step_size=0.003, steps=100, clip=1.0, noise_std=0.1)
