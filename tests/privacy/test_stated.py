"""Steps that are stated in place of drawn: (epsilon, delta)-private and zCDP ones, and mixtures of Gaussians.

The oracles are the formula of Kairouz, Oh and Viswanath for the worst composition, sums over all outcomes, the
conversion of Canonne, Kamath and Steinke by mpmath, exact Gaussians, and dp-accounting.
"""

import math
from dataclasses import replace

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy import stats

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.conversions import rdp_of_history
from dpzero_theory.privacy.dp_accounting import history_from_event
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.noise import SystemNoise
from dpzero_theory.privacy.sampling import Poisson
from dpzero_theory.privacy.stated import (
    approximate,
    concentrated,
    gaussian_mixture,
)
from tests.privacy.oracle import around, exact_delta, gaussian, made

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


def test_a_mixture_of_two_distances_is_a_poisson_batch_and_composes():
    told = [gaussian_mixture(1.3 * 7, [0.0, 7.0], [0.9, 0.1], steps=50, **REPLACE)]
    drawn, full = [made(1.3, 50, 0.1, "replace-one")], made(3.0, 2, relation="replace-one")
    for more in ([], [full]):
        first, second = (epsilon_of_history([*part, *more], 1e-6) for part in (told, drawn))
        assert max(first.lower, second.lower) <= min(first.upper, second.upper)
        assert first.upper == pytest.approx(second.upper, rel=1e-4)
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


def test_randomised_response_as_an_event_and_events_that_are_not_defined():
    event = dp.dp_event.RandomizedResponseDpEvent(0.4, 4)
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_ONE)
    for _ in range(3):  # their accountant counts a self-composed event once
        accountant.compose(event)
    ours = epsilon_of_history(history_from_event(dp.SelfComposedDpEvent(event, 3), "replace-one"), 1e-3)
    assert accountant.get_epsilon(1e-3) <= ours.upper <= 3 * math.log(7)  # the true answer has 0.7, each other 0.1
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
        with pytest.raises(ValueError, match=f"got {named}$"):
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
    # The grid knows delta to 1e-3, and nothing below 1e-30.
    assert found.upper <= most * (1 + 2e-3) + 1e-36
    assert found.upper <= math.sqrt((rho + xi) / 2) * (1 + 1e-6)
    assert found.upper >= 0.99 * min(most, math.sqrt((rho + xi) / 2)) or epsilon < 1


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


def test_statements_against_dp_accounting():
    event = dp.ComposedDpEvent([dp.SelfComposedDpEvent(dp.dp_event.ZCDpEvent(0.05, 0.01), 4), dp.GaussianDpEvent(2.0)])
    history = history_from_event(event, "add-remove")
    theirs = RdpAccountant(np.linspace(1.1, 60, 2000)).compose(event).get_epsilon(1e-6)
    assert 0.9 * theirs < epsilon_of_history(history, 1e-6).upper <= theirs
    for order in (1.5, 10.0):
        found = rdp_of_history(history, order)
        assert found.upper == pytest.approx(4 * (0.01 + order * 0.05) + order / 8, rel=1e-9)
        assert found.lower == pytest.approx(order / 8, rel=1e-9)


def mixture(*given):
    return lambda: gaussian_mixture(*given, **ADD)


REFUSED = [
    (lambda: approximate(0.0, 0.0, **ADD), "epsilon or delta must be positive"),
    (lambda: approximate(-1.0, 0.1, **ADD), "epsilon must be"),
    (lambda: approximate(1.0, 1.0, **ADD), "delta must be"),
    (lambda: replace(approximate(1.0, **ADD), sampling=Poisson(0.1)), "^sampling must be one of full"),
    (
        lambda: MECHANISMS[approximate(1.0, **ADD).mechanism].draw(SystemNoise(), 1.0, (1,)),
        "^mechanism must be one that is drawn",
    ),
    *(
        (lambda word=word: MECHANISMS[word], f"mechanism must be {named}")
        for word, named in (
            ("zcdp:3", "one of gaussian, .*; got 'zcdp:3'$"),
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
]


@pytest.mark.parametrize(("given", "named"), REFUSED)
def test_what_cannot_be_stated_is_refused_in_one_line(given, named):
    with pytest.raises(ValueError, match=named) as caught:
        given()
    assert "\n" not in str(caught.value)


def test_names_are_read_back():
    for step in (concentrated(0.5, **ADD), gaussian_mixture(*MIXTURES["never still"], **ADD)):
        assert MECHANISMS[step.mechanism].name == step.mechanism
