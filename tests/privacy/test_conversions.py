"""Renyi and zero-concentrated DP, GDP and the trade-off curve of a history."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from scipy.stats import norm

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.conversions import gdp_of_history, matching_gdp, rdp_of_history, trade_off, zcdp_of_history
from dpzero_theory.privacy.gaussian import delta_from_gdp, epsilon_from_gdp
from dpzero_theory.privacy.release import Release


def test_renyi_divergence_against_dp_accounting():
    unit = Release(1.3, 500, sampling="poisson", relation="add-remove", sample_rate=0.03)
    orders = [2.0, 8.0, 20.0]
    accountant = RdpAccountant(orders)
    accountant.compose(dp_event.PoissonSampledDpEvent(0.03, dp_event.GaussianDpEvent(1.3)), 500)
    for order, theirs in zip(orders, accountant._rdp, strict=True):
        ours = rdp_of_history([unit], order)
        assert ours.lower <= theirs * (1 + 1e-9)
        assert ours.upper == pytest.approx(theirs, rel=1e-9)


def test_zcdp_and_gdp_bound_the_other_currencies():
    history = [
        Release(1.3, 500, sampling="poisson", relation="add-remove", sample_rate=0.03),
        Release(9.0, 100, sampling="fixed-order", relation="add-remove", sample_rate=0.1),
    ]
    rho, gdp = zcdp_of_history(history), gdp_of_history(history)
    assert rho == pytest.approx(500 / (2 * 1.69) + 10 / (2 * 81))
    assert gdp == pytest.approx(math.sqrt(2 * rho))
    for order in (1.5, 10.0):
        assert rdp_of_history(history, order).upper <= rho * order
    for epsilon in (0.5, 3.0):
        assert delta_of_history(history, epsilon).upper <= float(delta_from_gdp(epsilon, gdp))
    matched = matching_gdp(history, 1e-5)
    assert float(epsilon_from_gdp(matched.value, 1e-5)) == pytest.approx(epsilon_of_history(history, 1e-5).value)


def test_trade_off_of_a_gaussian_is_the_gaussian_curve():
    unit = Release(50.0, 2500, sampling="full", relation="add-remove")
    levels = np.array([0.0, 0.001, 0.05, 0.3, 0.5, 0.9, 1.0])
    exact = norm.cdf(norm.ppf(1 - levels) - 1.0)
    found = trade_off([unit], levels)
    assert np.all(found <= exact + 1e-12)
    assert np.all(found >= exact - 4e-3)


def test_trade_off_lies_below_the_best_test_of_one_subsampled_release():
    q, s = 0.3, 1.0
    unit = Release(s, 1, sampling="poisson", relation="add-remove", sample_rate=q)
    cut = np.linspace(-1, 4, 11)
    type_one = norm.sf(cut, 0, s)
    type_two = (1 - q) * norm.cdf(cut, 0, s) + q * norm.cdf(cut, 1, s)
    found = trade_off([unit], type_one, points=12)
    assert np.all(found <= type_two + 1e-12)
    assert np.all(found >= trade_off([Release(s, 1, sampling="full", relation="add-remove")], type_one))
