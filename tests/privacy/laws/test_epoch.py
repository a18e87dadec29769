"""Tests of one epoch of random allocation, against integrals over all outputs and Monte Carlo, in both relations."""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.gaussian import delta_from_gdp
from dpzero_theory.privacy.laws.epoch import Side, chain, epoch_pairs, profile
from dpzero_theory.privacy.step import Release
from tests.privacy.oracle import brute_force, three

SIDES = {"remove": Side(1, 0), "add": Side(0, 1), "replace": Side(1, 1)}


def integral(side, s, t, released, loss):
    """Returns E_R (S - e^l S')_+ for the density ratios S and S' of an epoch, where l is `loss`.

    It is the trapezoid rule in all outputs but the last, which is integrated cell by cell. `side` says under which of
    the two laws the record moves the outputs, s is the noise multiplier, t the number of steps of an epoch, and
    `released` how many of them are released.
    """
    x = np.arange(-9.5 * s - 1, 9.5 * s + 1, s / 20)
    weight = s / 20 * np.exp(-((x / s) ** 2) / 2) / (s * math.sqrt(2 * math.pi))
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


CASES = [(0.5, 2, 2), (1.0, 2, 2), (1.0, 3, 2), (0.7, 2, 1), (3.0, 2, 2), (0.3, 1, 1), (2.0, 5, 2)]


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("s", "t", "released"), CASES)
def test_the_profile_holds_the_integral(side, s, t, released):
    loss = np.array([0.0, 0.3, 1.0, 2.0])
    found = profile(SIDES[side], s, t, released, loss, 9.0, 0.05)
    lower = found.p * (1 - found.error) - np.exp(loss) * found.q * (1 + found.error)
    assert found.error < 1e-8
    for k, level in enumerate(loss):
        exact = integral(SIDES[side], s, t, released, float(level))
        assert lower[k] <= exact * (1 + 1e-7)
        assert exact * (1 - 1e-7) <= found.above[k] + found.cut
        if exact > 1e-12 and released == t:
            assert found.above[k] - lower[k] <= 0.03 * exact + found.cut


def test_one_step_is_plain_noise():
    for replaced, gdp in ((False, 1.0), (True, 2.0)):
        for pair in epoch_pairs(1.0, 1, 1, replaced=replaced, reach=9.0, near=9.0, ratio=0.05):
            lower, _, upper = three(pair, 1.0)
            exact = float(delta_from_gdp(1.0, gdp))
            assert lower <= exact <= upper <= 1.01 * lower


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
    found = profile(pair, s, t, t, levels, 8.0, 0.06)
    lower = found.p - np.exp(levels) * found.q
    for k, level in enumerate(levels):
        sample = np.maximum(-np.expm1(level - loss), 0)
        threshold = 5 * float(sample.std()) / math.sqrt(n)
        assert lower[k] - threshold <= sample.mean() <= found.above[k] + threshold
        assert found.above[k] / lower[k] - 1 < 0.05


def test_longer_epochs_and_fewer_releases_are_more_private():
    loss = np.array([0.0, 0.5, 1.0])
    for side in SIDES.values():
        above = [profile(side, 1.0, t, t, loss, 8.0, 0.06).p for t in (4, 8, 64)]
        assert np.all(above[0] > above[1])
        below, whole = (profile(side, 1.0, 8, released, loss, 8.0, 0.06).above for released in (3, 8))
        assert np.all(below < whole)


def test_finer_grids_are_inside():
    loss = np.array([0.0, 0.4, 1.5])
    rough, fine = (profile(Side(1, 1), 0.8, 37, 37, loss, 8.0, ratio) for ratio in (0.12, 0.04))
    assert np.all(rough.p - np.exp(loss) * rough.q < fine.p - np.exp(loss) * fine.q)
    assert np.all(fine.above < rough.above)


def test_too_little_noise_is_refused():
    with pytest.raises(OverflowError, match="too little"):
        epoch_pairs(0.02, 16, 16, replaced=True, reach=8.0, near=8.0, ratio=0.06)


@pytest.mark.parametrize("number", [*range(1, 70), 5039, 8191, 9999, 10**9 - 1])
def test_a_chain_is_of_sums_of_what_there_is_and_no_longer_than_by_digits(number):
    known, additions = {1}, 0
    for total, summands in chain(number).items():
        assert sum(summands) == total
        assert known.issuperset(summands)
        known.add(total)
        additions += len(set(summands))
    digits = bin(number)[3:]
    assert max(known) == number
    assert additions <= len(digits) + 2 * digits.count("1")


@pytest.mark.parametrize(
    ("epsilon", "s", "t", "released", "epochs"),
    [(4.5, 0.7, 2, 2, 1), (2.0, 1.2, 3, 3, 1), (1.5, 2.0, 2, 2, 2), (0.05, 3.0, 3, 2, 1)],
)
def test_epochs_against_brute_force_over_all_outputs(epsilon, s, t, released, epochs):
    unit = Release(
        s, t * (epochs - 1) + released, sampling="random-allocation", relation="add-remove", sample_rate=1 / t
    )
    found = delta_of_history([unit], epsilon)
    exact = max(brute_force(epsilon, s, t, released, epochs))
    assert found.lower * (1 - 1e-6) <= exact <= found.upper * (1 + 1e-6)
    assert found.upper < 1.002 * found.lower
