"""Tests of powers of discrete laws by the Fourier transform: exact small cases, folding, and the error bound."""

import math
from fractions import Fraction

import numpy as np
import pytest

from dpzero_theory.privacy.certified.grids.convolution import chernoff, compose, transform


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_binomial_law_within_the_bound(count):
    chance = Fraction(3, 8)
    exact = [math.comb(count, k) * chance**k * (1 - chance) ** (count - k) for k in range(count + 1)]
    base = transform(np.array([0.625, 0.375]), 0, 64)
    law, error = compose([(base, count)], 0)
    missed = sum(abs(Fraction(float(x)) - e) for x, e in zip(law, exact + [0] * (64 - len(exact)), strict=True))
    # The composed law is returned in double precision, so its own relative rounding is allowed
    assert missed <= error + 2.0**-53
    assert error < 1e-10


def test_unequal_laws_within_the_bound():
    """The law of the sum of seven biased coins and three dice is exact within the stated bound."""
    coin, die = [Fraction(5, 8), Fraction(3, 8)], [Fraction(0)] + [Fraction(1, 6)] * 6
    exact = [Fraction(1)]
    for law in [coin] * 7 + [die] * 3:
        exact = [
            sum(exact[k - j] * law[j] for j in range(len(law)) if 0 <= k - j < len(exact))
            for k in range(len(exact) + len(law) - 1)
        ]
    spectra = [(transform(np.array([float(x) for x in law]), 0, 64), count) for law, count in ((coin, 7), (die, 3))]
    law, error = compose(spectra, 0)
    missed = sum(abs(Fraction(float(x)) - e) for x, e in zip(law, exact + [0] * (64 - len(exact)), strict=True))
    # The probability 1/6 is rounded to double precision in three laws
    assert missed <= error + 10 * 2.0**-53
    assert error < 1e-10


def test_laws_are_taken_modulo_the_length():
    law = np.arange(1.0, 301.0) / 45150
    folded = np.zeros(64)
    np.add.at(folded, (np.arange(300) - 37) % 64, law)
    base = transform(law, -37, 64)
    found, _ = compose([(base, 1)], -5)
    assert found == pytest.approx(np.roll(folded, 5), rel=1e-13)


def test_chernoff_bounds_the_gaussian_tail():
    log_tail = math.log(1e-10)
    found = chernoff(lambda rate: rate * rate / 2, np.linspace(1, 20, 400), log_tail)
    assert found == pytest.approx(math.sqrt(-2 * log_tail), rel=1e-4)
