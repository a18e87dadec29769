"""Steps that are stated in place of drawn: (epsilon, delta)-private ones, randomised response, distributions, mixtures
of Gaussians, zCDP and Renyi DP; and what histories are in these currencies.

The oracles are the formula of Kairouz, Oh and Viswanath for the worst composition, sums over all outcomes, the
conversion of Canonne, Kamath and Steinke by mpmath, exact Gaussians, and dp-accounting.
"""

import math
from dataclasses import replace
from itertools import product

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant
from scipy import stats
from scipy.special import logsumexp

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.conversions import gdp_of_history, rdp_of_history, zcdp_of_history
from dpzero_theory.privacy.interop.events import UnsupportedEvent, event_from_history, history_from_event
from dpzero_theory.privacy.laws.concentrated import curve_pair, log_moment, summed
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.noise import SystemNoise
from dpzero_theory.privacy.sampling import Poisson
from dpzero_theory.privacy.stated import (
    approximate,
    concentrated,
    gaussian_mixture,
    own_distribution,
    randomised_response,
    renyi,
)
from tests.privacy.oracle import around, exact_delta, gaussian, made, pair_delta

ADD = {"relation": "add-remove"}
REPLACE = {"relation": "replace-one"}


def gaussian_delta(epsilon, mu):
    tails = stats.norm.cdf(mu / 2 - epsilon / mu), stats.norm.logcdf(-mu / 2 - epsilon / mu)
    return float(tails[0] - math.exp(epsilon + tails[1]))


@pytest.mark.parametrize("at", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(
    ("epsilon", "delta", "steps"), [(0.1, 1e-7, 50), (1.0, 0.0, 10), (0.5, 1e-6, 3), (0.0, 1e-3, 5), (2.0, 1e-9, 1)]
)
def test_private_steps_compose_as_the_worst_mechanism(epsilon, delta, steps, at):
    number = np.arange(steps + 1)
    shares = stats.binom.pmf(number, steps, 1 / (1 + math.exp(-epsilon)))
    part = float(np.sum(shares * np.maximum(0, -np.expm1(at - (2 * number - steps) * epsilon))))
    shown = (1 - delta) ** steps
    whole = 1 - shown + shown * part
    found = delta_of_history([approximate(epsilon, delta, steps=steps, **ADD)], at)
    assert shown * part * (1 - 1e-2) <= found.lower <= shown * part * (1 + 1e-12)
    assert whole * (1 - 1e-12) <= found.upper <= whole * (1 + 1e-2)


def over_outcomes(p, q, steps, at):
    """Returns delta of so many outcomes with these laws, in both directions, by a sum over all of them."""
    outcomes = [(math.prod(p[list(each)]), math.prod(q[list(each)])) for each in product(range(len(p)), repeat=steps)]
    return [sum(max(0.0, o[i] - math.exp(at) * o[1 - i]) for o in outcomes) for i in (0, 1)]


@pytest.mark.parametrize(("categories", "truth", "steps"), [(2, 0.9, 4), (4, 0.7, 4), (7, 0.2, 3)])
def test_randomised_response_is_summed_over_all_answers_and_within_its_curve(categories, truth, steps):
    p = np.full(categories, (1 - truth) / (categories - 1))
    q = p.copy()
    p[0] = q[1] = truth
    orders = [1.5, 2.0, 3.0, 5.0, 10.0, 30.0]
    curve = [math.log(float(np.sum(p**a * q ** (1 - a)))) / (a - 1) for a in orders]
    for at in (0.0, 0.7, 2.5):
        exact = max(over_outcomes(p, q, steps, at))
        found = delta_of_history([randomised_response(categories, truth, steps=steps)], at)
        assert found.lower * (1 - 1e-12) - 1e-15 <= exact <= found.upper * (1 + 1e-12) + 1e-15
        assert found.upper <= exact * 1.001 + 1e-12
        assert exact <= delta_of_history([renyi(orders, curve, steps=steps, **REPLACE)], at).upper <= 1


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("turned", [False, True])
def test_an_own_distribution_is_summed_over_all_outcomes(relation, turned):
    """P and Q differ between the two directions, and each has outcomes that the other lacks."""
    p, q = np.array([0.55, 0.30, 0.10, 0.05, 0.0]), np.array([0.15, 0.30, 0.54, 0.0, 0.01])
    p, q = (q, p) if turned else (p, q)
    both, name = (p > 0) & (q > 0), f"test-{turned}"
    release = own_distribution(name, np.log(p[both] / q[both]), p[both], steps=3, relation=relation)
    found = delta_of_history([release], 1.2)
    exact = max(over_outcomes(p, q, 3, 1.2))
    assert exact * (1 - 1e-12) <= found.upper <= exact * 1.01
    assert found.lower == 0
    assert delta_of_history([release, made(1.0, relation=relation)], 1.2).upper > found.upper
    with pytest.raises(ValueError, match=r"^name must stand for one distribution in a process; got 'test-"):
        own_distribution(name, [0.0], [1.0], relation=relation)


def test_private_steps_compose_with_gaussian_noise():
    """delta of both is the mean, over the stated step's loss l, of the Gaussian's delta at epsilon - l."""
    share, at = 1 / (1 + math.exp(-0.5)), 3.0
    exact = share * gaussian_delta(at - 0.5, 1.0) + (1 - share) * gaussian_delta(at + 0.5, 1.0)
    assert around(delta_of_history([made(10.0, 100), approximate(0.5, **ADD)], at), exact, 1e-9, width=0.01)


MIXTURES = {
    "as a Poisson batch": (1.3, [0.0, 1.0], [0.7, 0.3]),
    "three distances": (2.0, [0.5, 3.0, 0.0], [0.2, 0.1, 0.7]),
    "never still": (5.0, [1.0, 4.0], [0.9, 0.1]),
    "one distance": (1.0, [2.0], [1.0]),
}


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize(("steps", "points"), [(1, 40_001), (2, 2_001)])
def test_delta_of_mixtures_is_that_of_a_sum_over_outputs(relation, name, steps, points):
    s, shifts, chances = MIXTURES[name]
    x = np.linspace(-max(shifts) - 11 * s, max(shifts) + 11 * s, points)
    p, q = (
        sum(p * stats.norm.pdf(x, sign * c, s) for c, p in zip(shifts, chances, strict=True)) * (x[1] - x[0])
        for sign in (1, -1 if relation == "replace-one" else 0)
    )
    history = [gaussian_mixture(s, shifts, chances, steps=steps, relation=relation)]
    for epsilon in (0.0, 0.4, 2.0):
        truth, found = exact_delta(epsilon, [[(p, q), (q, p)]] * steps), delta_of_history(history, epsilon)
        assert found.lower * (1 - 1e-4) <= truth <= found.upper * (1 + 1e-4)
        assert found.upper <= found.lower * 1.01 + 1e-12


def test_vectors_in_other_directions_cost_less():
    """With the record the mean is one of three vectors of the given norms; delta is a sum over a plane of outputs."""
    draw, largest = np.random.default_rng(3), 0.0
    s, norms, chances = 1.5, np.array([0.0, 1.0, 2.0]), np.array([0.5, 0.3, 0.2])
    bound = delta_of_history([gaussian_mixture(s, norms, chances, **ADD)], 0.5).upper
    x, y = np.meshgrid(*[np.linspace(-15, 15, 301)] * 2)
    law = lambda a, b: np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * s * s)) / (2 * math.pi * s * s) / 100  # noqa: E731
    q = law(0, 0).ravel()
    for angles in [np.zeros(3), *draw.uniform(0, 2 * math.pi, (12, 3))]:
        means = norms[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        p = sum(c * law(*at) for c, at in zip(chances, means, strict=True)).ravel()
        largest = max(largest, exact_delta(0.5, [[(p, q), (q, p)]]))
    assert 0.999 * bound < largest <= bound * (1 + 1e-6)


def test_a_mixture_of_two_distances_is_a_poisson_batch_and_composes():
    told = [gaussian_mixture(1.3 * 7, [0.0, 7.0], [0.9, 0.1], steps=50, **REPLACE)]
    drawn, full = [made(1.3, 50, 0.1, "replace-one")], made(3.0, 2, relation="replace-one")
    for more in ([], [full]):
        first, second = (epsilon_of_history([*part, *more], 1e-6) for part in (told, drawn))
        assert max(first.lower, second.lower) <= min(first.upper, second.upper)
        assert first.upper == pytest.approx(second.upper, rel=1e-4)
    rho = zcdp_of_history([*told, full])
    assert rho.lower == pytest.approx(50 / 1.69 / 2 + 4 / 9 * 2 / 2)
    assert rho.upper == pytest.approx(4 * 50 / 1.69 / 2 + 4 / 9 * 2 / 2)
    three = zcdp_of_history([gaussian_mixture(*MIXTURES["three distances"], steps=4, **REPLACE)])
    assert (three.lower, three.upper) == pytest.approx((4 * 2.25 / 2, 4 * 4 * 2.25 / 2))
    p, q = gaussian(1.3, 0.1, "add-remove")[0]
    one = delta_of_history([gaussian_mixture(1.3, [0.0, 1.0], [0.9, 0.1], **ADD)], 0.5)
    assert around(one, exact_delta(0.5, [[(p, q), (q, p)]]), 1e-6, width=1.1e-3)


@pytest.mark.parametrize(("relation", "kind"), [("add-remove", "ADD_OR_REMOVE_ONE"), ("zero-out", "REPLACE_SPECIAL")])
@pytest.mark.parametrize("name", ["as a Poisson batch", "never still"])
def test_a_mixture_costs_here_what_it_costs_in_dp_accounting(relation, kind, name):
    event = dp.SelfComposedDpEvent(dp.dp_event.MixtureOfGaussiansDpEvent(*MIXTURES[name]), 3)
    history = history_from_event(event, relation)
    theirs = dp.pld.PLDAccountant(dp.NeighboringRelation[kind], 1e-3).compose(event).get_epsilon(1e-5)
    ours = epsilon_of_history(history, 1e-5)
    assert ours.lower <= theirs * (1 + 1e-9)
    assert ours.upper == pytest.approx(theirs, rel=5e-3)
    assert ours.upper <= ours.lower * 1.01
    assert history_from_event(event_from_history(history), relation) == history


def test_the_value_that_dp_accounting_tests_is_in_the_bracket():
    """epsilon 17.193115 at delta 1e-6, of test_mixture_of_gaussians_basic of dp-accounting 0.6.0."""
    first = gaussian_mixture(1.0, [0.0, 1.0, 2.0], [0.2, 0.6, 0.2], steps=3, **ADD)
    second = gaussian_mixture(2.0, [0.0, 2.0, 3.0], [0.33, 0.34, 0.33], steps=2, **ADD)
    found = delta_of_history([first, second], 17.193115)
    assert found.lower <= 1e-6 <= found.upper <= found.lower * 1.001


def test_randomised_response_as_an_event_and_events_that_are_not_defined():
    history = [randomised_response(4, 0.7, steps=5)]
    again = history_from_event(event_from_history(history), "replace-one")
    assert epsilon_of_history(again, 1e-5).upper == pytest.approx(epsilon_of_history(history, 1e-5).upper, rel=1e-9)
    event = dp.dp_event.RandomizedResponseDpEvent(0.4, 4)
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_ONE)
    for _ in range(3):  # their accountant counts a self-composed event once
        accountant.compose(event)
    ours = epsilon_of_history(history_from_event(dp.SelfComposedDpEvent(event, 3), "replace-one"), 1e-3)
    assert accountant.get_epsilon(1e-3) == pytest.approx(ours.upper, rel=1e-3)
    mixture = dp.dp_event.MixtureOfGaussiansDpEvent
    assert history_from_event(mixture(1.0, [0.0], [1.0]), "add-remove") == []
    with pytest.raises(ValueError, match=r"^event must protect its records"):
        history_from_event(mixture(0.0, [1.0], [1.0]), "add-remove")
    sampled = dp.PoissonSampledDpEvent(0.1, mixture(1.0, [1.0], [1.0]))
    for wrong, relation, named in (
        (event, "add-remove", "RandomizedResponseDpEvent with add-remove, not replace-one"),
        (mixture(1.0, [1.0], [1.0]), "replace-one", "MixtureOfGaussiansDpEvent with replace-one"),
        (sampled, "add-remove", "PoissonSampledDpEvent of MixtureOfGaussiansDpEvent"),
    ):
        with pytest.raises(UnsupportedEvent, match=f"got {named}$"):
            history_from_event(wrong, relation)


def converted(rho, xi, epsilon):
    """Returns the least bound on delta over the orders, by a search over log(a - 1) in 30 digits."""
    with mpmath.workdps(30):

        def log_bound(u):
            t = mpmath.exp(u)
            return t * (xi + rho * (1 + t) - epsilon) + t * mpmath.log(t) - (1 + t) * mpmath.log(1 + t)

        low, high = mpmath.mpf(-30), mpmath.mpf(30)
        golden = (mpmath.sqrt(5) - 1) / 2
        for _ in range(120):
            left, right = high - golden * (high - low), low + golden * (high - low)
            low, high = (low, right) if log_bound(left) < log_bound(right) else (left, high)
        return float(mpmath.exp(min(log_bound(low), 0)))


@pytest.mark.parametrize(("rho", "xi"), [(4e-9, 0.0), (1e-4, 0.0), (0.5, 0.0), (0.1, 0.2), (20.0, 0.0)])
@pytest.mark.parametrize("epsilon", [0.0, 1e-4, 0.5, 3.0, 40.0])
def test_zcdp_costs_at_least_the_gaussian_and_at_most_the_conversion(rho, xi, epsilon):
    found = delta_of_history([concentrated(rho / 4, xi / 4, steps=4, **ADD)], epsilon)
    most = converted(rho, xi, epsilon)
    assert found.lower == 0
    assert gaussian_delta(epsilon, math.sqrt(2 * rho)) <= found.upper * (1 + 1e-9) + 1e-300
    assert found.upper <= most * (1 + 1e-5) + 1e-300
    assert found.upper <= math.sqrt((rho + xi) / 2) * (1 + 1e-8)
    assert found.upper >= 0.99 * min(most, math.sqrt((rho + xi) / 2)) or epsilon < 1


ORDERS = [1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0]


def curve(mu, steps=1, orders=ORDERS):
    return renyi(orders, [a * mu * mu / 2 for a in orders], steps=steps, **ADD)


@pytest.mark.parametrize(("mu", "steps"), [(0.05, 1), (0.3, 4), (1.0, 1), (1.0, 9)])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 6.0, 30.0])
def test_a_gaussian_curve_costs_at_least_the_gaussian_and_about_its_zcdp(mu, steps, epsilon):
    """The curve of all orders is the zCDP statement; the one of twelve orders allows at least as much."""
    found = delta_of_history([curve(mu, steps)], epsilon)
    assert found.lower == 0
    assert gaussian_delta(epsilon, mu * math.sqrt(steps)) <= found.upper * (1 + 1e-9) + 1e-300
    rho = delta_of_history([concentrated(mu * mu / 2, steps=steps, **ADD)], epsilon).upper
    assert found.upper >= rho * (1 - 1e-6) or epsilon == 0
    dense = delta_of_history([curve(mu, steps, np.linspace(1.0, 64.0, 640)[1:].tolist())], epsilon).upper
    assert dense <= rho * 1.1 or 1 + (epsilon + 1e-9) / (mu * mu * steps) > 60


def test_the_law_of_a_curve_dominates_at_every_loss():
    """Its delta is at least that of a Gaussian with the curve, and little above that of the best order."""
    told = tuple((a - 1, (a - 1) * a * 0.7 * 0.7 / 2) for a in ORDERS)
    pair, t = curve_pair(told), np.geomspace(1e-4, 63, 4000)
    moment = np.array([log_moment(told, float(x)) for x in t])
    for epsilon in np.linspace(0.0, 8.0, 60):
        bound = float(np.exp(np.min(moment - t * epsilon - t * np.log1p(1 / t) - np.log1p(t))))
        assert gaussian_delta(float(epsilon), 0.7) <= pair_delta(pair, float(epsilon))[1]
        assert pair_delta(pair, float(epsilon))[1] <= max(1.02 * bound, 0.0) + 1e-12 or epsilon < 0.5


def test_statements_add_up_and_compose_with_other_noise():
    """Of Gaussian noise both together are one Gaussian; the rho is the sum of the two."""
    told = [concentrated(0.2, **REPLACE), concentrated(0.1, steps=3, **REPLACE)]
    together = epsilon_of_history([concentrated(0.5, **REPLACE)], 1e-6)
    assert epsilon_of_history(told, 1e-6).upper == pytest.approx(together.upper, rel=1e-9)
    for epsilon in (0.0, 1.0, 5.0):
        found = delta_of_history([*told, made(2.0, relation="replace-one")], epsilon)
        assert gaussian_delta(epsilon, 1.0) * (1 - 1e-3) <= found.lower <= gaussian_delta(epsilon, 1.0)
        assert gaussian_delta(epsilon, math.sqrt(2)) <= found.upper <= converted(1.0, 0.0, epsilon) * (1 + 1e-6)
    sampled = made(1.0, 300, 0.01, "replace-one")
    alone, both = (epsilon_of_history([*more, sampled], 1e-6) for more in ([], told))
    assert alone.lower * 0.98 <= both.lower <= alone.upper
    assert alone.upper < both.upper < alone.upper + epsilon_of_history(told, 1e-6).upper
    # A sampled history's own curve beside a full batch bounds the true history, below the sum of both epsilons.
    sampled, full = made(1.0, 300, 0.01), made(2.0)
    told = renyi(ORDERS[:8], [rdp_of_history([sampled], a).upper for a in ORDERS[:8]], **ADD)
    both, alone = (epsilon_of_history(history, 1e-6) for history in ([told, full], [full]))
    assert epsilon_of_history([sampled, full], 1e-6).lower <= both.upper
    assert both.upper < epsilon_of_history([told], 1e-6).upper + alone.upper
    assert both.lower == pytest.approx(alone.lower, rel=1e-2)
    apart = epsilon_of_history([curve(0.4, 3), curve(0.4), concentrated(0.08, **ADD)], 1e-6)
    assert apart.upper == pytest.approx(epsilon_of_history([curve(0.4, 5)], 1e-6).upper, rel=1e-9)


def test_statements_against_dp_accounting():
    event = dp.ComposedDpEvent([dp.SelfComposedDpEvent(dp.dp_event.ZCDpEvent(0.05, 0.01), 4), dp.GaussianDpEvent(2.0)])
    history = history_from_event(event, "add-remove")
    theirs = RdpAccountant(np.linspace(1.1, 60, 2000)).compose(event).get_epsilon(1e-6)
    assert 0.9 * theirs < epsilon_of_history(history, 1e-6).upper <= theirs
    assert history_from_event(event_from_history(history), "add-remove") == history
    for order in (1.5, 10.0):
        found = rdp_of_history(history, order)
        assert found.upper == pytest.approx(4 * (0.01 + order * 0.05) + order / 8, rel=1e-9)
        assert found.lower == pytest.approx(order / 8, rel=1e-9)
    for mu, steps, delta in ((0.3, 10, 1e-5), (1.0, 3, 1e-6), (2.0, 5, 1e-9)):
        theirs = rdp_privacy_accountant.compute_epsilon(ORDERS, [steps * a * mu * mu / 2 for a in ORDERS], delta)[0]
        assert 0.9 * theirs < epsilon_of_history([curve(mu, steps)], delta).upper <= theirs * (1 + 1e-9)


def test_divergences_between_orders_and_beyond():
    told = [renyi([2.0, 4.0], [0.5, 1.0], steps=2, **ADD)]
    # (a - 1) D is 0, 0.5 and 3 at the orders 1, 2 and 4, and on a straight line between them
    for order, expected in ((1.5, 0.5), (2.0, 0.5), (3.0, 1.75 / 2), (4.0, 1.0)):
        found = rdp_of_history([*told, made(2.0)], order)
        assert (found.lower, found.upper) == pytest.approx((order / 8, 2 * expected + order / 8), rel=1e-9)
    with pytest.raises(ValueError, match=r"order must be at most 4, the largest that is stated; got 4\.5"):
        rdp_of_history(told, 4.5)
    assert rdp_of_history([renyi([2.0, 4.0], [3.0, 1.0], **ADD)], 2.0).upper == pytest.approx(1.0)
    (at, moment), (last, most) = summed([((1.0, 0.5), (3.0, 3.0)), ((2.0, 4.0),)], 0.0, 0.0)
    assert (at, last, moment, most) == pytest.approx((1.0, 2.0, 2.5, 5.75))


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("q", [0.01, 0.5])
def test_rho_of_sampled_gaussian_noise_is_that_of_large_orders(relation, q):
    """By sums over outputs of the larger Renyi divergence of one step."""
    s, shares = 1.3, []
    found = zcdp_of_history([made(s, 7, q, relation)])
    for order in (1.2, 2.0, 20.0, 400.0, 3000.0):
        x = np.linspace(-2 * order - 40 * s, 2 * order + 40 * s, 400_001)
        law = lambda mean, x=x: stats.norm.logpdf(x, mean, s)  # noqa: E731
        mixed = lambda mean, law=law: np.logaddexp(np.log1p(-q) + law(0.0), math.log(q) + law(mean))  # noqa: E731
        pair = mixed(1.0), mixed(-1.0) if relation == "replace-one" else law(0.0)
        logs = [logsumexp(order * a + (1 - order) * b) + math.log(x[1] - x[0]) for a, b in (pair, pair[::-1])]
        shares.append(7 * max(logs) / (order - 1) / order)
    assert max(shares) <= found.upper * (1 + 1e-6)
    assert shares[-1] >= found.lower * 0.99
    assert relation == "replace-one" or found.upper == pytest.approx(found.lower, rel=1e-8)


@pytest.mark.parametrize("levels", [1, 4])
def test_rho_of_discrete_gaussian_noise(levels):
    s, x = 0.8 * levels, np.arange(-4000, 4001)
    here, there = (-((x - mean) ** 2) / (2 * s * s) for mean in (0, levels))
    found = zcdp_of_history([made(0.8, mechanism=f"discrete-gaussian:{levels}")])
    for order in (1.01, 2.0, 7.5, 40.0):
        divergence = (logsumexp(order * here + (1 - order) * there) - logsumexp(here)) / (order - 1)
        assert divergence <= order * found.upper
    assert divergence >= order * found.lower * (1 - 1e-6)


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0])
def test_rho_and_mu_of_laplace_noise(noise):
    e, history, orders = 1 / noise, [made(noise, mechanism="laplace")], 1 + np.geomspace(1e-3, 1e4, 400)
    parts = np.log(orders / (2 * orders - 1)) + (orders - 1) * e, np.log((orders - 1) / (2 * orders - 1)) - orders * e
    least = float(np.max(np.logaddexp(*parts) / (orders - 1) / orders))
    found, mu = zcdp_of_history(history), gdp_of_history(history)
    assert found.lower * (1 - 1e-3) <= least <= found.upper
    assert mu.lower <= mu.upper
    for epsilon in np.linspace(0.0, e, 7):
        laplace = max(-math.expm1((epsilon - e) / 2), 0.0)
        assert laplace <= gaussian_delta(float(epsilon), mu.upper) * (1 + 1e-9)
    touched = 1 / (1 + math.exp(e))
    response = gdp_of_history([randomised_response(2, 1 - touched)])
    assert stats.norm.cdf(stats.norm.ppf(1 - touched) - response.upper) == pytest.approx(touched)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize(
    "sampling", ["poisson", "fixed-size", "random-allocation", "random-allocation:2", "cyclic-poisson:4"]
)
def test_mu_of_every_sampling_bounds_its_delta_and_its_divergences(relation, sampling):
    history = [made(2.0, 40, 0.1, relation, sampling=sampling)]
    mu, rho = gdp_of_history(history), zcdp_of_history(history)
    assert mu.lower == pytest.approx(math.sqrt(2 * rho.lower), rel=1e-6)
    assert mu.lower <= mu.upper == pytest.approx(math.sqrt(2 * rho.upper), rel=1e-6)
    for epsilon in (0.0, 1.0, 4.0):
        assert delta_of_history(history, epsilon).lower <= gaussian_delta(epsilon, mu.upper)
    for order in (1.5, 8.0):
        assert rdp_of_history(history, order).lower <= order * rho.upper


PLAIN = made(3.0, 9, relation="replace-one")


def test_rho_of_mixed_histories():
    found = zcdp_of_history([PLAIN, approximate(0.5, **REPLACE), concentrated(0.1, 0.02, **REPLACE)])
    assert (found.lower, found.upper) == pytest.approx((2.0, 2.0 + 0.125 + 0.12))
    assert zcdp_of_history([]).upper == 0


def mixture(*given):
    return lambda: gaussian_mixture(*given, **ADD)


def own(*given):
    return lambda: own_distribution(*given, **ADD)


def curves(*given):
    return lambda: renyi(*given, **ADD)


SHOWN = approximate(0.5, 1e-6, **REPLACE)
LATTICE = made(3.0, 9, relation="replace-one", mechanism="discrete-gaussian:64")
HISTORY = "^history must have .*"
REFUSED = [
    (lambda: approximate(0.0, 0.0, **ADD), "epsilon or delta must be positive"),
    (lambda: approximate(-1.0, 0.1, **ADD), "epsilon must be"),
    (lambda: approximate(1.0, 1.0, **ADD), "delta must be"),
    (own("a b", [0.0], [1.0]), "^name must be a name without spaces"),
    (own("x", [0.0, 1.0], [1.0]), "^losses and probabilities must be"),
    (own("x", [math.nan], [1.0]), "^losses must be"),
    (own("x", [0.0, 1.0], [0.5, 0.6]), "at most 1 under P; got 1.1"),
    (own("x", [-1.0], [1.0]), "at most 1 under Q; got 2.7"),
    (lambda: randomised_response(4, 0.25), "truth must be"),
    (lambda: randomised_response(1, 0.9), "categories must be"),
    (lambda: replace(randomised_response(4, 0.7), **ADD), "^relation must be replace-one with randomised-response"),
    (lambda: replace(approximate(1.0, **ADD), sampling=Poisson(0.1)), "^sampling must be one of full"),
    (
        lambda: MECHANISMS[approximate(1.0, **ADD).mechanism].draw(SystemNoise(), 1.0, (1,)),
        "^mechanism must be one that is drawn",
    ),
    *(
        (lambda word=word: MECHANISMS[word], f"mechanism must be {named}")
        for word, named in (
            ("own:nobody", "stated in this process, .*; got 'own:nobody'$"),
            ("approximately", ".*discrete-laplace; got 'approximately'$"),
        )
    ),
    (mixture(1.0, [1.0, -1.0], [0.5, 0.5]), "^sensitivities must be"),
    (mixture(1.0, [1.0, math.nan], [0.5, 0.5]), "^sensitivities must be"),
    (mixture(1.0, [1.0, 0.0], [0.5]), "^sensitivities and probabilities must be equally many"),
    (mixture(1.0, [], []), "^sensitivities and probabilities must be equally many"),
    (mixture(1.0, [1.0, 0.0], [0.5, 0.4]), r"^probabilities must sum to 1; got 0\.9$"),
    (mixture(1.0, [1.0, 0.0], [0.5, math.nan]), "^probabilities must be"),
    (mixture(1.0, [0.0, 1.0], [1.0, 0.0]), "^sensitivities must be above 0"),
    (mixture(0.1, [1.0], [1.0]), r"^standard_deviation must be .* 0\.2 <="),
    (mixture(math.nan, [1.0], [1.0]), "^standard_deviation must be"),
    *((lambda rho=rho: concentrated(rho, **ADD), "^rho must be") for rho in (0.0, math.nan, 101.0)),
    (lambda: concentrated(1.0, -1.0, **ADD), "^xi must be"),
    (lambda: concentrated(1.0, steps=0, **ADD), "^steps must be"),
    (
        lambda: epsilon_of_history([concentrated(60.0, steps=2, **ADD)], 1e-5),
        "^rho must be at most 100 for all zCDP steps of a history; got 120",
    ),
    (curves([], []), "orders must be from 1 to 1,000 numbers; got 0"),
    (curves([2.0], [1.0, 2.0]), "divergences must be as many as the 1 orders; got 2"),
    (curves([2.0, 2.0], [1.0, 1.0]), "orders must rise; got 2, 2"),
    *((curves([order], [1.0]), "orders must be") for order in (1.0, math.nan, 2e4)),
    *((curves([2.0], [cost]), "divergences must be") for cost in (0.0, math.nan)),
    (lambda: zcdp_of_history([PLAIN, SHOWN]), HISTORY + "finite rho .* got mechanism approximate:0.5,1e-06$"),
    (lambda: gdp_of_history([SHOWN]), HISTORY + "finite mu .* got mechanism approximate:0.5,1e-06$"),
    (lambda: gdp_of_history([LATTICE]), HISTORY + "finite mu .* got mechanism discrete-gaussian:64$"),
    (lambda: gdp_of_history([concentrated(0.1, **REPLACE)]), HISTORY + "finite mu .* got mechanism zcdp:0.1,0.0$"),
    (lambda: zcdp_of_history([PLAIN, approximate(0.5, **ADD)]), HISTORY + "one relation; got replace-one, add-rem"),
    *((lambda ask=ask: ask([curve(0.5)]), "finite") for ask in (zcdp_of_history, gdp_of_history)),
]


@pytest.mark.parametrize(("given", "named"), REFUSED)
def test_what_cannot_be_stated_is_refused_in_one_line(given, named):
    with pytest.raises(ValueError, match=named) as caught:
        given()
    assert "\n" not in str(caught.value)


def test_names_are_read_back():
    assert MECHANISMS[curve(0.5).mechanism].name == curve(0.5).mechanism
