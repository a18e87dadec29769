"""Tests of pairs of finite laws that bracket a known one, a Gaussian release, from above and below."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from dpzero_theory.privacy.laws.finite import FinitePair, Profile, region
from dpzero_theory.privacy.gaussian import delta_from_gdp


def gaussian(mu, step, cut=0.0, error=0.0):
    """Returns the profile of N(mu, 1) against N(0, 1), at losses in steps of `step`.

    It has the exact delta at each loss, and the probabilities of the best events. `cut` and `error` are its stated
    errors, of delta and of the probabilities.
    """
    loss = np.arange(0, 12 * mu, step)
    x = loss / mu + mu / 2
    return Profile(loss, delta_from_gdp(loss, mu), ndtr(mu - x), ndtr(-x), cut, error)


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_one_release_is_bracketed_and_exact_at_its_losses(mu):
    side = gaussian(mu, 0.2 * mu)
    pair = region(side, side)
    for epsilon in (0.0, 0.5 * mu, 1.03 * mu, 4.3 * mu):
        exact = float(delta_from_gdp(epsilon, mu))
        lower, value, upper = pair.delta(epsilon)
        assert lower <= exact * (1 + 1e-11) <= upper * (1 + 1e-10)
        assert lower <= value <= upper < lower * (1.25 if epsilon > 4 * mu else 1.02)
    at = side.loss[7]
    assert pair.delta(at)[2] == pytest.approx(float(delta_from_gdp(at, mu)), rel=1e-10)


def test_a_pair_trimmed_is_as_good_but_for_its_share():
    side = gaussian(1.0, 0.05)
    pair = region(side, side)
    short = pair.trimmed(1e-6)
    assert short.largest_loss < 6 < pair.largest_loss
    assert pair.infinite < short.infinite <= 1e-6 * 1.01
    assert np.sum(short.mass) + short.infinite == pytest.approx(1, abs=1e-12)
    for epsilon in (0.0, 1.0, 3.0):
        exact = float(delta_from_gdp(epsilon, 1.0))
        assert pair.delta(epsilon)[0] - 2e-6 <= short.delta(epsilon)[0] <= exact
        assert exact <= short.delta(epsilon)[2] <= pair.delta(epsilon)[2] + 1e-6


def test_both_laws_are_laws():
    side = gaussian(1.0, 0.15)
    pair = region(side, side)
    assert np.sum(pair.mass) + pair.infinite == pytest.approx(1, abs=1e-12)
    assert np.sum(pair.mass * np.exp(-pair.loss)) <= 1 + 1e-12
    assert np.sum(pair.p) == pytest.approx(1, abs=1e-12)
    assert np.sum(pair.q) == pytest.approx(1, abs=1e-12)
    assert np.all(np.diff(pair.p / pair.q) < 0)


def test_what_is_cut_and_uncertain_widens_the_bracket():
    exact, (low, _, high) = float(delta_from_gdp(1.0, 1.0)), region(*2 * [gaussian(1.0, 0.1)]).delta(1.0)
    lower, _, upper = region(*2 * [gaussian(1.0, 0.1, cut=1e-3, error=1e-3)]).delta(1.0)
    assert upper == pytest.approx(high + 1e-3, rel=1e-6)
    assert lower < low - 1e-3 * exact


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("error", [0.3, 1.0, 2.0, 1e20])
def test_an_error_bound_that_says_nothing_gives_laws_that_say_nothing(error):
    """A lower end above 1 came from such error bounds once, where noise is small and epochs are long."""
    pair = region(*2 * [gaussian(1.0, 0.1, error=error)])
    for law in (pair.p, pair.q):
        assert np.all((law > 0) & (law <= 1 + 1e-12))
        assert np.sum(law) == pytest.approx(1, abs=1e-12)
    assert 0 <= pair.delta(1.0)[0] <= float(delta_from_gdp(1.0, 1.0))


def test_a_difference_within_the_rounding_of_the_weights_is_no_lower_end():
    """The difference of two weights is rounded by about 1e-16 of them, so that a gain of that size may be none."""
    p = np.array([0.5, 0.5])
    q = 0.5 * math.exp(-1.0) * (1 - 3e-16)
    q = np.array([q, 1 - q])
    loss = np.log(p / q)[::-1]
    pair = FinitePair(loss, p[::-1], 0.0, p, q)
    assert pair.delta(1.0)[0] == 0
    assert pair.delta(0.9)[0] == pytest.approx(0.5 - math.exp(0.9) * q[0], rel=1e-10)


def test_events_out_of_order_are_joined():
    side = gaussian(1.0, 0.1)
    rng = np.random.default_rng(5)
    worse = Profile(side.loss, side.above, side.p * (1 - 0.3 * rng.random(len(side.p))), side.q, 0.0, 0.0)
    pair = region(worse, worse)
    assert np.all(np.diff(pair.p / pair.q) < 0)
    assert pair.delta(1.0)[0] < float(delta_from_gdp(1.0, 1.0))


@pytest.mark.parametrize("tau", [0.3, 4.0])
def test_cells_keep_masses_and_move_losses_by_less_than_one(tau):
    side = gaussian(1.0, 0.15)
    pair = region(side, side)
    width = 0.037
    cells = pair.cells(tau, width, -1e9)
    at = (cells.first + np.arange(len(cells.dominating))) * width
    scale = np.exp(cells.log_scale)
    law = cells.dominating * np.exp(-tau * at) * scale
    assert np.sum(law) == pytest.approx(np.sum(pair.mass), rel=1e-12)
    assert np.sum(law * np.exp(-at)) == pytest.approx(np.sum(pair.mass * np.exp(-pair.loss)), rel=1e-9)
    assert np.sum(scale * cells.nearest_p * np.exp(-tau * at)) == pytest.approx(1, abs=1e-10)
    assert np.sum(scale * cells.nearest_q * np.exp(-(1 + tau) * at)) == pytest.approx(1, abs=1e-10)
    level = np.log(pair.p / pair.q)
    mean = float(scale * cells.nearest_p @ (np.exp(-tau * at) * at))
    assert abs(mean - float(pair.p @ level)) < width / 2
    raised = pair.cells(tau, width, 0.0)
    assert raised.first * width > -width


def test_a_loss_beyond_all_is_never_forgotten():
    pair = FinitePair(np.array([0.0, 1.0]), np.array([0.6, 0.3]), 0.1, np.array([1.0]), np.array([1.0]))
    assert pair.delta(50.0)[2] == pytest.approx(0.1, rel=1e-9)
    assert pair.delta(0.0)[2] == pytest.approx(0.1 + 0.3 * -math.expm1(-1), rel=1e-9)
