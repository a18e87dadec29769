"""Tests of batches of fixed size under zero-out.

The deltas of the pair of laws are compared with data on a line and in the plane, compositions with the game over data
(`test_game`), and the brackets' ends with those of neighbouring relations. The theory is section 5 of derivation.md.
"""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.calibration import calibrate_noise_multiplier
from dpzero_theory.privacy.laws.zeroed import LEAST_ZEROED, zeroed_pairs
from dpzero_theory.privacy.step import Release
from tests.privacy.laws.test_game import game
from tests.privacy.oracle import pair_delta

SETTINGS = [(1e-7, 0.8), (0.001, 0.3), (0.01, 1.0), (0.05, 3.0), (0.3, 10.0), (0.5, 0.5), (0.99, 2.0)]


def on_a_line(q, s, u, y, epsilon, *, reverse=False):
    """Returns the divergence of one step by quadrature, with data on a line.

    Args:
        q, s: the sampling rate and the noise multiplier.
        u: the contribution of the record.
        y: the contribution of the record that makes way.
        epsilon: the divergence is delta at this epsilon.
        reverse: whether the two laws are exchanged.
    """

    def gain(x):
        still = (1 - q) * norm.pdf(x, y, s)
        first, second = still + q * norm.pdf(x, u, s), still + q * norm.pdf(x, 0.0, s)
        return second - math.exp(epsilon) * first if reverse else first - math.exp(epsilon) * second

    x = np.linspace(-2 - 14 * s, 2 + 14 * s, 4001)
    changes = np.flatnonzero(np.diff(gain(x) > 0))
    ends = [x[0], *(brentq(gain, x[k], x[k + 1], xtol=1e-13) for k in changes), x[-1]]
    nodes, weights = np.polynomial.legendre.leggauss(400)
    parts = [(b - a) / 2 * weights @ gain((b - a) / 2 * nodes + (a + b) / 2) for a, b in pairwise(ends)]
    return sum(part for part in parts if part > 0)


@pytest.mark.parametrize(("q", "s"), SETTINGS)
def test_one_release_is_known(q, s):
    forward, backward = zeroed_pairs(s, q)
    deep = 2 * q * math.sqrt(math.expm1(4 / s**2))
    for epsilon in (0.0, 0.3 * min(deep, 1.0), min(deep, 1.5)):
        exact = on_a_line(q, s, 1.0, -1.0, epsilon)
        lower, upper = pair_delta(forward, epsilon)
        assert exact * (1 - 5e-3) <= lower <= exact * (1 + 1e-9), epsilon
        assert exact * (1 - 1e-9) <= upper <= exact * (1 + 5e-3), epsilon
        # For the law without the record against the one with it, other data are worst: the records that make way are
        # like the record
        assert pair_delta(backward, epsilon)[1] >= on_a_line(q, s, -1.0, -1.0, epsilon, reverse=True) * (1 - 1e-9)
        assert pair_delta(backward, epsilon)[0] <= on_a_line(q, s, 1.0, -1.0, epsilon, reverse=True) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("q", "s", "epsilon"), [(0.01, 1.0, 2e-3), (0.3, 10.0, 0.01), (0.5, 0.5, 0.1), (0.99, 2.0, 0.3)]
)
def test_intervals_are_the_best_events_of_the_other_direction(q, s, epsilon):
    exact = on_a_line(q, s, 1.0, -1.0, epsilon, reverse=True)
    assert exact * (1 - 5e-3) <= pair_delta(zeroed_pairs(s, q)[1], epsilon)[0] <= exact * (1 + 1e-9)


@pytest.mark.parametrize(("q", "s"), [(0.01, 1.0), (0.3, 3.0), (0.5, 0.5)])
def test_no_data_in_the_plane_exceed_it(q, s):
    pairs = zeroed_pairs(s, q)
    line = np.linspace(-1 - 8 * s, 1 + 8 * s, 161)
    x, cell = np.stack(np.meshgrid(line, line)), (line[1] - line[0]) ** 2 / (2 * math.pi * s * s)

    def density(point):
        return cell * np.exp(-((x - np.reshape(point, (2, 1, 1))) ** 2).sum(axis=0) / (2 * s * s))

    rng = np.random.default_rng(5)
    for _ in range(40):
        u, y = (radius * np.array([math.cos(t), math.sin(t)]) for radius, t in rng.uniform([0.5, 0], [1, 7], (2, 2)))
        still = (1 - q) * density(y)
        laws = still + q * density(u), still + q * density((0, 0))
        for pair, (first, second) in zip(pairs, (laws, laws[::-1]), strict=True):
            for epsilon in (0.0, 0.5 * q, 2 * q):
                found = np.maximum(first - math.exp(epsilon) * second, 0.0).sum()
                assert found <= pair_delta(pair, epsilon)[1] * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(
    ("q", "s", "steps", "epsilon"), [(0.05, 3.0, 16, 0.1), (0.1, 1.0, 8, 0.8), (0.3, 2.0, 20, 1.0)]
)
def test_the_game_over_data_on_a_line_is_in_the_bracket(q, s, steps, epsilon):
    """The game over data on a line stays in the bracket.

    Data may depend on what has been released; data that do not attain the lower end.
    """
    release = Release(s, steps, sampling="fixed-size", relation="zero-out", sample_rate=q)
    found = delta_of_history([release], epsilon)
    constant, _, _ = game(q, s, steps, epsilon, [(1, 0, -1)])
    best, _, _ = game(q, s, steps, epsilon, [(u, 0, y) for u in (-1, 1) for y in (-1, 0, 1)])
    assert found.lower == pytest.approx(constant, rel=0.02)
    assert constant <= best <= found.upper * 1.005
    # Two bounds known before are that of a record whose others add nothing, and that of a replaced record
    before = [delta_of_history([Release(s, steps, sampling="poisson", relation="zero-out", sample_rate=q)], epsilon)]
    before += [
        delta_of_history([Release(s, steps, sampling="fixed-size", relation="replace-one", sample_rate=q)], epsilon)
    ]
    assert 1.05 * before[0].upper < found.lower
    assert found.upper < 0.95 * before[1].lower


@pytest.mark.parametrize("steps", [1, 1000])
def test_noise_is_between_that_of_a_record_alone_and_of_a_replaced_one(steps):
    target = {"target_epsilon": 2.0, "target_delta": 1e-5, "steps": steps, "sample_rate": 0.01}
    alone = calibrate_noise_multiplier(sampling="poisson", relation="zero-out", **target)
    replaced = calibrate_noise_multiplier(sampling="fixed-size", relation="replace-one", **target)
    found = calibrate_noise_multiplier(sampling="fixed-size", relation="zero-out", **target)
    assert alone.upper < found.lower
    assert found.upper <= found.lower * (1.013 if steps > 1 else 1.001)
    if steps > 1:  # The expected numbers are those of derivation.md
        assert (found.upper, replaced.upper) == pytest.approx((1.701, 2.098), abs=5e-4)


def test_where_its_noise_ends_the_other_bound_goes_on():
    """Below the least noise that this method takes, the pairs of laws of a replaced record are used, and are larger."""
    near = [
        delta_of_history([Release(s, 3, sampling="fixed-size", relation="zero-out", sample_rate=0.1)], 150.0)
        for s in (LEAST_ZEROED * 1.0001, LEAST_ZEROED * 0.9999)
    ]
    assert near[0].upper <= near[1].upper
    assert near[1].lower <= near[0].upper


def test_any_history_is_known():
    """A history with Poisson batches of another rate beside those of fixed size is accounted for."""
    releases = [
        Release(1.5, 100, sampling="fixed-size", relation="zero-out", sample_rate=0.02),
        Release(1.2, 50, sampling="poisson", relation="zero-out", sample_rate=0.05),
    ]
    both, one, other = (delta_of_history(history, 0.7) for history in (releases, releases[:1], releases[1:]))
    assert max(one.upper, other.upper) < both.lower
    assert both.upper <= 1.5 * both.lower


@pytest.mark.parametrize(
    ("steps", "rate", "epsilon", "delta"),
    [(11_228, 2.477e-5, 0.1666, 1.54e-29), (15, 1.2e-7, 0.00228, 2.2e-17), (47_225, 4.11e-5, 0.00342, 7.4e-17)],
)
def test_rare_batches_are_known_and_cost_what_they_were_calibrated_for(steps, rate, epsilon, delta):
    """Rare batches have narrow brackets, and the calibrated noise meets its target.

    That is so for whoever asks for delta, without knowing where it is, and for whoever asks for epsilon.
    """
    batches = {"steps": steps, "sampling": "fixed-size", "relation": "zero-out", "sample_rate": rate}
    found = calibrate_noise_multiplier(target_epsilon=epsilon, target_delta=delta, **batches)
    assert found.upper < found.lower * (1.04 if steps > 20_000 else 1.001)
    release = Release(found.upper, **batches)
    spent = delta_of_history([release], epsilon)
    assert 0.1 * delta < spent.lower < spent.upper <= delta
    assert epsilon_of_history([release], delta).upper <= epsilon


def test_far_beside_full_batches():
    """Beside full batches with little noise, where no grid reaches, delta is still bounded and never 0.

    A search for epsilon ends.
    """
    history = [
        Release(2.857, 10, sampling="full", relation="zero-out"),
        Release(0.2258, 1, sampling="fixed-size", relation="zero-out", sample_rate=0.00112),
    ]
    alone = epsilon_of_history(history[1:], 6.386e-10)
    both = epsilon_of_history(history, 6.386e-10)
    assert alone.upper < both.lower < both.upper < 1.001 * both.lower
    for epsilon in (50.0, 80.0, 500.0):
        assert 0 < delta_of_history(history, epsilon).upper < 1e-12
    little = [Release(54.0, 73, sampling="full", relation="zero-out")]
    little += [Release(17.5, 44, sampling="random-allocation", relation="zero-out", sample_rate=0.25)]
    assert delta_of_history(little, 22.0).upper > 0
