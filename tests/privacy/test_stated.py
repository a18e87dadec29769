"""Steps that are stated in place of drawn: (epsilon, delta)-private ones and randomised response.

The oracles are the formula of Kairouz, Oh and Viswanath for the worst composition, sums over all outcomes, and the
closed form of Gaussian noise.
"""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.interop.events import UnsupportedEvent, event_from_history, history_from_event
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.noise import SystemNoise
from dpzero_theory.privacy.stated import approximate, own_distribution, randomised_response
from dpzero_theory.privacy.step import Release


@pytest.mark.parametrize("at", [0.0, 0.3, 2.0])
@pytest.mark.parametrize(
    ("epsilon", "delta", "steps"), [(0.1, 1e-7, 50), (1.0, 0.0, 10), (0.5, 1e-6, 3), (0.0, 1e-3, 5), (2.0, 1e-9, 1)]
)
def test_stated_steps_compose_as_the_worst_mechanism(epsilon: float, delta: float, steps: int, at: float) -> None:
    number = np.arange(steps + 1)
    loss = (2 * number - steps) * epsilon
    shares = stats.binom.pmf(number, steps, 1 / (1 + math.exp(-epsilon)))
    part = float(np.sum(shares * np.maximum(0, -np.expm1(at - loss))))
    whole, shown = 1 - (1 - delta) ** steps, (1 - delta) ** steps
    found = delta_of_history([approximate(epsilon, delta, steps=steps, relation="add-remove")], at)
    assert found.lower * (1 - 1e-12) <= shown * part
    assert whole + shown * part <= found.upper * (1 + 1e-12)
    assert found.upper <= (whole + shown * part) * (1 + 1e-2)
    assert found.lower >= shown * part * (1 - 1e-2)


@pytest.mark.parametrize(("categories", "truth", "steps"), [(2, 0.9, 4), (4, 0.7, 4), (7, 0.2, 3)])
def test_randomised_response_is_summed_over_all_answers(categories: int, truth: float, steps: int) -> None:
    other = (1 - truth) / (categories - 1)
    one = [(truth, other), (other, truth), *[(other, other)] * (categories - 2)]
    answers = [tuple(math.prod(side) for side in zip(*each, strict=True)) for each in product(one, repeat=steps)]
    history = [randomised_response(categories, truth, steps=steps)]
    for at in (0.0, 0.7, 2.5):
        exact = sum(max(0.0, p - math.exp(at) * q) for p, q in answers)
        found = delta_of_history(history, at)
        assert found.lower * (1 - 1e-12) - 1e-15 <= exact <= found.upper * (1 + 1e-12) + 1e-15
        assert found.upper <= exact * 1.001 + 1e-12


@pytest.mark.parametrize("relation", ["add-remove", "replace-one"])
@pytest.mark.parametrize("turned", [False, True])
def test_an_own_distribution_is_summed_over_all_outcomes(relation: str, turned: bool) -> None:
    """P and Q differ between the two directions, and each has outcomes that the other lacks."""
    p, q = np.array([0.55, 0.30, 0.10, 0.05, 0.0]), np.array([0.15, 0.30, 0.54, 0.0, 0.01])
    p, q = (q, p) if turned else (p, q)
    both = (p > 0) & (q > 0)
    steps, at = 3, 1.2
    outcomes = [(math.prod(p[list(each)]), math.prod(q[list(each)])) for each in product(range(5), repeat=steps)]
    exact = max(
        sum(max(0.0, a - math.exp(at) * b) for a, b in pairs) for pairs in (outcomes, [o[::-1] for o in outcomes])
    )
    name = f"test-{turned}"
    release = own_distribution(name, np.log(p[both] / q[both]), p[both], steps=steps, relation=relation)
    found = delta_of_history([release], at)
    assert exact <= found.upper * (1 + 1e-12)
    assert found.upper <= exact * 1.01
    assert found.lower == 0
    beside = [release, Release(1.0, 1, sampling="full", relation=relation)]
    assert delta_of_history(beside, at).upper > found.upper
    with pytest.raises(ValueError, match=r"^name must stand for one distribution in a process; got 'test-"):
        own_distribution(name, [0.0], [1.0], relation=relation)


def test_they_compose_with_gaussian_noise() -> None:
    """delta of both is the mean, over the stated step's loss l, of the Gaussian's delta at epsilon - l."""
    mu, epsilon, at = 1.0, 0.5, 3.0
    history = [Release(10.0, 100, sampling="full", relation="add-remove"), approximate(epsilon, relation="add-remove")]
    share = 1 / (1 + math.exp(-epsilon))
    exact = sum(
        chance * (stats.norm.cdf(mu / 2 - x / mu) - math.exp(x) * stats.norm.cdf(-mu / 2 - x / mu))
        for chance, x in ((share, at - epsilon), (1 - share, at + epsilon))
    )
    found = delta_of_history(history, at)
    assert found.lower <= exact * (1 + 1e-9)
    assert exact <= found.upper * (1 + 1e-9)
    assert found.upper / found.lower < 1.01


def test_what_cannot_be_stated_is_refused_in_one_line() -> None:
    for given, words in (
        (lambda: approximate(0.0, 0.0, relation="add-remove"), "epsilon or delta must be positive"),
        (lambda: approximate(-1.0, 0.1, relation="add-remove"), "epsilon must be"),
        (lambda: approximate(1.0, 1.0, relation="add-remove"), "delta must be"),
        (lambda: own_distribution("a b", [0.0], [1.0], relation="add-remove"), "^name must be 1 to 64 letters"),
        (lambda: own_distribution("x", [0.0, 1.0], [1.0], relation="add-remove"), "^losses and probabilities must be"),
        (lambda: own_distribution("x", [math.nan], [1.0], relation="add-remove"), "^losses must be"),
        (lambda: own_distribution("x", [0.0, 1.0], [0.5, 0.6], relation="add-remove"), "at most 1 under P; got 1.1"),
        (lambda: own_distribution("x", [-1.0], [1.0], relation="add-remove"), "at most 1 under Q; got 2.7"),
        (lambda: MECHANISMS["own:nobody"], "^mechanism must be own:NAME of a distribution"),
        (lambda: randomised_response(4, 0.25), "truth must be"),
        (lambda: randomised_response(1, 0.9), "categories must be"),
        (lambda: MECHANISMS["approximate:1"], r"^mechanism must be approximate:NUMBER,NUMBER; got '1'$"),
        (lambda: MECHANISMS["randomised-response:2.5,0.9"], "^mechanism must be randomised-response with its numbers"),
        (
            lambda: Release(1.0, 1, sampling="full", relation="add-remove", mechanism="randomised-response:4,0.7"),
            "^relation must be replace-one with randomised-response",
        ),
        (
            lambda: Release(
                1.0, 1, sampling="poisson", sample_rate=0.1, relation="add-remove", mechanism="approximate:1,0"
            ),
            "^sampling must be one of full",
        ),
        (lambda: MECHANISMS["approximate:1,0"].draw(SystemNoise(), 1.0, (1,)), "^mechanism must be one that is drawn"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            given()
        assert "\n" not in str(caught.value)


def test_the_names_of_stated_laws_are_not_offered_as_noise() -> None:
    assert "approximate" not in MECHANISMS.families
    with pytest.raises(ValueError, match=r"discrete-laplace; got 'approximately'$"):
        MECHANISMS["approximately"]


def test_randomised_response_as_an_event_of_dp_accounting() -> None:
    dp = pytest.importorskip("dp_accounting", reason="the compare extra is not installed")
    history = [randomised_response(4, 0.7, steps=5)]
    again = history_from_event(event_from_history(history), "replace-one")
    assert epsilon_of_history(again, 1e-5).upper == pytest.approx(epsilon_of_history(history, 1e-5).upper, rel=1e-9)
    event = dp.dp_event.RandomizedResponseDpEvent(0.4, 4)
    accountant = dp.pld.PLDAccountant(dp.NeighboringRelation.REPLACE_ONE)
    for _ in range(3):  # their accountant counts a self-composed event once
        accountant.compose(event)
    ours = epsilon_of_history(history_from_event(dp.SelfComposedDpEvent(event, 3), "replace-one"), 1e-3)
    assert accountant.get_epsilon(1e-3) == pytest.approx(ours.upper, rel=1e-3)
    with pytest.raises(UnsupportedEvent, match=r"got RandomizedResponseDpEvent with add-remove, not replace-one$"):
        history_from_event(event, "add-remove")
