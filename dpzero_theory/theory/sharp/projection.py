"""The distribution of v = ||U'a||/sqrt(K), where a is a unit vector and U has K random directions as its columns.

Clipping shortens a vector of this length, and E[v^2] = 1. For a number D >= K, let U'a be the first K coordinates of a
uniform vector on the sphere of squared radius D in R^D. Then

    v^2 = (D/K) B,   B ~ Beta(K/2, (D - K)/2).

For D = inf, v is chi_K/sqrt(K), as for Gaussian directions; for D = K, v is 1. The module `constants` bounds v for
other directions by these distributions.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import betaincc, gammaincc

from dpzero_theory.check import Array

# Integrals over v end where the density has fallen to e^-60 of its largest value; what is left out is below rounding,
# relative to the integral.
_NEGLIGIBLE = 60.0
# The dimension with which integrals are computed for D = infinity: in 64-bit floats the distribution is the same.
_GAUSSIAN = 2.0**200
_ON_BOTH_SIDES = np.polynomial.legendre.leggauss(96)  # Nodes and weights of Gauss-Legendre quadrature on [-1, 1]
_NODES, _WEIGHTS = (_ON_BOTH_SIDES[0] + 1) / 2, _ON_BOTH_SIDES[1] / 2  # The same on [0, 1]


@dataclass(frozen=True)
class Projection:
    """The distribution of v = ||first K coordinates of a uniform vector on a sphere in R^D||/sqrt(K).

    The sphere has squared radius D, so that E[v^2] = 1.

    Attributes:
        directions: K.
        dimension: D in [K, inf]. For D = d, v sqrt(K) is the length of a unit vector's projection on K orthogonal
            directions of length sqrt(d) in R^d; for D = inf, on K standard normal directions.
    """

    directions: int
    dimension: float

    @property
    def largest(self) -> float:
        """The largest value sqrt(D/K), which may be infinite, of the length over sqrt(K) of the first K = `directions`
        coordinates of a vector on the sphere of squared radius D = `dimension` in R^D."""
        return math.sqrt(self.dimension / self.directions)

    @cached_property
    def mean(self) -> float:
        """The mean length over sqrt(K) of the first K = `directions` coordinates of a random vector on the sphere of
        squared radius D = `dimension` in R^D."""
        return float(self.excess(np.zeros(1), (0, 1))[0][0])

    def steepness(self, c: Array) -> Array:
        """Return roughly the slope of minus this distribution's log density at each c > 0, as if `dimension` were
        infinite. `signs.removed` chooses the values that it tries by this slope; no bound depends on its accuracy."""
        k = self.directions
        slope: Array = np.maximum(k * c - (k - 1) / c, math.sqrt(k))
        return slope

    def tails(self, c: Array) -> tuple[Array, Array]:
        """Return E[v 1{v > c}] and E[v^2 1{v > c}] at each c >= 0, as two arrays of c's shape, where v sqrt(K) is the
        length of the first K coordinates of a random vector on the sphere of squared radius `dimension`."""
        k, d = self.directions, self.dimension
        if self.largest == 1:
            return (c < 1).astype(np.float64), (c < 1).astype(np.float64)
        if math.isinf(d):
            above = [gammaincc((k + j) / 2, k / 2 * c * c) for j in (1, 2)]
        else:
            share = np.minimum(c / self.largest, 1.0) ** 2
            above = [betaincc((k + j) / 2, (d - k) / 2, share) for j in (1, 2)]
        first, second = (np.asarray(x, dtype=np.float64) for x in above)
        return self.mean * first, second

    def excess(self, c: Array, *powers: tuple[int, int]) -> tuple[Array, ...]:
        """Return E[(v - c)_+^i v^j] at each c >= 0, with a relative error of about 1e-12.

        v sqrt(K) is the length of the first K coordinates of a random vector on the sphere of squared radius
        `dimension`. The result has one array, of the shape of c, for each pair (i, j) of integers >= 0 in `powers`.
        """
        if self.largest == 1:
            over = np.maximum(1 - c, 0)
            return tuple(over**i * (c < 1) for i, _ in powers)
        over, v, mass = self._unscaled(c)
        mass = mass / self._total
        return tuple(np.sum(mass * over**i * v**j, axis=-1) for i, j in powers)

    @cached_property
    def _total(self) -> float:
        # Masses divided by this number are those of a distribution with E[v^2] = 1.
        _, v, mass = self._unscaled(np.zeros(1))
        return float(np.sum(mass * v**2))

    def _unscaled(self, c: Array) -> tuple[Array, Array, Array]:
        # Returns the nodes of a quadrature over v above each entry of c, as v - c and v, and their masses, with a last
        # axis for the nodes. The masses are the probabilities times one factor, the same for every c.

        # Substituting v = sqrt(D/K) sin(x) makes the density sin(x)^(K-1) cos(x)^(D-K-1), smooth up to the end x =
        # pi/2. Its logarithm is concave with second derivative at most -(sqrt(K-1) + sqrt(D-K-1))^2, which says how far
        # from its mode, or beyond c, the density can matter.
        d = min(self.dimension, _GAUSSIAN)
        low, high = self.directions - 1, d - self.directions - 1  # The density has these powers of sine and cosine.
        scale = math.sqrt(d / self.directions)
        mode = math.atan2(math.sqrt(low), math.sqrt(high))
        curvature = (math.sqrt(low) + math.sqrt(high)) ** 2
        edge = np.arcsin(np.minimum(c / scale, 1.0))
        base = np.maximum(edge, mode)
        with np.errstate(divide="ignore", invalid="ignore"):
            fall = high * np.tan(base) - (low / np.tan(base) if low else 0.0)
            span = 2 * _NEGLIGIBLE / (fall + np.sqrt(fall * fall + 2 * _NEGLIGIBLE * curvature))
            reach = math.sqrt(2 * _NEGLIGIBLE / curvature) if curvature else math.inf
        start = np.maximum(edge, mode - reach)
        end = np.minimum(base + span, math.pi / 2)
        width = np.maximum(end - start, 0.0)[..., None]
        past = width * _NODES + (start - edge)[..., None]
        x = edge[..., None] + past
        sine, cosine = np.sin(x), np.cos(x)
        log_cosine = np.where(
            sine < 0.7, np.log1p(-np.minimum(sine * sine, 0.5)) / 2, np.log(np.maximum(cosine, 1e-300))
        )
        peak_sine = math.sin(mode)
        peak = (low * math.log(peak_sine) if low else 0.0) + (high * math.log1p(-(peak_sine**2)) / 2 if high else 0.0)
        log_density = (low * np.log(sine) if low else 0.0) + high * log_cosine - peak
        mass = _WEIGHTS * width * np.exp(log_density)
        over = 2 * scale * np.sin(past / 2) * np.cos(edge[..., None] + past / 2)
        return over, scale * sine, mass
