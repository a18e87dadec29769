"""Tests of examples/private_search.py: the law of the best of K runs, computed exactly, against the bound."""

import math
import random
import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.risk import calibrate_risk
from dpzero_theory.privacy.sampling import FullBatch
from dpzero_theory.privacy.stated import approximate
from dpzero_theory.privacy.step import Step
from tests.privacy.oracle import made

search = runpy.run_path(str(Path(__file__).parents[2] / "examples/private_search.py"))
draw_runs, selection_epsilon = search["draw_runs"], search["selection_epsilon"]


def test_draws_have_the_law() -> None:
    source, p = random.Random(3), stats.geom.pmf(np.arange(40), 1 / 8)
    found = np.bincount([draw_runs(8.0, source) for _ in range(20_000)], minlength=40)
    cells = [k for k in range(40) if 20_000 * p[k] > 10]
    seen = np.append(found[cells], 20_000 - found[cells].sum())
    expected = 20_000 * np.append(p[cells], 1 - p[cells].sum())
    assert stats.chisquare(seen, expected).pvalue > 1e-6
    assert draw_runs(1, source) == 1


def exact_delta(mean: float, shift: float, epsilon: float) -> float:
    """Returns the divergence of the best of K draws of N(shift, 1) against those of N(0, 1), by quadrature; the score
    is a number's size or its opposite, and the larger one of both ways is returned."""
    y, worst, k = np.linspace(-12, 14, 26_001), 0.0, np.arange(1, 200 * round(mean))
    weights = stats.geom.pmf(k, 1 / mean) * k
    for sign in (1, -1):
        best = [np.polynomial.polynomial.polyval(ndtr(sign * (y - at)), weights) for at in (shift, 0.0)]
        laws = [stats.norm.pdf(y - at) * one for at, one in zip((shift, 0.0), best, strict=True)]
        for first, second in (laws, laws[::-1]):
            worst = max(worst, float(np.trapezoid(np.maximum(first - math.exp(epsilon) * second, 0), y)))
    return worst


@pytest.mark.parametrize("mean", [1.5, 3.0, 8.0])
@pytest.mark.parametrize("shift", [0.1, 0.5])
def test_no_selection_of_gaussian_outcomes_costs_more_than_stated(mean: float, shift: float) -> None:
    for delta in (1e-2, 1e-4):
        epsilon = selection_epsilon(made(1 / shift), delta, mean)
        assert exact_delta(mean, shift, epsilon.upper) <= delta < exact_delta(mean, shift, epsilon.lower)


def test_the_exponent_is_not_one_less() -> None:
    """Of three outcomes of a pure mechanism, each within e^e of the neighbour's, the best of many costs nearly 3 e."""
    mean, e = 1000.0, 0.5

    def selected(middle: float, best: float) -> float:
        """Returns the probability that the middle outcome is released, from those of two outcomes in one run; for the
        geometric law f(x) = x/(mean - (mean - 1) x)."""
        above, below = (x / (mean - (mean - 1) * x) for x in (1 - best, 1 - best - middle))
        return above - below

    rare, better = 1e-6, 0.3
    cost = math.log(selected(rare * math.exp(e), better * math.exp(-e)) / selected(rare, better))
    assert 0.99 * 3 * e < cost <= 3 * e
    pure = selection_epsilon(made(1 / e, mechanism="laplace"), 1e-9, mean).value
    assert cost <= pure <= 3 * e * (1 + 1e-3)


def test_what_one_run_shows_for_certain_the_best_of_eight_shows_eight_times_as_often() -> None:
    """An outcome that shows the record has a chance of 1e-4 in a run, and may have the highest score."""
    shown = approximate(0.5, 1e-4, relation="add-remove")
    assert selection_epsilon(shown, 9e-4, 8).upper > 1.5
    with pytest.raises(ValueError, match=r"^delta must be above 0\.0001, what this history shows for certain"):
        selection_epsilon(shown, 7e-4, 8)


def test_calibrated_noise_meets_the_target_and_costs_less_than_composition() -> None:
    one = Step(1.0, FullBatch(), "add-remove", "discrete-gaussian", steps=200)

    def cost(run: Step) -> Bracket:
        found: Bracket = selection_epsilon(run, 1e-5, 10)
        return found

    found = calibrate_risk(cost, 2.0, one.with_noise).value
    assert 1.99 < cost(one.with_noise(found)).upper <= 2.0
    assert cost(one.with_noise(found * (1 - 2e-4))).upper > 2.0
    assert delta_of_history(one.with_noise(found) * 10, 2.0).lower > 1e-5
