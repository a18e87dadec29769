"""Tests of private selection: the law of the best of K runs, computed exactly, against the bound."""

import math
import random

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.selection import Runs, calibrate_selection, selection_epsilon
from dpzero_theory.privacy.step import step_of
from tests.privacy.oracle import made

LAWS = [Runs(8.0), Runs(8.0, 0.0), Runs(8.0, 0.5), Runs(3.0, 4.0), Runs(8.0, math.inf), Runs(0.5, math.inf)]


def probabilities(runs: Runs, most: int = 4000) -> np.ndarray:
    """Returns P(K = k) for k = 0, ..., `most`, with K the number of runs, from the laws' definitions."""
    k = np.arange(most + 1)
    if runs.shape == math.inf:
        return stats.poisson.pmf(k, runs.mean)
    if runs.shape == 0:
        return stats.logser.pmf(k, 1 - runs.gamma)
    found = stats.nbinom.pmf(k, runs.shape, runs.gamma)
    found[0] = 0.0
    return found / found.sum()


def derivative(runs: Runs, x: np.ndarray) -> np.ndarray:
    """Returns the derivative of f(x) = E x^K, where K is the random number of runs, term by term."""
    p = probabilities(runs)
    p = p[: np.flatnonzero(p > 1e-20)[-1] + 1]
    return np.polynomial.polynomial.polyval(x, (p * np.arange(len(p)))[1:])


@pytest.mark.parametrize("runs", LAWS)
def test_the_mean_is_the_mean_and_draws_have_the_law(runs: Runs) -> None:
    p = probabilities(runs)
    assert p.sum() == pytest.approx(1, abs=1e-9)
    assert float(p @ np.arange(len(p))) == pytest.approx(runs.mean, rel=1e-8)
    source = random.Random(3)
    found = np.bincount([runs.draw(source) for _ in range(20_000)], minlength=12)
    assert found.sum() == 20_000
    cells = [k for k in range(12) if 20_000 * p[k] > 10]
    seen = np.append(found[cells], 20_000 - found[cells].sum())
    expected = 20_000 * np.append(p[cells], 1 - p[cells].sum())
    assert stats.chisquare(seen, expected * 20_000 / expected.sum()).pvalue > 1e-6


def exact_delta(runs: Runs, shift: float, epsilon: float) -> float:
    """Returns the divergence of the best of K draws of N(shift, 1) against those of N(0, 1), by quadrature; the score
    is a number's size or its opposite, and the larger one of both ways is returned."""
    y = np.linspace(-12, 14, 26_001)
    worst = 0.0
    for sign in (1, -1):
        laws = [stats.norm.pdf(y - mean) * derivative(runs, ndtr(sign * (y - mean))) for mean in (shift, 0.0)]
        for first, second in (laws, laws[::-1]):
            worst = max(worst, float(np.trapezoid(np.maximum(first - math.exp(epsilon) * second, 0), y)))
    return worst


@pytest.mark.parametrize("runs", LAWS)
@pytest.mark.parametrize("shift", [0.1, 0.5])
def test_no_selection_of_gaussian_outcomes_costs_more_than_stated(runs: Runs, shift: float) -> None:
    for delta in (1e-2, 1e-4):
        epsilon = selection_epsilon([made(1 / shift)], delta, runs).upper
        assert exact_delta(runs, shift, epsilon) <= delta


def test_the_exponent_is_not_one_less() -> None:
    """Of three outcomes of a pure mechanism, each within e^e of the neighbour's, the best of many costs nearly 3 e."""
    runs, e = Runs(1000.0), 0.5

    def selected(middle: float, best: float) -> float:
        """Returns the probability that the middle outcome is released, from those of two outcomes in one run; for the
        geometric law f(x) = gamma x/(1 - (1 - gamma) x)."""
        above, below = (runs.gamma * x / (1 - (1 - runs.gamma) * x) for x in (1 - best, 1 - best - middle))
        return above - below

    rare, better = 1e-6, 0.3
    cost = math.log(selected(rare * math.exp(e), better * math.exp(-e)) / selected(rare, better))
    assert 0.99 * 3 * e < cost <= 3 * e
    pure = selection_epsilon([made(1 / e, mechanism="laplace")], 1e-9, runs)
    assert cost <= pure.upper <= 3 * e * (1 + 1e-3)


def test_an_audit_of_many_selections_stays_below() -> None:
    """By Monte Carlo: the event is that the released number exceeds a threshold, under both data sets."""
    runs, shift, trials = Runs(10.0), 0.5, 40_000
    rng = np.random.default_rng(2)
    best = []
    for mean in (shift, 0.0):
        numbers = rng.geometric(runs.gamma, trials)
        best.append(np.array([rng.normal(mean, 1, k).max() for k in numbers]))
    bound = selection_epsilon([made(1 / shift)], 1e-3, runs).upper
    audited = 0.0
    for cut in (1.0, 2.0, 2.5, 3.0):
        p, q = (int((numbers > cut).sum()) for numbers in best)
        low = stats.beta.ppf(1e-4, p, trials - p + 1)
        high = stats.beta.ppf(1 - 1e-4, q + 1, trials - q)
        audited = max(audited, math.log(max(low - 1e-3, 1e-12) / high))
    assert 0.5 < audited < bound


def test_calibrated_noise_meets_the_target_and_costs_less_than_composition() -> None:
    run = {"steps": 200, "sampling": "full", "relation": "add-remove"}
    found = calibrate_selection(Runs(10.0), target_epsilon=2.0, target_delta=1e-5, **run)
    history = [step_of(found.value, mechanism="discrete-gaussian", **run)]
    assert 1.99 < selection_epsilon(history, 1e-5, Runs(10.0)).upper <= 2.0
    less = [step_of(found.lower, mechanism="discrete-gaussian", **run)]
    assert selection_epsilon(less, 1e-5, Runs(10.0)).upper > 2.0
    composed = step_of(found.value, mechanism="discrete-gaussian", **(run | {"steps": 2000}))
    assert delta_of_history([composed], 2.0).lower > 1e-5


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((1.0,), "mean"), ((0.5,), "mean"), ((math.nan,), "mean"), ((5.0, -1.0), "shape"), ((0.0, math.inf), "mean")],
)
def test_a_law_that_is_none_is_refused(arguments: tuple[float, ...], name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be a finite number"):
        Runs(*arguments)


@pytest.mark.parametrize(
    ("mean", "shape"), [(100, -0.95), (1e4, -0.9), (1.5, 1e3), (2, 0), (2, 1e-300), (2, -1e-17), (1 + 1e-13, 1)]
)
def test_gamma_has_the_mean_at_any_shape(mean, shape):
    """The parameter gamma that is found gives the stated mean number of runs at any shape; the mean is from mpmath."""
    gamma = Runs(mean, shape).gamma
    assert 0 < gamma < 1
    with mpmath.workdps(400):
        g, eta = mpmath.mpf(gamma), mpmath.mpf(shape)
        exact = (1 / g - 1) / -mpmath.log(g) if abs(shape) < 1e-15 else eta * (1 - g) / (g * (1 - g**eta))
    assert float(exact) == pytest.approx(mean, rel=1e-12)


def test_a_mean_that_no_gamma_has_is_refused():
    with pytest.raises(ValueError, match=r"^mean must be below 2\.01174 with shape -0\.999; got 100$"):
        Runs(100, -0.999)
    assert Runs(math.nextafter(1, 2), 1e3).draw(random.Random(1)) == 1
