"""Tests of one release with Laplace noise, accounted for by pairs of finite laws.

The oracles are closed forms, quadrature, and dp-accounting's privacy loss distributions.
"""

import itertools
import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import integrate

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.laws.laplace import laplace_pairs
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import Release
from tests.privacy.oracle import three


def release(s, steps, q, relation="add-remove", mechanism="laplace"):
    sampling = "full" if q == 1 else "poisson"
    return Release(s, steps, sampling=sampling, relation=relation, sample_rate=q, mechanism=mechanism)


@pytest.mark.parametrize("s", [0.4, 2.0, 50.0])
@pytest.mark.parametrize("relation", Relation)
def test_one_full_release_is_the_closed_form(s, relation):
    """The delta of one full release is the closed form 1 - e^((epsilon - a)/2), where a is sensitivity over noise."""
    a = (2 if relation == "replace-one" else 1) / s
    for share in (0.0, 0.3, 0.95):
        exact = -math.expm1((share - 1) * a / 2)
        found = delta_of_history([release(s, 1, 1.0, relation)], share * a)
        assert found.upper <= 1.0011 * found.lower
        assert found.lower * (1 - 1e-12) <= exact <= found.upper * (1 + 1e-12)


@pytest.mark.parametrize(("s", "q"), [(0.5, 0.3), (2.0, 0.01), (8.0, 0.9)])
@pytest.mark.parametrize("replaced", [False, True])
def test_one_sampled_release_against_quadrature(s, q, replaced):
    def density(x, centre):
        return np.exp(-np.abs(x - centre) / s) / (2 * s)

    def first(x):
        return (1 - q) * density(x, 0) + q * density(x, 1)

    def second(x):
        return (1 - q) * density(x, 0) + q * density(x, -1) if replaced else density(x, 0)

    relation = "replace-one" if replaced else "add-remove"
    pairs = laplace_pairs(s, q, replaced=Relation(relation).replaces)
    largest = math.log1p(q * math.expm1(1 / s))
    for (p, r), pair in zip(((first, second), (second, first)), pairs, strict=True):
        for epsilon in (0.0, 0.2 * largest, 0.7 * largest):
            gain = lambda x, p=p, r=r, e=epsilon: np.maximum(p(x) - math.exp(e) * r(x), 0.0)  # noqa: E731
            cuts = [-60 * s, *np.linspace(-1, 1, 81), 60 * s]
            exact = sum(integrate.quad(gain, a, b, limit=200, epsabs=1e-14)[0] for a, b in itertools.pairwise(cuts))
            lower, _, upper = three(pair, epsilon)
            assert lower - 1e-9 * exact - 1e-13 <= exact <= upper + 1e-9 * exact + 1e-13
            assert upper - lower <= 1e-5 * exact + 1e-13


@pytest.mark.parametrize(("s", "q", "steps"), [(3.0, 0.1, 40), (20.0, 0.05, 2000), (10.0, 1.0, 30)])
def test_many_releases_cost_what_dp_accounting_says(s, q, steps):
    """Many releases cost what dp-accounting says, whose answers are a little too large because of its grid of 1e-4."""
    inner = dp.LaplaceDpEvent(s)
    event = dp.SelfComposedDpEvent(inner if q == 1 else dp.PoissonSampledDpEvent(q, inner), steps)
    theirs = PLDAccountant().compose(event).get_epsilon(1e-6)
    found = epsilon_of_history([release(s, steps, q)], 1e-6)
    assert found.lower < found.upper < 1.001 * found.lower
    assert found.lower * (1 - 1e-3) <= theirs
    assert found.upper <= theirs * (1 + 1e-4)
    assert theirs <= found.upper * 1.02
    assert found.upper < 0.8 * epsilon_of_history([release(s, steps, q)], 0.0).upper


def test_noise_is_calibrated_at_its_delta():
    question = {"steps": 50, "sampling": "poisson", "relation": "replace-one", "sample_rate": 0.1}
    found = calibrate_noise_multiplier(target_epsilon=1.0, target_delta=1e-6, mechanism="laplace", **question)
    pure = calibrate_noise_multiplier(target_epsilon=1.0, target_delta=0.0, mechanism="laplace", **question)
    assert found.lower < found.upper < 1.001 * found.lower
    assert found.upper < 0.6 * pure.upper
    assert delta_of_history([release(found.upper, 50, 0.1, "replace-one")], 1.0).upper <= 1e-6
    assert delta_of_history([release(found.lower, 50, 0.1, "replace-one")], 1.0).lower > 1e-6


def test_a_fine_lattice_is_between_a_coarse_one_and_continuous_noise():
    costs = [
        delta_of_history([release(1.5, 3, 0.2, mechanism=m)], 0.3)
        for m in ("discrete-laplace:1", "discrete-laplace:30", "discrete-laplace:100000", "laplace")
    ]
    for more, less in itertools.pairwise(costs):
        assert less.upper < more.upper * (1 + 1e-6)
    assert costs[2].upper == pytest.approx(costs[3].upper, rel=1e-4)
    assert costs[0].lower > 1.05 * costs[3].upper


def test_very_many_and_hardly_any_noise_have_their_pure_epsilon():
    for s, steps in ((1e6, 2**24 + 1), (1e-3, 2)):
        found = epsilon_of_history([release(s, steps, 1.0)], 1e-6)
        assert found.upper == pytest.approx(steps / s, rel=1e-9)
        assert found.lower <= found.upper


def test_close_below_pure_epsilon_delta_is_that_of_the_largest_losses_alone():
    """Close below the pure epsilon, delta is that of the largest losses alone.

    For three releases at rate 0.2, those are the outputs beyond the record, to first order; pure epsilon gives 250
    times as much.
    """
    beyond, without = 0.8 * 0.5 * math.exp(-2) + 0.2 * 0.5, 0.5 * math.exp(-2)
    epsilon = 2.46964
    exact = beyond**3 - math.exp(epsilon) * without**3
    release = Release(0.5, 3, sampling="poisson", relation="add-remove", sample_rate=0.2, mechanism="laplace")
    found = delta_of_history([release], epsilon)
    assert found.lower <= exact * (1 + 1e-3)
    assert exact * (1 - 1e-3) <= found.upper < 12 * exact
    pure = 3 * math.log(0.8 + 0.2 * math.exp(2))
    assert found.upper < (1 - math.exp(epsilon - pure)) / 20
    assert delta_of_history([release], math.nextafter(pure, 0.0)).upper < 1e-11
