"""Exact laws of releases, without the library: closed forms to 40 digits, and sums over all outputs."""

import math
from collections.abc import Sequence

import mpmath
import numpy as np
from numpy.typing import NDArray

__all__ = ["Couple", "closed_form", "discrete_gaussian", "exact_delta", "gaussian", "laplace", "power"]

Array = NDArray[np.float64]
Couple = tuple[Array, Array]
"""The probabilities of all outputs under two neighbouring data sets."""


def laplace(levels: int, multiplier: float, q: float, relation: str) -> list[Couple]:
    """Returns the two laws of one discrete Laplace release, for each direction of the neighbouring relation.

    The noise has the parameter multiplier * levels, and the record, in a Poisson batch at rate q, adds `levels` (and
    another one -levels). All outputs beyond +-levels have one ratio, so they are one output.
    """
    r = math.exp(-1 / (multiplier * levels))
    x = np.arange(-levels, levels + 1)

    def law(centre: int) -> Array:
        mass = (1 - r) / (1 + r) * r ** np.abs(x - centre)
        mass[0], mass[-1] = (r ** (levels + sign * centre) / (1 + r) for sign in (1, -1))
        return np.asarray(mass)

    return _couples(law(0), law(levels), law(-levels), q, relation)


def discrete_gaussian(levels: int, sigma: float, q: float, relation: str) -> list[Couple]:
    """Returns the two laws of one discrete Gaussian release, for each direction of the neighbouring relation.

    The noise has standard deviation `sigma`, and the record, in a Poisson batch at rate q, adds `levels` (and another
    one -levels). Outputs go up to 12 sigma.
    """
    reach = levels + math.ceil(12 * sigma)
    x = np.arange(-reach, reach + 1.0)

    def law(centre: int) -> Array:
        mass = np.exp(-((x - centre) ** 2) / (2 * sigma**2))
        return np.asarray(mass / np.exp(-(x**2) / (2 * sigma**2)).sum())

    return _couples(law(0), law(levels), law(-levels), q, relation)


def gaussian(multiplier: float, q: float, relation: str, points: int = 20_001) -> list[Couple]:
    """Returns the two laws of one continuous Gaussian release, for each direction of the neighbouring relation.

    The noise has standard deviation `multiplier`, and the record, in a Poisson batch at rate q, adds 1 (and another one
    -1). It is a Riemann sum of `points` points; 20,001 leave an error of 1e-7.
    """
    x = np.linspace(-13 * multiplier - 1, 13 * multiplier + 1, points)

    def law(centre: int) -> Array:
        mass = np.exp(-((x - centre) ** 2) / (2 * multiplier**2))
        return np.asarray(mass * (x[1] - x[0]) / (multiplier * math.sqrt(2 * math.pi)))

    return _couples(law(0), law(1), law(-1), q, relation)


def _couples(absent: Array, there: Array, other: Array, q: float, relation: str) -> list[Couple]:
    used = (1 - q) * absent + q * there
    if relation == "replace-one":
        return [(used, (1 - q) * absent + q * other)]
    return [(used, absent), (absent, used)]


def power(couple: Couple, steps: int) -> Couple:
    """Returns the two laws of all outputs of `steps` independent releases, each with the laws `couple`."""
    first, second = couple
    for _ in range(steps - 1):
        first, second = np.outer(first, couple[0]).ravel(), np.outer(second, couple[1]).ravel()
    return first, second


def exact_delta(epsilon: float, runs: Sequence[Sequence[Couple]]) -> float:
    """Returns the larger delta(epsilon) over the directions of a composition of runs.

    Each of `runs` has one pair of laws for each direction. The last run's outputs are summed for each output of the
    others, so that it may be a long one.
    """
    found = []
    for *most, last in zip(*runs, strict=True):
        p, q = np.ones(1), np.ones(1)
        for couple in most:
            p, q = np.outer(p, couple[0]).ravel(), np.outer(q, couple[1]).ravel()
        scale = math.exp(epsilon)
        found.append(
            math.fsum(np.maximum(a * last[0] - scale * b * last[1], 0).sum() for a, b in zip(p, q, strict=True))
        )
    return max(found)


def closed_form(kind: str, q: float, s: float, epsilon: float) -> float:
    """Returns delta(epsilon) of one release of the pair of laws `kind`, to 40 digits.

    The best event is a half-line in the output x; q is the sampling rate and s the noise multiplier.
    """
    with mpmath.workdps(40):
        q, s, e = mpmath.mpf(q), mpmath.mpf(s), mpmath.exp(mpmath.mpf(epsilon))
        tail = lambda c: mpmath.erfc(c / (s * mpmath.sqrt(2))) / 2  # noqa: E731
        if kind == "remove":
            c = mpmath.mpf(1) / 2 + s**2 * mpmath.log((e - 1 + q) / q)
            return float((1 - q) * tail(c) + q * tail(c - 1) - e * tail(c))
        if kind == "add":
            c = mpmath.mpf(1) / 2 + s**2 * mpmath.log((1 / e - 1 + q) / q)
            return float(1 - tail(c) - e * ((1 - q) * (1 - tail(c)) + q * (1 - tail(c - 1))))
        mixture = lambda x: 1 - q + q * mpmath.exp((2 * x - 1) / (2 * s**2))  # noqa: E731
        low, high = mpmath.mpf(-1), 1 + 2 * s**2 * (mpmath.log(1 / q) + epsilon + 2)
        for _ in range(200):
            c = (low + high) / 2
            low, high = (c, high) if mixture(c) < e * mixture(-c) else (low, c)
        return float((1 - q) * tail(c) + q * tail(c - 1) - e * ((1 - q) * tail(c) + q * tail(c + 1)))
