"""Tests of the bounds that say which released integers are plausible, against sums over the law itself.

What must be noticed is noticed, and a sound run is never refused.
"""

import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from dpzero_theory.privacy.noise import SystemNoise
from dpzero_theory.privacy.plausible import Noise, _log_alike, _tests, look
from dpzero_theory.privacy.sampling import CyclicPoisson, FixedSize, Poisson, RandomAllocation, TruncatedPoisson

LEVELS, SCALE, RECORDS = 2**30, 7 * 2**30, 40
SOURCE = SystemNoise()


def mass(noise: Noise, reach: int) -> NDArray[np.float64]:
    """Returns the probabilities of -reach, ..., reach under the noise law, by summing."""
    x = np.abs(np.arange(-reach, reach + 1.0))
    found = np.exp(-(x**noise.power) / (noise.power * noise.scale**noise.power))
    weights: NDArray[np.float64] = found / found.sum()
    return weights


@pytest.mark.parametrize("noise", [Noise(p, s) for p in (1, 2) for s in (0.01, 0.3, 0.8, 1.0, 2.0, 17.0)])
def test_the_chance_of_small_and_of_large_numbers_is_bounded(noise: Noise) -> None:
    """The chances of small and of large numbers are bounded as stated.

    The oracle is the law of the sum of three numbers' |Z|^p, convolved from the law of one.
    """
    reach = int(40 * noise.scale) + 3
    weights = mass(noise, reach)
    assert noise.top == pytest.approx(weights[reach], rel=1e-12)
    sizes = np.abs(np.arange(-reach, reach + 1)) ** noise.power
    one = np.bincount(sizes, weights, minlength=int(sizes.max()) + 1)
    if len(one) > 20_000:
        one = one[:2000]  # A test of small values needs no more of the law than this
    three = np.convolve(np.convolve(one, one), one)[: 3 * len(one)]
    below = np.cumsum(three)
    unit = 3 * noise.scale**noise.power
    for total in range(0, len(one), max(len(one) // 40, 1)):
        bound = noise.log_chance(3, total / unit)
        if total < unit:
            assert math.log(below[total]) <= bound + 1e-12
        elif total > unit and 1 - below[total - 1] > 1e-12 and len(one) < 2000:
            assert math.log(1 - below[total - 1]) <= bound + 1e-9
    assert noise.log_chance(3, 0.0) == pytest.approx(3 * math.log(noise.top), rel=1e-12)


@pytest.mark.parametrize("noise", [Noise(1, 5.0), Noise(2, 9.0)])
def test_digits_and_residues_are_as_even_as_is_said(noise: Noise) -> None:
    weights = mass(noise, 1000)
    for shift in range(7):
        numbers = np.arange(-1000, 1001) + shift
        for k in (2, 3, 5, 8, 20, 400):
            classes = np.bincount(numbers % k, weights, minlength=k)
            assert np.abs(classes - 1 / k).max() <= noise.top * (1 + 1e-12)
        for digit in range(6):
            one = weights[(numbers >> digit & 1) == 1].sum()
            assert abs(one - 0.5) <= 2**digit * noise.top / 2 * (1 + 1e-12)


def test_the_chance_of_numbers_alike_is_a_sum_bounded() -> None:
    exact = math.fsum((1 / k + 1e-9) ** 3 for k in range(7, 200_001))
    assert exact <= math.exp(_log_alike(7, 200_000, 1e-9, 3)) <= 1.01 * exact


Forge = Callable[[NDArray[np.int64]], NDArray[np.int64]]
FORGED: dict[str, tuple[int, Forge]] = {
    "zeros": (2, lambda z: 0 * z),
    "one again and again": (4, lambda z: 0 * z + z[0]),
    "one and its negative in turns": (6, lambda z: z[0] * (-1) ** np.arange(len(z))),
    "a progression": (5, lambda z: z[0] + 123_456_789 * np.arange(len(z))),
    "a thousandth": (8, lambda z: z // 1000),
    "a thousandth about something": (12, lambda z: z // 1000 + 10 * LEVELS),
    "a thousandth along a line": (14, lambda z: z // 1000 + LEVELS * np.arange(len(z))),
    "half, many": (500, lambda z: z // 2),
    "the first half again": (12, lambda z: np.concatenate([z[: len(z) // 2]] * 2)),
    "backwards after forwards": (12, lambda z: np.concatenate([z[: len(z) // 2], z[: len(z) // 2][::-1]])),
    "ten numbers in any order": (200, lambda z: z[np.arange(len(z)) ** 2 % 10]),
    "multiples of 1000": (10, lambda z: z // 1000 * 1000),
    "multiples of 3 and something": (60, lambda z: z // 3 * 3 + 1),
    "multiples of a prime": (8, lambda z: z // 1_000_003 * 1_000_003),
    "single precision": (200, lambda z: z.astype(np.float32).astype(np.int64)),
    "multiples of ten, nearly all": (200, lambda z: np.where(np.arange(len(z)) % 9, z // 10 * 10, z)),
    "a third without noise": (100, lambda z: np.where(np.arange(len(z)) % 3, z, z // 10**5)),
    "beyond all records and noise": (1, lambda z: z + 500 * LEVELS),
    "one beyond": (30, lambda z: z + 500 * LEVELS * (np.arange(len(z)) == 7)),
}


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("power", [1, 2])
def test_what_cannot_be_noise_is_seen(name: str, power: int) -> None:
    count, forge = FORGED[name]
    draw = SOURCE.discrete_gaussian if power == 2 else SOURCE.discrete_laplace
    drawn = np.array([draw(SCALE) for _ in range(count)]) if power == 1 else draw(SCALE, count)
    numbers = forge(drawn)
    assert look(numbers.reshape(-1, 1), Noise(power, SCALE), LEVELS, RECORDS).fault
    assert not look(drawn.reshape(-1, 1), Noise(power, SCALE), LEVELS, RECORDS).fault


def test_noise_that_is_missing_in_one_of_three_numbers_is_seen_and_what_records_add_is_none() -> None:
    sums = SOURCE.discrete_gaussian(SCALE, (30, 3))
    added = np.random.default_rng(1).integers(-RECORDS * LEVELS // 2, RECORDS * LEVELS // 2, (30, 3))
    assert not look(sums + added, Noise(2, SCALE), LEVELS, RECORDS).fault
    sums[:, 1] //= 1000
    assert look(sums, Noise(2, SCALE), LEVELS, RECORDS).fault


def test_too_few_numbers_are_said_to_be_too_few() -> None:
    noise = Noise(2, SCALE)
    assert look(np.empty((0, 1), np.int64), noise, LEVELS, RECORDS).least == 0
    least = [look(SOURCE.discrete_gaussian(SCALE, (n, 1)), noise, LEVELS, RECORDS).least for n in (1, 2, 5, 30, 1000)]
    assert all(low < high for low, high in pairwise(least))
    assert least[0] < 1e-6
    assert 0.75 < least[-1] < 1


@pytest.mark.parametrize("noise", [Noise(1, 1.0), Noise(2, 2.0), Noise(2, 30.0)])
def test_whatever_is_added_with_the_past_in_view_a_bound_is_a_bound(noise: Noise) -> None:
    """A bound holds whatever is added to the noise with the past in view.

    There are 1,000 runs of 20 numbers, moved so as to look like no noise; of a test's bounds at most about a hundredth
    are below 1/100.
    """
    draw = SOURCE.discrete_gaussian if noise.power == 2 else SOURCE.discrete_laplace
    sums = np.array([draw(int(noise.scale)) for _ in range(20_000)]).reshape(1000, 20)
    for at in range(1, 20):  # To each number of a run the number before it is added
        sums[:, at] += sums[:, at - 1]
    found: dict[int, int] = {}
    for run in sums:
        for index, (_, log_chance, _) in enumerate(_tests(run.reshape(-1, 1), noise, 1e6)):
            found[index] = found.get(index, 0) + (log_chance <= math.log(0.01))
    assert max(found.values()) <= 1000 * 0.01 + 6 * math.sqrt(1000 * 0.01)


def test_all_shares_together_are_three_quarters() -> None:
    for sums, scale in (((5, 1), 2.0), ((40, 3), float(SCALE)), ((300, 1), 1000.0)):
        numbers = SOURCE.discrete_gaussian(int(scale), sums)
        assert 0.5 < sum(share for share, _, _ in _tests(numbers, Noise(2, scale), 1e12)) <= 0.75 + 1e-12


def test_numbers_of_nearly_64_bits_are_looked_at() -> None:
    numbers = np.array([[2**62], [-(2**62)], [2**62 - 5], [-(2**62)]], dtype=np.int64)
    assert "noise" in look(np.tile(numbers, (4, 1)), Noise(2, 2.0**40), 2**62, 1).fault


def test_the_largest_batch_is_that_of_the_law() -> None:
    for n, rate in ((40, 0.25), (10**6, 1e-3), (1000, 1.0), (10**9, 1e-9)):
        for chance in (1e-3, 1e-13):
            b = Poisson(rate).most(n, chance)
            assert binom.sf(b, n, rate) <= chance
            assert b <= rate * n + 10 * math.sqrt(rate * n * -math.log(chance)) - 3 * math.log(chance)
    assert FixedSize(0.25).most(40, 1e-13) == 10
    assert TruncatedPoisson(0.25, 12, 40).most(40, 1e-13) == 12
    assert RandomAllocation(0.25).most(10**4, 1e-9) == CyclicPoisson(0.25, 4).most(10**4, 1e-9) < 3200
