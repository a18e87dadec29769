"""Random allocation, where a record is in one random step of each epoch: integrals over all outputs, Monte Carlo."""

import math
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import ndtr

from dpzero_theory.check import PreconditionError
from dpzero_theory.privacy.accountant import delta_of_history, epsilon_of_history
from dpzero_theory.privacy.gaussian import delta_from_gdp
from dpzero_theory.privacy.laws.epoch import dominated_pairs, dominating_pairs
from tests.privacy.oracle import around, brute_force, made, noise_for, pair_delta


class Side(NamedTuple):
    """Under which of the two laws a record moves the outputs, 1 or 0: the first, by a random one of them up; the
    second, by a random one down."""

    up: int
    down: int


SIDES = {"remove": Side(1, 0), "add": Side(0, 1), "replace": Side(1, 1)}


def integral(side, s, t, released, loss):
    """Returns E_R (S - e^l S')_+ for the density ratios S and S' of an epoch, where l is `loss`.

    It is the trapezoid rule in all outputs but the last, which is integrated cell by cell; adaptive quadrature of two
    outputs differs by less than 1e-6. `side` says under which of
    the two laws the record moves the outputs, s is the noise multiplier, t the number of steps of an epoch, and
    `released` how many of them are released.
    """
    step = s / 2000
    x = np.arange(-9.5 * s - 1, 9.5 * s + 1, step)
    weight = step * np.exp(-((x / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi))
    half = 1 / (2 * s * s)
    a = math.exp(loss)
    up = np.exp((2 * x - 1) * half) if side.up else np.ones(len(x))
    down = np.exp((-2 * x - 1) * half) if side.down else np.ones(len(x))
    sums, weights = np.array([(t - released) * (1 - a)]), np.ones(1)
    for _ in range(released - 1):
        sums = np.add.outer(sums, up - a * down).ravel()
        weights = np.outer(weights, weight).ravel()
    # From some x on Y - a Y' + sum > 0, where Y' = c/Y and so on; x is found by bisection, since the left side rises
    low, high = np.full(len(sums), -40.0 * s - 2), np.full(len(sums), 40.0 * s + 2)
    for _ in range(70):
        middle = (low + high) / 2
        first = np.exp((2 * middle - 1) * half) if side.up else 1.0
        second = np.exp((-2 * middle - 1) * half) if side.down else 1.0
        above = first - a * second + sums > 0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    tail = [ndtr((mean - high) / s) for mean in (0, side.up, -side.down)]
    return float(weights @ (sums * tail[0] + tail[1] - a * tail[2])) / t


def at(pairs, side, level, end):
    """Returns the divergence at the ratio e^level of what bounds from below (`end` 0) or from above (1)."""
    return pair_delta(pairs[0 if side.up else 1], float(level))[end]


def from_below(side, s, t, released, level):
    pairs = dominated_pairs(s, t, released, 1, replaced=bool(side.up and side.down), points=2**15)
    return at(pairs, side, level, 0)


def from_above(side, s, t, released, level):
    pairs = dominating_pairs(s, t, released, replaced=bool(side.up and side.down), reach=9.0, near=9.0, ratio=0.03)
    return at(pairs, side, level, 1)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("s", "t", "released"), [(0.5, 2, 2), (1.0, 2, 2), (1.0, 3, 2), (0.7, 2, 1), (3.0, 2, 2), (0.3, 1, 1), (2.0, 5, 2)]
)
def test_the_profile_holds_the_integral(side, s, t, released):
    for level in (0.0, 0.3, 1.0, 2.0):
        exact = integral(SIDES[side], s, t, released, level)
        above = from_above(SIDES[side], s, t, released, level)
        assert exact * (1 - 1e-6) <= above
        if t > 1:
            lower = from_below(SIDES[side], s, t, released, level)
            assert lower <= exact * (1 + 1e-6)
            if exact > 1e-12 and released == t:
                assert above - lower <= 0.03 * exact


def test_one_step_is_plain_noise():
    for replaced, gdp in ((False, 1.0), (True, 2.0)):
        exact = float(delta_from_gdp(1.0, gdp))
        for pair in dominating_pairs(1.0, 1, 1, replaced=replaced, reach=9.0, near=9.0, ratio=0.05):
            assert exact <= pair_delta(pair, 1.0)[1] <= 1.01 * exact


@pytest.mark.parametrize(("s", "t"), [(0.5, 50), (1.5, 300)])
@pytest.mark.parametrize("side", SIDES)
def test_many_steps_against_monte_carlo(side, s, t):
    rng, n = np.random.default_rng(20250310), 40_000
    pair = SIDES[side]
    loss = np.empty(n)
    for start in range(0, n, 2000):
        x = s * rng.standard_normal((2000, t))
        x[:, 0] += pair.up
        up = np.exp((2 * x - 1) / (2 * s * s)).mean(axis=1) if pair.up else 1.0
        down = np.exp((-2 * x - 1) / (2 * s * s)).mean(axis=1) if pair.down else 1.0
        loss[start : start + 2000] = np.log(up / down)
    levels = np.array([0.0, 1.0, 2.0]) * float(loss.std())
    above = [from_above(pair, s, t, t, level) for level in levels]
    lower = [from_below(pair, s, t, t, level) for level in levels]
    for k, level in enumerate(levels):
        sample = np.maximum(-np.expm1(level - loss), 0)
        threshold = 5 * float(sample.std()) / math.sqrt(n)
        assert lower[k] - threshold <= sample.mean() <= above[k] + threshold
        # Of two values no sum of independent terms is the best statistic.
        assert above[k] / lower[k] - 1 < (0.25 if side == "replace" else 0.05)


def test_too_little_noise_is_refused():
    with pytest.raises(OverflowError, match="too little"):
        dominating_pairs(0.02, 16, 16, replaced=True, reach=9.0, near=9.0, ratio=0.06)


def allocated(s, t, steps):
    return made(s, steps, 1 / t, sampling="random-allocation")


@pytest.mark.parametrize(
    ("epsilon", "s", "t", "released", "epochs", "width"),
    [
        (0.3, 1.0, 2, 2, 1, 2e-3),
        (0.5, 2.0, 2, 2, 1, 2e-3),
        (1.0, 1.2, 3, 3, 1, 2e-3),
        (0.5, 2.0, 3, 3, 1, 2e-3),
        (0.2, 2.0, 5, 3, 1, 2e-3),
        (0.5, 1.5, 7, 1, 1, 2e-3),
        (0.5, 2.0, 2, 2, 2, 2e-3),
        (0.0, 3.0, 2, 2, 2, 2e-3),
        (4.5, 0.7, 2, 2, 1, 0.05),
        (1.5, 2.0, 2, 2, 2, 0.05),
    ],
)
def test_epochs_against_brute_force_over_all_outputs(epsilon, s, t, released, epochs, width):
    found = delta_of_history(allocated(s, t, t * (epochs - 1) + released), epsilon)
    assert around(found, max(brute_force(epsilon, s, t, released, epochs)), 1e-9, width)


def test_an_incomplete_last_epoch_against_monte_carlo():
    """Five steps in epochs of three are one whole epoch and two steps of another."""
    rng, n, s, epsilon = np.random.default_rng(20250301), 400_000, 2.0, 0.4
    x = s * rng.standard_normal((n, 5))
    x[np.arange(n), rng.integers(0, 3, n)] += 1
    place = rng.integers(0, 3, n)
    chosen = place < 2
    x[np.flatnonzero(chosen), 3 + place[chosen]] += 1
    y = np.exp((2 * x - 1) / (2 * s * s))
    ratio = y[:, :3].mean(axis=1) * (1 / 3 + y[:, 3:].sum(axis=1) / 3)
    gain = np.maximum(1 - math.exp(epsilon) / ratio, 0)
    found, room = delta_of_history(allocated(s, 3, 5), epsilon), 5 * float(gain.std()) / math.sqrt(n)
    assert room < 0.03 * found.upper
    assert found.lower - room <= gain.mean() <= found.upper + room


@pytest.mark.parametrize(
    ("epsilon", "runs", "full", "draws", "share"),
    [
        (1.0, [(1.0, 16, 12)], 0, 60_000, 0.15),
        (1.0, [(3.0, 20, 40)], 0, 60_000, 0.15),
        (0.8, [(2.0, 8, 3), (3.0, 5, 4)], 2, 200_000, 0.05),
    ],
)
def test_runs_and_full_batches_against_monte_carlo(epsilon, runs, full, draws, share):
    """Runs of noise s, epochs of t and a number of epochs, beside full batches with noise 4."""
    rng, loss = np.random.default_rng(20250302), np.zeros(draws)
    for s, t, epochs in runs:
        for _ in range(epochs):
            x = s * rng.standard_normal((draws, t))
            x[:, 0] += 1
            loss += np.log(np.exp((2 * x - 1) / (2 * s * s)).mean(axis=1))
    loss += ((2 * (4 * rng.standard_normal((draws, full)) + 1) - 1) / 32).sum(axis=1)
    gain = -np.expm1(np.minimum(epsilon - loss, 0))
    history = [allocated(s, t, t * epochs) for s, t, epochs in runs] + ([made(4.0, full)] if full else [])
    found, room = delta_of_history(history, epsilon), 5 * float(gain.std()) / math.sqrt(draws)
    assert room < share * found.upper
    assert found.lower - room <= gain.mean() <= found.upper + room
    assert found.upper / found.lower - 1 < 2e-3
    spent = epsilon_of_history(history, found.upper)
    # The grid for epsilon is finer than that for delta, whose upper end is up to 2e-3 too large.
    assert spent.lower <= epsilon <= spent.upper * (1 + 1e-3)


@pytest.mark.parametrize(("n", "batch", "steps", "epsilon"), [(1024, 64, 10_000, 2.0), (1000, 8, 20_000, 6.0)])
def test_noise_is_a_little_below_that_of_poisson_sampling(n, batch, steps, epsilon):
    target = {"target_epsilon": epsilon, "target_delta": 1e-5, "steps": steps, "sample_rate": batch / n}
    poisson, found = (
        noise_for(sampling=sampling, relation="add-remove", **target) for sampling in ("poisson", "random-allocation")
    )
    assert found.upper / found.lower - 1 < 1e-3
    assert 0.98 * poisson.value < found.value == found.upper < poisson.value
    unit = made(found.value, steps, batch / n, sampling="random-allocation")
    assert delta_of_history(unit, epsilon).upper <= 1e-5
    assert epsilon * (1 - 1e-3) < epsilon_of_history(unit, 1e-5).upper <= epsilon


def test_longer_epochs_and_fewer_steps_cost_less_and_a_run_may_be_split_at_an_epoch():
    longer = [delta_of_history(allocated(4.0, t, 300), 0.5).upper for t in (7, 8, 10, 16)]
    more = [delta_of_history(allocated(4.0, 10, steps), 0.5).upper for steps in (13, 20, 24, 30, 300)]
    assert longer == sorted(longer, reverse=True)
    assert more == sorted(more)
    whole, split = (delta_of_history([allocated(2.0, 8, steps) for steps in parts], 0.5) for parts in ((80,), (48, 32)))
    assert max(whole.lower, split.lower) <= min(whole.upper, split.upper)
    assert split.upper == pytest.approx(whole.upper, rel=2e-3)


@pytest.mark.parametrize(
    ("epsilon", "s", "t", "steps"),
    [
        (2.0, 0.01, 16, 100),
        (2.0, 0.45, 16, 100),
        (2.0, 0.5, 2, 10**6),
        (2.0, 2000.0, 16, 10**9),
        (0.0, 1e6, 16, 100),
        (1.0, 3.0, 10**5, 10**6),
        (800.0, 1.0, 16, 100),
        (1.0, 5.0, 10**9, 5),
        (0.5, 20.0, 10, 7),
    ],
)
def test_extremes_are_ordered_and_never_above_no_amplification(epsilon, s, t, steps):
    found = delta_of_history(allocated(s, t, steps), epsilon)
    assert 0 <= found.lower <= found.value <= found.upper <= 1
    known = float(delta_from_gdp(epsilon, math.sqrt(-(-steps // t)) / s))
    assert 0 < found.upper <= known * (1 + 1e-10) + 5e-324


def test_batches_alone_meet_a_large_delta():
    with pytest.raises(PreconditionError, match="target_delta"):
        noise_for(
            target_epsilon=1.0, target_delta=0.04, steps=3, sampling="random-allocation", relation="add-remove",
            sample_rate=0.01,
        )  # fmt: skip
