"""Tests of pairs of finite laws that bracket a known one, a Gaussian release, from above and below."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from dpzero_theory.privacy.gaussian import delta_from_gdp
from dpzero_theory.privacy.laws.finite import FinitePair, Profile, region
from dpzero_theory.privacy.laws.law import Span
from tests.privacy.oracle import three


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
        lower, value, upper = three(pair, epsilon)
        assert lower <= exact * (1 + 1e-11) <= upper * (1 + 1e-10)
        assert lower <= value <= upper < lower * (1.25 if epsilon > 4 * mu else 1.02)
    at = side.loss[7]
    assert three(pair, at)[2] == pytest.approx(float(delta_from_gdp(at, mu)), rel=1e-10)


def test_both_laws_are_laws():
    side = gaussian(1.0, 0.15)
    pair = region(side, side)
    assert np.sum(pair.mass) + pair.infinite == pytest.approx(1, abs=1e-12)
    assert np.sum(pair.mass * np.exp(-pair.loss)) <= 1 + 1e-12
    assert np.sum(pair.p) == pytest.approx(1, abs=1e-12)
    assert np.sum(pair.q) == pytest.approx(1, abs=1e-12)
    assert np.all(np.diff(pair.p / pair.q) < 0)


def test_what_is_cut_and_uncertain_widens_the_bracket():
    exact, (low, _, high) = float(delta_from_gdp(1.0, 1.0)), three(region(*2 * [gaussian(1.0, 0.1)]), 1.0)
    lower, _, upper = three(region(*2 * [gaussian(1.0, 0.1, cut=1e-3, error=1e-3)]), 1.0)
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
    assert 0 <= three(pair, 1.0)[0] <= float(delta_from_gdp(1.0, 1.0))


def test_events_out_of_order_are_joined():
    side = gaussian(1.0, 0.1)
    rng = np.random.default_rng(5)
    worse = Profile(side.loss, side.above, side.p * (1 - 0.3 * rng.random(len(side.p))), side.q, 0.0, 0.0)
    pair = region(worse, worse)
    assert np.all(np.diff(pair.p / pair.q) < 0)
    assert three(pair, 1.0)[0] < float(delta_from_gdp(1.0, 1.0))


@pytest.mark.parametrize("tau", [0.3, 4.0])
def test_cells_keep_masses_and_move_losses_by_less_than_one(tau):
    side = gaussian(1.0, 0.15)
    pair = region(side, side)
    width = 0.037
    cells = pair.cells(Span(40.0, 40.0), tau, width, -1e9)
    at = (cells.first + np.arange(len(cells.upper))) * width
    scale = np.exp(cells.log_scale)
    law = cells.upper * np.exp(-tau * at) * scale
    assert np.sum(law) == pytest.approx(np.sum(pair.mass), rel=1e-12)
    assert np.sum(law * np.exp(-at)) == pytest.approx(np.sum(pair.mass * np.exp(-pair.loss)), rel=1e-9)
    assert np.sum(scale * cells.p * np.exp(-tau * at)) == pytest.approx(1, abs=1e-10)
    assert np.sum(scale * cells.q * np.exp(-(1 + tau) * at)) == pytest.approx(1, abs=1e-10)
    level = np.log(pair.p / pair.q)
    mean = float(scale * cells.p @ (np.exp(-tau * at) * at))
    assert abs(mean - float(pair.p @ level)) < width / 2
    raised = pair.cells(Span(40.0, 40.0), tau, width, 0.0)
    assert raised.first * width > -width


def test_a_loss_beyond_all_is_never_forgotten():
    pair = FinitePair(np.array([0.0, 1.0]), np.array([0.6, 0.3]), 0.1, np.array([1.0]), np.array([1.0]))
    assert three(pair, 50.0)[2] == pytest.approx(0.1, rel=1e-9)
    assert three(pair, 0.0)[2] == pytest.approx(0.1 + 0.3 * -math.expm1(-1), rel=1e-9)
