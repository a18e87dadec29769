"""Tests that the sampler of vectors of discrete Gaussian noise has its law at every scale.

They also show that a wrong law would be noticed. The rows benchmarks/results/noise_draws and noise_draws_vector are of
the same test with 10^7 and 10^9 draws a scale.
"""

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dpzero_theory.privacy.noise import SeededNoise

DRAWS, REACH, PARTS, BITS = 400_000, 8, 32, 4
"""The number of draws, and the cells into which they are counted at a large scale.

A cell is scale/32 integers, from -8 scale to 8 scale, times the 16 values of the lowest 4 bits.
"""


def exact(scale: float, reach: int) -> NDArray[np.float64]:
    """Returns the probabilities of -reach, ..., reach under the discrete Gaussian law with this scale."""
    weights = np.exp(-((np.arange(-reach, reach + 1.0) / scale) ** 2) / 2)
    return np.asarray(weights / weights.sum())


def wide(scale: float, width: int) -> NDArray[np.float64]:
    """Returns the probabilities of the cells of `width` integers at a large scale; the outer cells go to infinity.

    The sum over a cell is, to 1e-9 of it, the integral from half a unit below its first integer.
    """
    edges = (np.arange(1 - REACH * PARTS, REACH * PARTS) * float(width) - 0.5) / scale
    below, above = np.append(0.0, stats.norm.cdf(edges)), np.append(stats.norm.sf(edges), 0.0)
    left = np.arange(2 * REACH * PARTS) < REACH * PARTS
    cells = np.where(left, np.diff(below, append=1.0), -np.diff(above, prepend=1))
    return np.repeat(cells, 1 << BITS) / (1 << BITS)


def p_value(counts: NDArray[np.int64], pmf: NDArray[np.float64]) -> float:
    """Returns the p-value of the chi-squared test that cells with these counts have the probabilities `pmf`.

    Cells with an expected count below 100 are pooled into one.
    """
    expected = pmf * counts.sum()
    kept = expected >= 100
    observed, wanted = (np.append(values[kept], values[~kept].sum()) for values in (counts, expected))
    if wanted[-1] < 100:
        observed, wanted = observed[:-1], wanted[:-1] * (observed[:-1].sum() / wanted[:-1].sum())
    return float(stats.chisquare(observed, wanted).pvalue)


@pytest.mark.parametrize("scale", [1.0, 10.0, 159.59989])
def test_small_scales(scale: float) -> None:
    reach = math.ceil(9 * scale) + 3
    counts = np.bincount(SeededNoise(30).discrete_gaussian(scale, DRAWS) + reach, minlength=2 * reach + 1)
    assert p_value(counts, exact(scale, reach)) > 1e-3
    assert p_value(counts, exact(1.03 * scale, reach)) < 1e-6


@pytest.mark.parametrize("scale", [2.0**30 / 3, 2.0**38 * 3.7])
def test_large_scales_and_their_lowest_bits(scale: float) -> None:
    width = math.floor(scale / PARTS)
    draws = SeededNoise(31).discrete_gaussian(scale, DRAWS)
    place = np.clip(draws // width + REACH * PARTS, 0, 2 * REACH * PARTS - 1)
    counts = np.bincount(place << BITS | draws & ((1 << BITS) - 1), minlength=2 * REACH * PARTS << BITS)
    assert p_value(counts, wide(scale, width)) > 1e-3
    assert p_value(counts, wide(1.03 * scale, width)) < 1e-6
