"""Curves of Renyi divergences as parts of a history.

The oracles are exact deltas of the mechanisms that the curves are of (the Gaussian's closed form, sums over the outputs
of randomised response), dp-accounting's conversion, and the sharper certified answers where the mechanism is known.
"""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.conversions import gdp_of_history, rdp_of_history, zcdp_of_history
from dpzero_theory.privacy.laws.concentrated import curve_pair, log_moment, summed
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.stated import concentrated, renyi
from dpzero_theory.privacy.step import Release
from tests.privacy.oracle import pair_delta

ORDERS = [1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0]


def gaussian_delta(epsilon: float, mu: float) -> float:
    tails = stats.norm.cdf(mu / 2 - epsilon / mu), stats.norm.logcdf(-mu / 2 - epsilon / mu)
    return float(tails[0] - math.exp(epsilon + tails[1]))


def stated(mu: float, steps: int = 1, orders: list[float] = ORDERS) -> Release:
    return renyi(orders, [a * mu * mu / 2 for a in orders], steps=steps, relation="add-remove")


@pytest.mark.parametrize(("mu", "steps"), [(0.05, 1), (0.3, 4), (1.0, 1), (1.0, 9)])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 6.0, 30.0])
def test_a_gaussian_curve_costs_at_least_the_gaussian_and_about_its_zcdp(mu, steps, epsilon):
    found = delta_of_history([stated(mu, steps)], epsilon)
    assert found.lower == 0
    assert gaussian_delta(epsilon, mu * math.sqrt(steps)) <= found.upper * (1 + 1e-9) + 1e-300
    # The curve of all orders is the zCDP statement; the one of twelve orders allows at least as much
    rho = delta_of_history([concentrated(mu * mu / 2, steps=steps, relation="add-remove")], epsilon).upper
    assert found.upper >= rho * (1 - 1e-6) or epsilon == 0
    orders = np.linspace(1.0, 64.0, 640)[1:].tolist()
    dense = delta_of_history([stated(mu, steps, orders)], epsilon).upper
    best = 1 + (epsilon + 1e-9) / (mu * mu * steps)
    assert dense <= rho * 1.1 or best > 60


def test_epsilon_against_dp_accounting():
    rdp = pytest.importorskip("dp_accounting", reason="the compare extra is not installed").rdp
    for mu, steps, delta in ((0.3, 10, 1e-5), (1.0, 3, 1e-6), (2.0, 5, 1e-9)):
        theirs = rdp.rdp_privacy_accountant.compute_epsilon(ORDERS, [steps * a * mu * mu / 2 for a in ORDERS], delta)[0]
        ours = epsilon_of_history([stated(mu, steps)], delta).upper
        assert 0.9 * theirs < ours <= theirs * (1 + 1e-9)


def test_curves_compose_with_our_steps_and_with_each_other():
    """A sampled history's own curve, beside a full batch: the bound holds for the true history, and is below the
    sum of both epsilons."""
    sampled = Release(1.0, 300, sampling="poisson", relation="add-remove", sample_rate=0.01)
    full = Release(2.0, 1, sampling="full", relation="add-remove")
    told = renyi(ORDERS[:8], [rdp_of_history([sampled], a).upper for a in ORDERS[:8]], relation="add-remove")
    true = epsilon_of_history([sampled, full], 1e-6)
    both = epsilon_of_history([told, full], 1e-6)
    assert true.lower <= both.upper
    assert both.upper < epsilon_of_history([told], 1e-6).upper + epsilon_of_history([full], 1e-6).upper
    assert both.lower == pytest.approx(epsilon_of_history([full], 1e-6).lower, rel=1e-2)
    apart = epsilon_of_history([stated(0.4, 3), stated(0.4), concentrated(0.08, relation="add-remove")], 1e-6)
    assert apart.upper == pytest.approx(epsilon_of_history([stated(0.4, 5)], 1e-6).upper, rel=1e-9)


def test_randomised_response_is_within_its_curve():
    """The curve of one answer in k categories, four times, against the exact delta by a sum over the outputs."""
    k, truth, times = 3, 0.8, 4
    p, q = np.array([truth, 0.1, 0.1]), np.array([0.1, truth, 0.1])
    orders = [1.5, 2.0, 3.0, 5.0, 10.0, 30.0]
    curve = [math.log(float(np.sum(p**a * q ** (1 - a)))) / (a - 1) for a in orders]
    history = [renyi(orders, curve, steps=times, relation="replace-one")]
    for epsilon in (0.0, 0.5, 2.0, 5.0, 8.0):
        outputs = list(itertools.product(range(k), repeat=times))
        exact = sum(max(math.prod(p[list(o)]) - math.exp(epsilon) * math.prod(q[list(o)]), 0.0) for o in outputs)
        assert exact <= delta_of_history(history, epsilon).upper <= 1


def test_the_pair_dominates_at_every_loss():
    """The pair's own delta is at least that of the best order, and a Gaussian's is below both."""
    mu = 0.7
    curve = tuple((a - 1, (a - 1) * a * mu * mu / 2) for a in ORDERS)
    pair = curve_pair(curve)
    for epsilon in np.linspace(0.0, 8.0, 60):
        t = np.geomspace(1e-4, 63, 4000)
        moment = np.array([log_moment(curve, float(x)) for x in t])
        bound = float(np.exp(np.min(moment - t * epsilon - t * np.log1p(1 / t) - np.log1p(t))))
        assert pair_delta(pair, float(epsilon))[1] >= gaussian_delta(float(epsilon), mu)
        assert pair_delta(pair, float(epsilon))[1] <= max(1.02 * bound, 0.0) + 1e-12 or epsilon < 0.5


def test_divergences_between_orders_and_beyond():
    told = [renyi([2.0, 4.0], [0.5, 1.0], steps=2, relation="add-remove")]
    full = Release(2.0, 1, sampling="full", relation="add-remove")
    # (a - 1) D is 0, 0.5 and 3 at the orders 1, 2 and 4, and on a straight line between them
    for order, expected in ((1.5, 0.5), (2.0, 0.5), (3.0, 1.75 / 2), (4.0, 1.0)):
        found = rdp_of_history([*told, full], order)
        assert found.upper == pytest.approx(2 * expected + order / 8, rel=1e-9)
        assert found.lower == pytest.approx(order / 8, rel=1e-9)
    with pytest.raises(ValueError, match=r"order must be at most 4, the largest that is stated; got 4\.5"):
        rdp_of_history(told, 4.5)
    assert rdp_of_history([renyi([2.0, 4.0], [3.0, 1.0], relation="add-remove")], 2.0).upper == pytest.approx(1.0)
    (at, moment), (last, most) = summed([((1.0, 0.5), (3.0, 3.0)), ((2.0, 4.0),)], 0.0, 0.0)
    assert (at, last) == (1.0, 2.0)
    assert (moment, most) == pytest.approx((2.5, 5.75))
    for notion in (zcdp_of_history, gdp_of_history):
        with pytest.raises(ValueError, match="finite"):
            notion(told)


def test_names_and_bad_input():
    law = stated(0.5).mechanism
    assert MECHANISMS[law].name == law
    for orders, costs, message in (
        ([], [], "orders must be from 1 to 1,000 numbers; got 0"),
        ([2.0], [1.0, 2.0], "divergences must be as many as the 1 orders; got 2"),
        ([1.0], [1.0], "orders must be"),
        ([2.0, 2.0], [1.0, 1.0], "orders must rise; got 2, 2"),
        ([math.nan], [1.0], "orders must be"),
        ([2.0], [0.0], "divergences must be"),
        ([2.0], [math.nan], "divergences must be"),
        ([2e4], [1.0], "orders must be"),
    ):
        with pytest.raises(ValueError, match=message):
            renyi(orders, costs, relation="add-remove")
    for name in ("rdp:", "rdp:2", "rdp:2,x", "rdp:2,1;"):
        with pytest.raises(ValueError, match="mechanism must be rdp"):
            MECHANISMS[name]
