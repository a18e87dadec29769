"""Laws with finitely many outcomes that bracket a known one, a Gaussian release, from above and below."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr

from dpzero_theory.privacy.gaussian import delta_from_gdp
from dpzero_theory.privacy.laws.finite import FinitePair, dominated, dominating
from tests.privacy.oracle import pair_delta


def half_lines(x, mu):
    """Returns the probabilities under both laws of the outputs above each of x, and, for negative losses, below."""
    return tuple(np.concatenate([ndtr(mean - x), ndtr(mean + x - mu)]) for mean in (mu, 0.0))


def gaussian(mu, step):
    """Returns the pairs below and above of the exact profile of N(mu, 1) against N(0, 1) at losses in steps of
    `step`, as one."""
    loss = np.arange(0, 12 * mu, step)
    x = loss / mu + mu / 2
    above, below = dominating(*2 * [(loss, delta_from_gdp(loss, mu))]), dominated(*half_lines(x, mu))
    return replace(above, p=below.p, q=below.q)


EXACT = float(delta_from_gdp(1.0, 1.0))


@pytest.mark.parametrize("mu", [0.1, 1.0, 3.0])
def test_one_release_is_bracketed_and_exact_at_its_losses(mu):
    pair = gaussian(mu, 0.2 * mu)
    for epsilon in (0.0, 0.5 * mu, 1.03 * mu, 1.4 * mu, 4.3 * mu):
        exact, (lower, upper) = float(delta_from_gdp(epsilon, mu)), pair_delta(pair, epsilon)
        assert lower <= exact * (1 + 1e-11) <= upper * (1 + 1e-10)
        assert upper < lower * (1.25 if epsilon > 4 * mu else 1.02)
    at = np.arange(0, 12 * mu, 0.2 * mu)[7]
    assert pair_delta(pair, at)[1] == pytest.approx(float(delta_from_gdp(at, mu)), rel=1e-10)


def test_both_laws_are_laws():
    pair = gaussian(1.0, 0.15)
    assert np.sum(pair.mass) + pair.infinite == pytest.approx(1, abs=1e-12)
    assert np.sum(pair.mass * np.exp(-pair.loss)) <= 1 + 1e-12
    assert (np.sum(pair.p), np.sum(pair.q)) == pytest.approx((1, 1), abs=1e-12)
    assert np.all(np.diff(pair.p / pair.q) < 0)


def test_events_out_of_order_are_joined():
    loss = np.arange(0, 12, 0.1)
    p = ndtr(0.5 - loss) * (1 - 0.3 * np.random.default_rng(5).random(len(loss)))
    pair = dominated(p, ndtr(-loss - 0.5))
    assert np.all(np.diff(pair.p / pair.q) < 0)
    assert pair_delta(pair, 1.0)[0] < EXACT


@pytest.mark.parametrize("tau", [0.3, 4.0])
def test_cells_keep_masses_and_move_losses_by_less_than_one(tau):
    pair, width, span = gaussian(1.0, 0.15), 0.037, 40.0
    cells = pair.cells(span, tau, width, -1e9)
    at = (cells.first + np.arange(len(cells.upper))) * width
    untilted = np.exp(cells.log_scale - tau * at)
    law, p, q = cells.upper * untilted, cells.p * untilted, cells.q * untilted * np.exp(-at)
    assert np.sum(law) == pytest.approx(np.sum(pair.mass), rel=1e-12)
    assert np.sum(law * np.exp(-at)) == pytest.approx(np.sum(pair.mass * np.exp(-pair.loss)), rel=1e-9)
    assert (np.sum(p), np.sum(q)) == pytest.approx((1, 1), abs=1e-10)
    assert abs(float(p @ at - pair.p @ np.log(pair.p / pair.q))) < width / 2
    assert pair.cells(span, tau, width, 0.0).first * width > -width


def test_a_loss_beyond_all_is_never_forgotten():
    pair = FinitePair(np.array([0.0, 1.0]), np.array([0.6, 0.3]), 0.1, np.array([1.0]), np.array([1.0]))
    assert pair_delta(pair, 50.0)[1] == pytest.approx(0.1, rel=1e-9)
    assert pair_delta(pair, 0.0)[1] == pytest.approx(0.1 + 0.3 * -math.expm1(-1), rel=1e-9)
