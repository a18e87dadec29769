"""Laplace noise: its pure epsilon and its laws, against enumeration, closed forms, quadrature and dp-accounting."""

import itertools
import math

import dp_accounting as dp
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from scipy import integrate

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.laws.shifts import LaplaceNoise, binomial_shifts, shifted_pairs
from dpzero_theory.privacy.mechanism import MECHANISMS, _lattice_gap
from dpzero_theory.privacy.relation import Relation
from tests.privacy.oracle import around, made, pair_delta


def laplace(s, steps, q=1.0, relation="add-remove", mechanism="laplace"):
    return made(s, steps, q, relation, mechanism=mechanism)


@pytest.mark.parametrize("q", [1.0, 0.4, 0.01])
@pytest.mark.parametrize("noise", [0.5, 3.0])
def test_epsilon_is_the_largest_log_ratio_over_all_outputs(q, noise):
    """By enumeration for 5 integers to a clip: nothing is larger, and it is reached. By hand for one record less."""
    x, values = np.arange(-60, 61), range(-5, 6)
    noisy = {centre: np.exp(-np.abs(x - centre) / (noise * 5)) for centre in values}
    used = {value: (1 - q) * noisy[0] + q * noisy[value] for value in values}
    removed = max(np.abs(np.log(used[v] / noisy[0])).max() for v in values)
    replaced = max(np.abs(np.log(used[v] / used[w])).max() for v in values for w in values)
    for relation, exact in (("add-remove", removed), ("replace-one", replaced)):
        assert epsilon_of_history(laplace(noise, 1, q, relation), 0.0).upper == pytest.approx(exact, rel=1e-9)
    assert removed == pytest.approx(math.log(1 + q * (math.exp(1 / noise) - 1)))


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("q", [1.0, 0.3, 1e-3])
@pytest.mark.parametrize(("epsilon", "steps"), [(2.0, 1000), (1e-6, 3), (80.0, 2)])
def test_pure_calibration_meets_the_target_and_is_tight(relation, q, epsilon, steps):
    noise = MECHANISMS["laplace"].multiplier(laplace(1.0, steps, q, relation), epsilon)
    assert epsilon_of_history(laplace(noise, steps, q, relation), 0.0).upper <= epsilon
    assert epsilon < epsilon_of_history(laplace(noise * (1 - 1e-8), steps, q, relation), 0.0).upper


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda: epsilon_of_history(laplace(1e-3, 1, 0.5), 0.0), "1/700"),
        (lambda: MECHANISMS["laplace"].multiplier(laplace(1.0, 1), 0.0), "target_epsilon must be"),
    ],
)
def test_bad_arguments_are_named(ask, named):
    with pytest.raises(ValueError, match=named):
        ask()


@pytest.mark.parametrize("noise", [1 / 300, 0.1, 1.0, 30.0])
def test_lattice_noise_is_within_the_gap_of_continuous_noise(noise):
    """The densities' ratios at all distances, with 60 digits; one release on a lattice of 2^30 integers to a clip.

    Discrete noise with a uniform number added is compared with continuous noise at both ends of each integer, and
    continuous noise that is rounded with discrete noise.
    """
    with mpmath.workdps(60):
        y = 1 / (2 * mpmath.mpf(noise) * 2**30)
        gap = mpmath.mpf(_lattice_gap(noise, 1))
        ends = [mpmath.tanh(y) / y * mpmath.e ** (side * y) for side in (-1, 1)]
        rounded = [mpmath.sinh(y) / mpmath.tanh(y), (1 - mpmath.e ** (-y)) / mpmath.tanh(y)]
        for ratio in (*ends, *rounded):
            assert abs(mpmath.log(ratio)) <= gap <= y * (1 + 2 * y) + mpmath.mpf(10) ** -20


@pytest.mark.parametrize("s", [0.4, 2.0, 50.0])
@pytest.mark.parametrize("relation", Relation)
def test_one_full_release_is_the_closed_form(s, relation):
    """That is 1 - e^((epsilon - a)/2), where a is sensitivity over noise."""
    a = (2 if relation == "replace-one" else 1) / s
    for share in (0.0, 0.3, 0.95):
        found = delta_of_history(laplace(s, 1, 1.0, relation), share * a)
        assert around(found, -math.expm1((share - 1) * a / 2), 1e-12, width=1.1e-3)


@pytest.mark.parametrize(("s", "q"), [(0.5, 0.3), (2.0, 0.01), (8.0, 0.9)])
@pytest.mark.parametrize("replaced", [False, True])
def test_one_sampled_release_against_quadrature(s, q, replaced):
    density = lambda x, centre: np.exp(-np.abs(x - centre) / s) / (2 * s)  # noqa: E731
    first = lambda x: (1 - q) * density(x, 0) + q * density(x, 1)  # noqa: E731
    second = lambda x: (1 - q) * density(x, 0) + q * density(x, -1) if replaced else density(x, 0)  # noqa: E731
    largest, cuts = math.log1p(q * math.expm1(1 / s)), [-60 * s, *np.linspace(-1, 1, 81), 60 * s]
    pairs = shifted_pairs(LaplaceNoise(s), binomial_shifts(q, 1), replaced=replaced)
    for (p, r), pair in zip(((first, second), (second, first)), pairs, strict=True):
        for epsilon in (0.0, 0.2 * largest, 0.7 * largest):
            gain = lambda x, p=p, r=r, e=epsilon: np.maximum(p(x) - math.exp(e) * r(x), 0.0)  # noqa: E731
            exact = sum(integrate.quad(gain, a, b, limit=200, epsabs=1e-14)[0] for a, b in itertools.pairwise(cuts))
            lower, upper = pair_delta(pair, epsilon)
            assert lower - 1e-9 * exact - 1e-13 <= exact <= upper + 1e-9 * exact + 1e-13
            assert upper - lower <= 1e-5 * exact + 1e-13


@pytest.mark.parametrize(("s", "q", "steps"), [(3.0, 0.1, 40), (20.0, 0.05, 2000), (10.0, 1.0, 30)])
def test_many_releases_cost_what_dp_accounting_says(s, q, steps):
    """Whose answers are a little too large because of its grid of 1e-4."""
    inner = dp.LaplaceDpEvent(s)
    event = dp.SelfComposedDpEvent(inner if q == 1 else dp.PoissonSampledDpEvent(q, inner), steps)
    theirs = PLDAccountant().compose(event).get_epsilon(1e-6)
    found = epsilon_of_history(laplace(s, steps, q), 1e-6)
    assert found.lower < found.upper < 1.001 * found.lower
    assert found.lower * (1 - 1e-3) <= theirs <= found.upper * 1.02
    assert found.upper <= theirs * (1 + 1e-4)
    assert found.upper < 0.8 * epsilon_of_history(laplace(s, steps, q), 0.0).upper


def test_a_fine_lattice_is_between_a_coarse_one_and_continuous_noise():
    kinds = ("discrete-laplace:1", "discrete-laplace:30", "discrete-laplace:100000", "laplace")
    costs = [delta_of_history(laplace(1.5, 3, 0.2, mechanism=kind), 0.3) for kind in kinds]
    for more, less in itertools.pairwise(costs):
        assert less.upper < more.upper * (1 + 1e-6)
    assert costs[2].upper == pytest.approx(costs[3].upper, rel=1e-4)
    assert costs[0].lower > 1.05 * costs[3].upper


@pytest.mark.parametrize(("s", "steps"), [(1e6, 2**24 + 1), (1e-3, 2)])
def test_very_many_and_hardly_any_noise_have_their_pure_epsilon(s, steps):
    found = epsilon_of_history(laplace(s, steps), 1e-6)
    assert found.lower <= found.upper == pytest.approx(steps / s, rel=1e-9)


def test_close_below_pure_epsilon_delta_is_that_of_the_largest_losses_alone():
    """To first order, those of three releases at rate 0.2 are the outputs beyond the record; the pure epsilon gives
    250 times as much."""
    beyond, without, epsilon = 0.8 * 0.5 * math.exp(-2) + 0.2 * 0.5, 0.5 * math.exp(-2), 2.46964
    exact, pure = beyond**3 - math.exp(epsilon) * without**3, 3 * math.log(0.8 + 0.2 * math.exp(2))
    found = delta_of_history(laplace(0.5, 3, 0.2), epsilon)
    assert found.lower <= exact * (1 + 1e-3)
    assert exact * (1 - 1e-3) <= found.upper < min(12 * exact, (1 - math.exp(epsilon - pure)) / 20)
    # Numbers that are resolved up to the lattice's ratio
    assert delta_of_history(laplace(0.5, 3, 0.2), math.nextafter(pure, 0.0)).upper < 1e-11
