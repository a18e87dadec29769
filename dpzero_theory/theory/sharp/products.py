"""Bounds on the length of a unit vector's projection on K random directions of low rank.

A direction of rank rho is rho^(-1/2) sum_j a_j b_j^T, where a_j and b_j are vectors of random signs. Let v be the
length of a unit vector's projection on K such directions over sqrt(K). For every shape of the weight matrices, m >= 3
and c >= 0

    E(v - c)_+^m <= E(v_rho - c)_+^m,   v_rho^2 = (1/K) sum_k X_k Z_k^2,

with independent standard normal Z_k and chi-squared X_k with rho degrees of freedom, divided by rho (proof.md, section
15). For rho = infinity, v_rho is chi_K/sqrt(K), the bound for random signs.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import erfc

from dpzero_theory.check import Array

# The spacing of the grid on which a distribution stands in for that of X Z^2 (`Products`), for K up to 256 and beyond.
# The one on the grid has the same mean and is above the other in convex order. It adds at most the square of the
# spacing over 4 to the variance, which is 2 to 8.
_STEP, _COARSE = 1 / 32, 1 / 4
_END = 2048.0  # The grid's largest value; X Z^2 exceeds it with a probability below e^-45


@lru_cache(maxsize=16)
def _on_grid(rank: int, step: float) -> Array:
    # Probabilities of the values 0, step, 2 step, ..., 2048, with which means of convex functions of X Z^2 can only be
    # larger, X ~ chi^2_rank/rank and Z ~ N(0, 1). Values of X Z^2 above 2048, of probability below e^-45, are left out.

    # The trapezoidal rule in log chi, where X = chi^2/`rank`, is exact to rounding, as the integrand is analytic.
    log_chi = np.arange(-40.0, 5.0, min(0.125, 0.25 / math.sqrt(rank)))
    log_mass = rank * log_chi - np.exp(2 * log_chi) / 2
    log_mass -= log_mass.max()
    log_chi, mass = log_chi[log_mass > -90], np.exp(log_mass[log_mass > -90])
    mass /= mass.sum()
    scales = np.exp(log_chi) / math.sqrt(rank)  # These are the values of the root of X.
    ends = step * np.arange(round(_END / step) + 1)
    above, part = np.zeros_like(ends), np.zeros_like(ends)
    for weight, scale in zip(mass, scales, strict=True):
        # Where z > 40, `chance`, which is P(|Z| > z), is 0 in float64, so that nothing is added there.
        some = slice(min(len(ends), math.ceil((40 * scale) ** 2 / step) + 1))
        z = np.sqrt(ends[some]) / scale
        chance = erfc(z / math.sqrt(2))
        above[some] += weight * chance
        part[some] += weight * scale**2 * (chance + math.sqrt(2 / math.pi) * z * np.exp(-z * z / 2))
    # A cell's probability is dealt out to its two ends so that the cell's part of the mean stays the same; so means of
    # convex functions can only grow.
    within, inside = -np.diff(above), -np.diff(part)
    upper = np.maximum(inside - within * ends[:-1], 0) / step
    grid = np.zeros_like(ends)
    grid[:-1] += np.maximum(within - upper, 0)
    grid[1:] += upper
    return grid


@lru_cache(maxsize=16)
def _sums(k: int, rank: int) -> tuple[Array, list[Array]]:
    # Returns (values, tails) for v, the root of the mean of k independent products X Z^2, X ~ chi^2_rank/rank and Z ~
    # N(0, 1), with the probabilities of `_on_grid`. The values of v ascend, and tails[m][j] is E[v^m 1{v >= values[j]}]
    # for m = 0, ..., 4, with one more entry, 0, at the end.
    step = _STEP if k <= 256 else _COARSE
    one = _on_grid(rank, step)
    if k == 1:
        mass = one
    else:
        # Sums beyond `size` steps wrap around: it has room for the mean K, 12 standard deviations and one largest term.
        size = 2 ** math.ceil(math.log2((k + 12 * math.sqrt(8 * k) + _END) / step))
        mass = np.maximum(np.fft.irfft(np.fft.rfft(one, size) ** k, size), 0.0)
    v = np.sqrt(step * np.arange(len(mass)) / k)
    sums = [np.append(np.cumsum((mass * v**m)[::-1])[::-1], 0.0) for m in range(5)]
    return v, sums


@dataclass(frozen=True)
class Products:
    """The distribution of v, where v^2 is the mean of K independent products X Z^2 of a chi-squared and a normal
    number.

    Z is standard normal and X chi-squared with `rank` degrees of freedom, divided by `rank`. For the length w sqrt(K)
    of a unit vector's projection on K directions of low rank, E(w - c)_+^m is at most E(v - c)_+^m for all m >= 3 and c
    >= 0.

    Attributes:
        directions: K.
        rank: the number of products of random signs in a direction of low rank.
    """

    directions: int
    rank: int

    def steepness(self, c: Array) -> Array:
        """Return roughly the slope of minus this distribution's log density at each c > 0. `signs.removed` chooses the
        values that it tries by this slope; no bound depends on its accuracy."""
        # A larger variance of v^2 flattens the density; `spread` is that variance over the one for random signs.
        k, spread = self.directions, (3 * (1 + 2 / self.rank) - 1) / 2
        slope = np.minimum((k * c - (k - 1) / c) / spread, 0.85 * math.sqrt(self.rank * k))
        return np.maximum(slope, math.sqrt(k / math.sqrt(spread)))

    def excess(self, c: Array, *powers: tuple[int, int]) -> tuple[Array, ...]:
        """Return upper bounds on E[(v - c)_+^i] at each c >= 0, where v^2 is the mean of K independent products X Z^2
        of Z ~ N(0, 1) and X, chi-squared with `rank` degrees of freedom over `rank`.

        The result has one array, of the shape of c, for each pair (i, 0) in `powers`, 1 <= i <= 4. The second entry of
        a pair is there because `Projection.excess` takes two powers.
        """
        v, sums = _sums(self.directions, self.rank)
        first = np.searchsorted(v, c, side="right")
        found = []
        for i, j in powers:
            assert j == 0
            terms = (math.comb(i, m) * (-c) ** (i - m) * sums[m][first] for m in range(i + 1))
            found.append(np.maximum(sum(terms), 0.0))
        return tuple(found)
