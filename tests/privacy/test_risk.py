"""An attacker's gain, against closed forms of Gaussian releases, quadrature of one step, and simple attacks."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import norm

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.risk import advantage, calibrate_risk, success, true_positive_rate
from dpzero_theory.privacy.sampling import (
    CyclicPoisson,
    FixedSize,
    FullBatch,
    Poisson,
    RandomAllocation,
    Sampling,
    TruncatedPoisson,
)
from dpzero_theory.privacy.step import History, Step

WIDE = 1.1e-3
"""The relative width that a bracket may have in these tests."""


def holds(found: Bracket, exact: float) -> None:
    assert found.lower <= exact * (1 + 1e-12)
    assert exact * (1 - 1e-12) <= found.upper == found.value
    assert found.upper - found.lower <= WIDE * found.upper


def plain(mu: float) -> History:
    return Step(math.sqrt(10) / mu, FullBatch(), "add-remove") * 10


@pytest.mark.parametrize("mu", [0.05, 0.7, 2.0, 5.0])
def test_full_batches_have_the_risk_of_a_gaussian_shift(mu: float) -> None:
    """T releases with noise s are a test of N(0, 1) against N(mu, 1), mu = sqrt(T)/s (Dong, Roth and Su 2022)."""
    history = plain(mu)
    holds(advantage(history), 2 * ndtr(mu / 2) - 1)
    for rate in (1e-12, 1e-4, 0.05, 0.5, 0.99):
        holds(true_positive_rate(history, rate), ndtr(ndtri(rate) + mu))
    for prior in (0.5, 0.2, 0.999):
        odds = math.log((1 - prior) / prior)
        right = prior * ndtr(mu / 2 - odds / mu) + (1 - prior) * ndtr(mu / 2 + odds / mu)
        holds(success(history, prior), right)


@pytest.mark.parametrize(("s", "q"), [(1.0, 0.3), (0.5, 0.05)])
def test_one_sampled_step_has_the_risk_of_quadrature(s: float, q: float) -> None:
    """P = (1-q) N(0) + q N(1) and Q = (1-q) N(0) + q N(-1), and both directions are alike."""
    history = Step(s, Poisson(q), "replace-one") * 1

    def density(x: float, centre: int) -> float:
        return float((1 - q) * norm.pdf(x, 0, s) + q * norm.pdf(x, centre, s))

    def beyond(x: float, centre: int) -> float:
        return float((1 - q) * norm.sf(x, 0, s) + q * norm.sf(x, centre, s))

    distance = quad(lambda x: abs(density(x, 1) - density(x, -1)) / 2, -12, 12, limit=400, epsabs=1e-12, points=[0])[0]
    found = advantage(history)
    assert found.lower - 1e-9 <= distance <= found.upper + 1e-9
    for rate in (1e-5, 0.01, 0.4, 0.9):
        cut = brentq(lambda x, rate=rate: beyond(x, -1) - rate, -20, 20, xtol=1e-13)
        holds(true_positive_rate(history, rate), beyond(cut, 1))


@pytest.mark.parametrize("mu", [0.05, 0.7, 2.0, 5.0])
@pytest.mark.parametrize("rate", [1e-4, 0.01, 0.3])
def test_a_few_deltas_give_valid_ends(mu: float, rate: float) -> None:
    """The upper end is near the exact rate after three epsilons, and the lower end after five."""
    exact = ndtr(ndtri(rate) + mu)
    for looks in (1, 2, 3, 5, 9):
        one = true_positive_rate(plain(mu), rate, looks=looks)
        assert one.lower * (1 - 1e-12) <= exact <= one.upper * (1 + 1e-12)
        if looks >= 3:
            assert one.upper <= exact * (1 + 1e-6)
        if looks >= 5:
            assert one.lower >= exact * 0.96


def test_risk_is_at_least_that_of_guessing_and_falls_with_noise() -> None:
    loud, quiet = (Step(s, CyclicPoisson(1 / 8, 2), "add-remove") * 16 for s in (20.0, 0.8))
    for measure in (advantage, partial(success, prior=0.3), partial(true_positive_rate, false_positive_rate=0.1)):
        assert measure(loud).upper < measure(quiet).lower
    assert success(loud, 0.3).lower >= 0.7
    assert true_positive_rate(loud, 0.1).lower >= 0.1
    assert true_positive_rate(quiet, 1.0).upper == 1


@pytest.mark.parametrize(
    ("measure", "target"),
    [
        (advantage, 0.1),
        (partial(success, prior=0.01), 0.991),
        (partial(true_positive_rate, false_positive_rate=0.01), 0.03),
    ],
)
def test_calibrated_noise_meets_the_target_and_a_thousandth_less_does_not(measure: object, target: float) -> None:
    def history(noise: float) -> History:
        return Step(noise, Poisson(0.05), "add-remove") * 50

    found = calibrate_risk(measure, target, history)
    assert found.lower < found.value == found.upper <= found.lower * (1 + WIDE)
    assert measure(history(found.value)).upper <= target < measure(history(found.value * 0.999)).lower


@pytest.mark.parametrize(
    ("ask", "values", "named"),
    [
        (lambda target: calibrate_risk(advantage, target, plain), (0, 1, -0.1, math.nan, "0.1"), "target must be"),
        (lambda rate: true_positive_rate(plain(1), rate), (0, 1.5, -1, math.nan), "false_positive_rate must be"),
        (lambda prior: success(plain(1), prior), (0, 1, math.nan), "prior must be"),
        (lambda looks: true_positive_rate(plain(1), 0.01, looks=looks), (0,), "looks must be"),
    ],
)
def test_a_number_outside_its_range_is_refused(ask: Any, values: tuple[Any, ...], named: str) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"^{named}"):
            ask(value)


def test_a_target_that_needs_no_noise_is_refused() -> None:
    with pytest.raises(PreconditionError, match=r"^target must be below the risk of little noise"):
        calibrate_risk(advantage, 0.5, lambda noise: Step(noise, Poisson(0.01), "add-remove") * 3)


@pytest.mark.parametrize("relation", ["add-remove", "zero-out"])
@pytest.mark.parametrize(("s", "q", "rate"), [(0.5, 0.1, 0.5), (0.5, 0.1, 0.9), (1.0, 0.3, 0.05), (0.8, 0.02, 0.99)])
def test_the_true_positive_rate_is_that_of_the_better_likelihood_ratio_test(
    s: float, q: float, rate: float, relation: str
) -> None:
    """The best attacks on one Poisson step are half-lines, of large outputs for the record, of small ones against it.

    By the larger delta of both directions at every epsilon the rate would be 0.568 in the first case, which no attack
    reaches: these two reach 0.548 and 0.552.
    """
    for_it = (1 - q) * rate + q * norm.sf(norm.isf(rate, 0, s), 1, s)
    cut = brentq(lambda x: (1 - q) * norm.cdf(x, 0, s) + q * norm.cdf(x, 1, s) - rate, -20, 20, xtol=1e-13)
    holds(true_positive_rate(Step(s, Poisson(q), relation) * 1, rate), max(for_it, norm.cdf(cut, 0, s)))


def test_calibration_has_the_noise_of_the_better_likelihood_ratio_test() -> None:
    def best(s: float) -> float:
        cut = brentq(lambda x: 0.9 * norm.cdf(x, 0, s) + 0.1 * norm.cdf(x, 1, s) - 0.5, -20, 20, xtol=1e-13)
        return max(0.45 + 0.1 * norm.sf(0, 1, s), norm.cdf(cut, 0, s))

    found = calibrate_risk(
        partial(true_positive_rate, false_positive_rate=0.5), 0.54, lambda s: Step(s, Poisson(0.1), "add-remove") * 1
    )
    exact = brentq(lambda s: best(s) - 0.54, 0.1, 10, xtol=1e-13)
    assert found.lower <= exact <= found.upper <= found.lower * (1 + 1e-2)


def test_several_steps_lose_no_more_than_the_better_direction() -> None:
    """Of 12 steps the sum of the log-likelihood ratios, on a fine grid, gives the best attacks in both directions."""
    s, q, steps, width = 0.7, 0.2, 12, 1e-3
    x = np.arange(-9 * s, 1 + 9 * s, 1e-4)
    ratio = np.log1p(q * np.expm1((2 * x - 1) / (2 * s * s)))
    low = math.floor(ratio.min() / width)
    index = np.round(ratio / width).astype(int) - low
    q_law = np.bincount(index, norm.pdf(x, 0, s) * 1e-4)
    p_law = np.bincount(index, ((1 - q) * norm.pdf(x, 0, s) + q * norm.pdf(x, 1, s)) * 1e-4)
    size = 2 ** math.ceil(math.log2(len(p_law) * steps))
    p, q_ = (np.fft.irfft(np.fft.rfft(law, size) ** steps, size) for law in (p_law, q_law))
    for rate in (0.05, 0.4, 0.8):
        tests = [
            np.interp(rate, np.cumsum(one[order]), np.cumsum(other[order]))
            for one, other, order in ((q_, p, slice(None, None, -1)), (p, q_, slice(None)))
        ]
        found = true_positive_rate(Step(s, Poisson(q), "add-remove") * steps, rate)
        assert found.lower - 1e-3 <= max(tests) <= found.upper + 1e-3
        assert found.upper - found.lower <= 1e-3


@pytest.mark.parametrize("sampling", [RandomAllocation(1 / 20), FixedSize(0.1), TruncatedPoisson(0.1, 12, 100)])
def test_other_samplings_have_valid_ends(sampling: Sampling) -> None:
    """The lower end is above guessing and below the upper end."""
    history = Step(0.8, sampling, "add-remove") * 20
    for rate in (0.01, 0.5):
        found = true_positive_rate(history, rate, looks=8)
        assert rate < found.lower < found.upper < 1
