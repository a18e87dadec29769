"""Batches of fixed size under replace-one and zero-out: one step by quadrature, many as a game over data on a line and
in the plane (derivation.md, section 5)."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.grid import delta_bounds
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.shifts import LEAST_ZEROED, zeroed_pairs
from tests.privacy.oracle import made, noise_for, pair_delta

REMOVE, ADD, BETWEEN = (1, -1, -1), (1, -1, 1), (1, -1, 0)
"""Contributions u, u' and y in the game: those of the record, of the other record, and of the one that makes way."""


def law(q, s, u, v, y):
    """Returns the probabilities of the outputs under P, and the privacy losses of P against the other law.

    u, v and y are the contributions of the record, of the other record, and of the one that makes way.
    """
    x = np.linspace(-1 - 8 * s, 1 + 8 * s, 121)
    p, k = ((1 - q) * np.exp(-(((x - y) / s) ** 2) / 2) + q * np.exp(-(((x - m) / s) ** 2) / 2) for m in (u, v))
    return p / p.sum(), np.log(p / k)


def game(q, s, steps, epsilon, actions):
    """Returns delta(epsilon) of steps whose data may depend on what was released, by dynamic programming over epsilon
    less the loss so far; `actions` are the contributions that each step may have."""
    reach = epsilon + 8 * math.sqrt(steps * math.expm1(4 / s**2)) * q
    w = np.linspace(-reach, reach, 1001)
    value = np.maximum(-np.expm1(w), 0.0)
    laws = [law(q, s, *action) for action in actions]
    for _ in range(steps):
        left = [
            np.interp(w[:, None] - loss, w, value, right=0.0) @ p
            + np.where(w[:, None] - loss < w[0], -np.expm1(w[:, None] - loss) - value[0], 0.0) @ p
            for p, loss in laws
        ]
        value = np.max(left, axis=0)
    return float(np.interp(epsilon, w, value))


@pytest.mark.parametrize(("q", "s", "steps", "epsilon"), [(0.05, 3.0, 16, 0.3), (0.05, 0.8, 8, 3.0)])
def test_a_replaced_record_is_strictly_between_the_ends(q, s, steps, epsilon):
    ends = {k: delta_bounds([((Gaussian(k, q, s / 2), steps),)], epsilon) for k in ("remove", "add", "fixed-size")}
    one = game(q, s, steps, epsilon, [REMOVE])
    assert one == pytest.approx(ends["remove"].upper, rel=2e-3)
    best = game(q, s, steps, epsilon, [REMOVE, ADD, BETWEEN])
    assert 1.02 * max(ends["remove"].upper, ends["add"].upper) < best < 0.95 * ends["fixed-size"].lower
    found = delta_of_history(made(s, steps, q, "replace-one", sampling="fixed-size"), epsilon)
    assert found.lower <= best <= found.upper
    # Also where no two steps are alike, and where batches are of one size because a limit is always met.
    single = [made(s + 1e-9 * k, 1, q, "replace-one", sampling="fixed-size") for k in range(steps)]
    limited = made(s, steps, 0.5, "replace-one", sampling=f"truncated-poisson:{round(1000 * q)}/1000")
    for history in (single, limited):
        assert best <= delta_of_history(history, epsilon).upper <= found.upper * 1.002


def on_a_line(q, s, u, y, epsilon, *, reverse=False):
    """Returns the divergence of one step under zero-out by quadrature, with the record at u and the one that makes way
    at y. reverse: whether the two laws are exchanged."""

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


@pytest.mark.parametrize(
    ("q", "s"), [(1e-7, 0.8), (0.001, 0.3), (0.01, 1.0), (0.05, 3.0), (0.3, 10.0), (0.5, 0.5), (0.99, 2.0)]
)
def test_one_zeroed_release_is_known(q, s):
    forward, backward = zeroed_pairs(s, q)
    deep = 2 * q * math.sqrt(math.expm1(4 / s**2))
    for epsilon in (0.0, 0.3 * min(deep, 1.0), min(deep, 1.5)):
        exact = on_a_line(q, s, 1.0, -1.0, epsilon)
        lower, upper = pair_delta(forward, epsilon)
        assert exact * (1 - 5e-3) <= lower <= exact * (1 + 1e-9), epsilon
        assert exact * (1 - 1e-9) <= upper <= exact * (1 + 5e-3), epsilon
        # In the other direction other data are worst: the records that make way are like the record.
        lower, upper = pair_delta(backward, epsilon)
        assert upper >= on_a_line(q, s, -1.0, -1.0, epsilon, reverse=True) * (1 - 1e-9)
        assert lower <= on_a_line(q, s, 1.0, -1.0, epsilon, reverse=True) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("q", "s", "epsilon"), [(0.01, 1.0, 2e-3), (0.3, 10.0, 0.01), (0.5, 0.5, 0.1), (0.99, 2.0, 0.3)]
)
def test_intervals_are_the_best_events_of_the_other_direction(q, s, epsilon):
    exact = on_a_line(q, s, 1.0, -1.0, epsilon, reverse=True)
    assert exact * (1 - 5e-3) <= pair_delta(zeroed_pairs(s, q)[1], epsilon)[0] <= exact * (1 + 1e-9)


@pytest.mark.parametrize(("q", "s"), [(0.01, 1.0), (0.3, 3.0), (0.5, 0.5)])
def test_no_data_in_the_plane_exceed_it(q, s):
    pairs, rng = zeroed_pairs(s, q), np.random.default_rng(5)
    line = np.linspace(-1 - 8 * s, 1 + 8 * s, 161)
    x, cell = np.stack(np.meshgrid(line, line)), (line[1] - line[0]) ** 2 / (2 * math.pi * s * s)
    density = lambda at: cell * np.exp(-((x - np.reshape(at, (2, 1, 1))) ** 2).sum(axis=0) / (2 * s * s))  # noqa: E731
    for _ in range(40):
        u, y = (radius * np.array([math.cos(t), math.sin(t)]) for radius, t in rng.uniform([0.5, 0], [1, 7], (2, 2)))
        laws = [(1 - q) * density(y) + q * density(at) for at in (u, (0, 0))]
        for pair, (first, second) in zip(pairs, (laws, laws[::-1]), strict=True):
            for epsilon in (0.0, 0.5 * q, 2 * q):
                exact = np.maximum(first - math.exp(epsilon) * second, 0.0).sum()
                assert exact <= pair_delta(pair, epsilon)[1] * (1 + 1e-6) + 1e-12


@pytest.mark.parametrize(
    ("q", "s", "steps", "epsilon"), [(0.05, 3.0, 16, 0.1), (0.1, 1.0, 8, 0.8), (0.3, 2.0, 20, 1.0)]
)
def test_a_zeroed_record_against_the_game_and_the_neighbouring_relations(q, s, steps, epsilon):
    zeroed, alone, replaced = (
        delta_of_history(made(s, steps, q, relation, sampling=sampling), epsilon)
        for sampling, relation in (("fixed-size", "zero-out"), ("poisson", "zero-out"), ("fixed-size", "replace-one"))
    )
    constant = game(q, s, steps, epsilon, [(1, 0, -1)])
    best = game(q, s, steps, epsilon, [(u, 0, y) for u in (-1, 1) for y in (-1, 0, 1)])
    assert zeroed.lower == pytest.approx(constant, rel=0.02)
    assert constant <= best <= zeroed.upper * 1.005
    # A record whose others add nothing costs less, and one that is replaced more.
    assert 1.05 * alone.upper < zeroed.lower
    assert zeroed.upper < 0.95 * replaced.lower


@pytest.mark.parametrize("steps", [1, 1000])
def test_noise_is_between_that_of_a_record_alone_and_of_a_replaced_one(steps):
    alone, replaced, found = (
        noise_for(
            target_epsilon=2.0, target_delta=1e-5, steps=steps, sample_rate=0.01, sampling=sampling, relation=relation
        )
        for sampling, relation in (("poisson", "zero-out"), ("fixed-size", "replace-one"), ("fixed-size", "zero-out"))
    )
    assert alone.upper < found.lower
    assert found.upper <= found.lower * (1.013 if steps > 1 else 1.001)
    if steps > 1:
        assert (found.upper, replaced.upper) == pytest.approx((1.701, 2.098), abs=5e-4)


def test_where_its_noise_ends_the_other_bound_goes_on():
    """Below the least noise that this law takes, the law of a replaced record is used, and is larger."""
    more, less = (
        delta_of_history(made(LEAST_ZEROED * share, 3, 0.1, "zero-out", sampling="fixed-size"), 150.0)
        for share in (1.0001, 0.9999)
    )
    assert less.lower <= more.upper <= less.upper


@pytest.mark.parametrize(
    ("steps", "rate", "epsilon", "delta"),
    [(15, 1.2e-7, 0.00228, 2.2e-17), (47_225, 4.11e-5, 0.00342, 7.4e-17)],
)
def test_rare_batches_are_known_and_cost_what_they_were_calibrated_for(steps, rate, epsilon, delta):
    """Whoever asks for delta, without knowing where it is, and whoever asks for epsilon is told so.

    At a delta of 1e-29 the lower end of the noise is 4% too low, since losses are left out that make it up.
    """
    words = {"sampling": "fixed-size", "relation": "zero-out"}
    found = noise_for(target_epsilon=epsilon, target_delta=delta, steps=steps, sample_rate=rate, **words)
    # At the least rate one tilt does not serve both a large loss and small ones.
    assert found.upper < found.lower * (1.04 if steps > 20_000 else 1.001 if rate > 1e-6 else 1.25)
    release = made(found.upper, steps, rate, **words)
    spent = delta_of_history(release, epsilon)
    assert 0.1 * delta * (rate > 1e-6) <= spent.lower < spent.upper <= delta
    assert epsilon_of_history(release, delta).upper <= epsilon


def test_beside_other_batches_and_far_beside_full_ones():
    """Beside full batches with little noise, where no grid reaches, delta is still bounded and never 0, and a search
    for epsilon ends."""
    fixed = made(1.5, 100, 0.02, "zero-out", sampling="fixed-size")
    poisson = made(1.2, 50, 0.05, "zero-out")
    both, one, other = (delta_of_history(history, 0.7) for history in ([fixed, poisson], fixed, poisson))
    assert max(one.upper, other.upper) < both.lower <= both.upper <= 1.5 * both.lower
    rare = made(0.2258, 1, 0.00112, "zero-out", sampling="fixed-size")
    history = [made(2.857, 10, relation="zero-out"), rare]
    alone, both = (epsilon_of_history(each, 6.386e-10) for each in (rare, history))
    assert alone.upper < both.lower < both.upper < 1.001 * both.lower
    for epsilon in (50.0, 80.0, 500.0):
        assert 0 < delta_of_history(history, epsilon).upper < 1e-12
    little = [made(54.0, 73, relation="zero-out"), made(17.5, 44, 0.25, "zero-out", sampling="random-allocation")]
    assert delta_of_history(little, 22.0).upper > 0
