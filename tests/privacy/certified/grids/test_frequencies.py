"""Tests of laws of sums that are known at few frequencies, and of sums of variables that hardly ever move.

The oracles are binomial probabilities by mpmath: sums of equal variables with two values have them.
"""

import math

import mpmath
import numpy as np
import pytest

from dpzero_theory.privacy.certified.grids.frequencies import compose_rare, frequencies


def binomial(count: int, chance: float, least: int, most: int) -> list[mpmath.mpf]:
    """The probabilities of `least`, ..., `most` successes of `count` trials with this chance."""
    p = mpmath.mpf(chance)
    log_choose = mpmath.loggamma(count + 1)
    return [
        mpmath.exp(
            log_choose
            - mpmath.loggamma(k + 1)
            - mpmath.loggamma(count - k + 1)
            + k * mpmath.log(p)
            + (count - k) * mpmath.log1p(-p)
        )
        for k in range(least, most + 1)
    ]


@pytest.mark.parametrize(("count", "start"), [(3000, 0), (200_000, -1), (10**7, 7)])
def test_geometric_sums_of_a_binomial_law(count, start):
    """Each of the variables is `start` or one more, each with probability 1/2, which floats hold exactly."""
    size = 2 ** max(math.ceil(math.log2(20 * math.sqrt(count))), 12)
    found = frequencies([(np.array([0.5, 0.5]), start, count)], size)
    assert found is not None
    assert len(found.kept) < size // 8
    deviation = math.sqrt(count) / 2
    with mpmath.workdps(30):
        least = round(count / 2 + deviation)
        terms = binomial(count, 0.5, least, least + min(round(9 * deviation), 4000))
        for rate, over, width in ((1e-3, 1e-8, 1e-7), (0.3, 0.05, 0.1), (2e-5, 0.5, 1.0)):
            at = start * count + least
            falls = [mpmath.exp(-rate * k) for k in range(len(terms))]
            value, error = found.falling(at, len(terms), rate)
            exact = mpmath.fsum(p * fall for p, fall in zip(terms, falls, strict=True))
            assert abs(value - exact) <= error <= 1e-4 * exact
            value, error = found.gain(at, len(terms), rate, over, width)
            gains = [-mpmath.expm1(-over - width * k) for k in range(len(terms))]
            exact = mpmath.fsum(p * fall * gain for p, fall, gain in zip(terms, falls, gains, strict=True))
            assert abs(value - exact) <= error <= 1e-4 * exact


def test_several_laws():
    """The sum of two kinds of coins, one of which moves by two, and of a die is exact but for the bound."""
    die = np.full(8, 0.125)
    laws = [(np.array([0.5, 0.5]), 0, 4000), (np.array([0.75, 0.0, 0.25]), -1, 2000), (die, 1, 1)]
    found = frequencies(laws, 4096)
    assert found is not None
    with mpmath.workdps(30):
        first, second = (
            np.array(binomial(*coin), dtype=float) for coin in ((4000, 0.5, 0, 4000), (2000, 0.25, 0, 2000))
        )
    doubled = np.zeros(4001)
    doubled[::2] = second
    # The least possible sum is 0 - 2000 + 1
    sums, least = np.convolve(np.convolve(first, doubled), die), -1999
    for at, count in ((1000, 600), (1050, 300), (990, 40)):
        exact = float(np.sum(sums[at - least : at - least + count] * np.exp(-0.01 * np.arange(count))))
        value, error = found.falling(at, count, 0.01)
        assert abs(value - exact) <= error + 1e-12 * exact
        assert error < 1e-8 * exact


def test_a_law_with_too_many_frequencies_is_refused():
    assert frequencies([(np.array([0.5, 0.5]), 0, 3)], 4096) is None
    # Steps of two: the frequency at the other end matters as much as 0
    assert frequencies([(np.array([0.5, 0.0, 0.5]), 0, 10**6)], 2**15) is None


@pytest.mark.parametrize(("count", "chance", "start"), [(10**6, 1e-6, 0), (1000, 0.01, 3), (10**9, 2.0**-30, -5)])
def test_rare_moves(count, chance, start):
    """Variables that are `start`, and with a small chance 5 more; one other variable is 2 or 3."""
    kept = 1.0 - chance
    law = np.array([kept, 0.0, 0.0, 0.0, 0.0, chance])
    first, size = start * count, 1024
    found = compose_rare([(law, start, count), (np.array([0.25, 0.75]), 2, 1)], first, size)
    assert found is not None
    mass, error = found
    exact = np.zeros(size)
    with mpmath.workdps(30):
        # Weights that sum to 1 - eta stand for the law times (1 - eta)
        total = count * mpmath.log(mpmath.mpf(kept) + mpmath.mpf(chance))
        true_chance = mpmath.mpf(chance) / (mpmath.mpf(kept) + mpmath.mpf(chance))
        for k, p in enumerate(binomial(count, true_chance, 0, 60)):
            for more, share in ((2, 0.25), (3, 0.75)):
                exact[(5 * k + more) % size] += float(p * mpmath.exp(total)) * share
    assert np.abs(mass - exact).sum() <= error + 1e-14
    assert error < 1e-8


def test_other_laws_are_not_rare():
    assert compose_rare([(np.array([0.5, 0.5]), 0, 10)], 0, 64) is None
    assert compose_rare([(np.array([0.9, 0.1]), 0, 10**13)], 0, 64) is None
