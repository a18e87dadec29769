"""Zero-concentrated and Gaussian DP, into a history and out of one.

The oracles are the conversion of Canonne, Kamath and Steinke by mpmath, dp-accounting's Renyi accountant, the exact
Gaussian, Renyi divergences by sums over outputs, and the closed form of Laplace noise.
"""

import math
from collections.abc import Iterator

import mpmath
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.conversions import gdp_of_history, rdp_of_history, zcdp_of_history
from dpzero_theory.privacy.interop.events import event_from_history, history_from_event
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.stated import approximate, concentrated, randomised_response
from dpzero_theory.privacy.step import Release


def converted(rho: float, xi: float, epsilon: float) -> float:
    """Returns the least bound on delta over the orders, by a search over log(a - 1) in 30 digits."""
    with mpmath.workdps(30):

        def log_bound(u: mpmath.mpf) -> mpmath.mpf:
            t = mpmath.exp(u)
            return t * (xi + rho * (1 + t) - epsilon) + t * mpmath.log(t) - (1 + t) * mpmath.log(1 + t)

        low, high = mpmath.mpf(-30), mpmath.mpf(30)
        golden = (mpmath.sqrt(5) - 1) / 2
        for _ in range(120):
            left, right = high - golden * (high - low), low + golden * (high - low)
            low, high = (low, right) if log_bound(left) < log_bound(right) else (left, high)
        return float(mpmath.exp(min(log_bound(low), 0)))


def gaussian_delta(epsilon: float, mu: float) -> float:
    tails = stats.norm.cdf(mu / 2 - epsilon / mu), stats.norm.logcdf(-mu / 2 - epsilon / mu)
    return float(tails[0] - math.exp(epsilon + tails[1]))


@pytest.mark.parametrize(("rho", "xi"), [(4e-9, 0.0), (1e-4, 0.0), (0.5, 0.0), (0.1, 0.2), (20.0, 0.0)])
@pytest.mark.parametrize("epsilon", [0.0, 1e-4, 0.5, 3.0, 40.0])
def test_a_statement_costs_at_least_the_gaussian_and_at_most_the_conversion(rho, xi, epsilon):
    found = delta_of_history([concentrated(rho / 4, xi / 4, steps=4, relation="add-remove")], epsilon)
    assert found.lower == 0
    assert gaussian_delta(epsilon, math.sqrt(2 * rho)) <= found.upper * (1 + 1e-9) + 1e-300
    assert found.upper <= converted(rho, xi, epsilon) * (1 + 1e-5) + 1e-300
    assert found.upper <= math.sqrt((rho + xi) / 2) * (1 + 1e-8)
    assert found.upper >= 0.99 * min(converted(rho, xi, epsilon), math.sqrt((rho + xi) / 2)) or epsilon < 1


def test_statements_add_up_and_compose_with_other_noise():
    """Where the statement is of Gaussian noise both together are one Gaussian; its rho is the sum of the two."""
    told = [concentrated(0.2, relation="replace-one"), concentrated(0.1, steps=3, relation="replace-one")]
    together = [concentrated(0.5, relation="replace-one")]
    assert epsilon_of_history(told, 1e-6).upper == pytest.approx(epsilon_of_history(together, 1e-6).upper, rel=1e-9)
    full = Release(2.0, 1, sampling="full", relation="replace-one")
    for epsilon in (0.0, 1.0, 5.0):
        found = delta_of_history([*told, full], epsilon)
        assert gaussian_delta(epsilon, 1.0) * (1 - 1e-3) <= found.lower <= gaussian_delta(epsilon, 1.0)
        assert gaussian_delta(epsilon, math.sqrt(2)) <= found.upper <= converted(1.0, 0.0, epsilon) * (1 + 1e-6)
    sampled = Release(1.0, 300, sampling="poisson", relation="replace-one", sample_rate=0.01)
    alone, both = (epsilon_of_history([*more, sampled], 1e-6) for more in ([], told))
    assert alone.lower * 0.98 <= both.lower <= alone.upper
    assert alone.upper < both.upper < alone.upper + epsilon_of_history(told, 1e-6).upper


def test_a_statement_against_dp_accounting():
    dp = pytest.importorskip("dp_accounting", reason="the compare extra is not installed")
    from dp_accounting.rdp import RdpAccountant

    event = dp.ComposedDpEvent([dp.SelfComposedDpEvent(dp.dp_event.ZCDpEvent(0.05, 0.01), 4), dp.GaussianDpEvent(2.0)])
    history = history_from_event(event, "add-remove")
    theirs = RdpAccountant(np.linspace(1.1, 60, 2000)).compose(event).get_epsilon(1e-6)
    ours = epsilon_of_history(history, 1e-6).upper
    assert 0.9 * theirs < ours <= theirs
    again = history_from_event(event_from_history(history), "add-remove")
    assert again == history
    for order in (1.5, 10.0):
        expected = 4 * (0.01 + order * 0.05) + order / 8
        assert rdp_of_history(history, order).upper == pytest.approx(expected, rel=1e-9)
        assert rdp_of_history(history, order).lower == pytest.approx(order / 8, rel=1e-9)


def divergences(s: float, q: float, relation: str, orders: list[float]) -> Iterator[float]:
    """Yields the larger Renyi divergence of one Gaussian step in a Poisson batch, at each order."""
    for order in orders:
        x = np.linspace(-2 * order - 40 * s, 2 * order + 40 * s, 400_001)

        def log_law(mean: float, x: np.ndarray = x) -> np.ndarray:
            return stats.norm.logpdf(x, mean, s)

        def mixed(mean: float, x: np.ndarray = x) -> np.ndarray:
            return np.logaddexp(np.log1p(-q) + log_law(0.0), math.log(q) + log_law(mean))

        pair = mixed(1.0), mixed(-1.0) if relation == "replace-one" else log_law(0.0)
        yield max(
            float(logsumexp(order * a + (1 - order) * b) + math.log(x[1] - x[0])) / (order - 1)
            for a, b in (pair, pair[::-1])
        )


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("q", [0.01, 0.5])
def test_rho_of_sampled_gaussian_noise_is_that_of_large_orders(relation, q):
    s, orders = 1.3, [1.2, 2.0, 20.0, 400.0, 3000.0]
    found = zcdp_of_history([Release(s, 7, sampling="poisson", relation=relation, sample_rate=q)])
    shares = [7 * d / a for d, a in zip(divergences(s, q, relation, orders), orders, strict=True)]
    assert max(shares) <= found.upper * (1 + 1e-6)
    assert shares[-1] >= found.lower * 0.99
    if relation == "add-remove":
        assert found.upper == pytest.approx(found.lower, rel=1e-8)


@pytest.mark.parametrize("levels", [1, 4])
def test_rho_of_discrete_gaussian_noise(levels):
    s, x = 0.8 * levels, np.arange(-4000, 4001)
    here, there = (-((x - mean) ** 2) / (2 * s * s) for mean in (0, levels))
    norm = logsumexp(here)
    for order in (1.01, 2.0, 7.5, 40.0):
        divergence = (logsumexp(order * here + (1 - order) * there) - norm) / (order - 1)
        found = zcdp_of_history(
            [Release(0.8, 1, sampling="full", relation="add-remove", mechanism=f"discrete-gaussian:{levels}")]
        )
        assert divergence <= order * found.upper
    assert divergence >= order * found.lower * (1 - 1e-6)


@pytest.mark.parametrize("noise", [0.3, 1.0, 5.0])
def test_rho_and_mu_of_laplace_noise(noise):
    e = 1 / noise
    history = [Release(noise, 1, sampling="full", relation="add-remove", mechanism="laplace")]
    orders = 1 + np.geomspace(1e-3, 1e4, 400)
    parts = np.log(orders / (2 * orders - 1)) + (orders - 1) * e, np.log((orders - 1) / (2 * orders - 1)) - orders * e
    least = float(np.max(np.logaddexp(*parts) / (orders - 1) / orders))
    found = zcdp_of_history(history)
    assert found.lower * (1 - 1e-3) <= least <= found.upper
    mu = gdp_of_history(history)
    assert mu.lower <= mu.upper
    for epsilon in np.linspace(0.0, e, 7):
        laplace = max(-math.expm1((epsilon - e) / 2), 0.0)
        assert laplace <= gaussian_delta(float(epsilon), mu.upper) * (1 + 1e-9)
    response = randomised_response(2, 1 / (1 + math.exp(-e)))
    touched = 1 / (1 + math.exp(e))
    assert stats.norm.cdf(stats.norm.ppf(1 - touched) - gdp_of_history([response]).upper) == pytest.approx(touched)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize(
    "sampling", ["poisson", "fixed-size", "random-allocation", "random-allocation:2", "cyclic-poisson:4"]
)
def test_mu_of_every_sampling_bounds_its_delta_and_its_divergences(relation, sampling):
    history = [Release(2.0, 40, sampling=sampling, relation=relation, sample_rate=0.1)]
    mu, rho = gdp_of_history(history), zcdp_of_history(history)
    assert mu.lower == pytest.approx(math.sqrt(2 * rho.lower), rel=1e-6)
    assert mu.lower <= mu.upper == pytest.approx(math.sqrt(2 * rho.upper), rel=1e-6)
    for epsilon in (0.0, 1.0, 4.0):
        assert delta_of_history(history, epsilon).lower <= gaussian_delta(epsilon, mu.upper)
    for order in (1.5, 8.0):
        assert rdp_of_history(history, order).lower <= order * rho.upper


def test_mixed_histories_and_what_has_no_rho_or_mu():
    plain = Release(3.0, 9, sampling="full", relation="replace-one")
    pure = approximate(0.5, relation="replace-one")
    found = zcdp_of_history([plain, pure, concentrated(0.1, 0.02, relation="replace-one")])
    assert found.lower == pytest.approx(2.0)
    assert found.upper == pytest.approx(2.0 + 0.125 + 0.12)
    assert zcdp_of_history([]).upper == 0
    lattice = Release(3.0, 9, sampling="full", relation="replace-one", mechanism="discrete-gaussian:64")
    told = concentrated(0.1, relation="replace-one")
    shown = approximate(0.5, 1e-6, relation="replace-one")
    for history, measure, name in (
        ([plain, shown], zcdp_of_history, "finite rho .* got mechanism approximate:0.5,1e-06$"),
        ([shown], gdp_of_history, "finite mu .* got mechanism approximate:0.5,1e-06$"),
        ([lattice], gdp_of_history, "finite mu .* got mechanism discrete-gaussian:64$"),
        ([told], gdp_of_history, "finite mu .* got mechanism zcdp:0.1,0.0$"),
        ([plain, approximate(0.5, relation="add-remove")], zcdp_of_history, "one relation; got replace-one, add-rem"),
    ):
        with pytest.raises(ValueError, match=f"^history must have .*{name}") as caught:
            measure(history)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda: concentrated(0.0, relation="add-remove"), "^rho must be"),
        (lambda: concentrated(math.nan, relation="add-remove"), "^rho must be"),
        (lambda: concentrated(101.0, relation="add-remove"), "^rho must be"),
        (lambda: concentrated(1.0, -1.0, relation="add-remove"), "^xi must be"),
        (lambda: concentrated(1.0, steps=0, relation="add-remove"), "^steps must be"),
        (lambda: MECHANISMS["zcdp:1"], "^mechanism must be zcdp:NUMBER,NUMBER; got '1'$"),
        (
            lambda: epsilon_of_history([concentrated(60.0, steps=2, relation="add-remove")], 1e-5),
            "^rho must be at most 100 for all zCDP steps of a history; got 120",
        ),
    ],
)
def test_bad_statements_are_refused_in_one_line(given, words):
    with pytest.raises(ValueError, match=words) as caught:
        given()
    assert "\n" not in str(caught.value)
