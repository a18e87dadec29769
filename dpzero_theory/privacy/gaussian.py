"""Closed formulas of mu-GDP (Gaussian differential privacy) for full-batch Gaussian noise.

T adaptive releases of a query of sensitivity Delta with Gaussian noise of standard deviation sigma are exactly mu-GDP
with mu = sqrt(T) Delta / sigma (Dong, Roth and Su, "Gaussian differential privacy", Corollary 3.3). A mu-GDP mechanism
is (epsilon, delta)-DP if and only if delta >= delta(epsilon; mu), where

    delta(epsilon; mu) = Phi(-a) - e^epsilon Phi(-b),   a = epsilon/mu - mu/2,   b = epsilon/mu + mu/2

(their Corollary 2.13; Balle and Wang 2018, Theorem 8). Phi and phi are the normal distribution function and density.
With Mills' ratio R(x) = Phi(-x)/phi(x), and since e^epsilon phi(b) = phi(a), it equals phi(a) (R(a) - R(b)), a
difference that can be computed without cancellation.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpzero_theory import check
from dpzero_theory.bisection import roots
from dpzero_theory.check import Array

GDP_ACCURACY = 1e-11  # the largest relative error of `delta_from_gdp`, in the range that its docstring states
_LARGEST_FLOAT = float(np.finfo(np.float64).max)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
"""Nodes and weights on [-1, 1] of the Gauss-Legendre rule of `_integral`; its error is below rounding for mu <= 1."""


def _mills(x: Array) -> Array:  # R(x) = Phi(-x)/phi(x), for x >= -37: below, it may overflow
    return math.sqrt(math.pi / 2) * special.erfcx(x / math.sqrt(2))


def _mills_slope(x: Array) -> Array:
    # -R'(x) = 1 - x R(x) > 0, with a relative error of about 1e-14 at most. Where x > 5 it is k/(x + k), from the
    # continued fraction R(x) = 1/(x + k), k = 1/(x + 2/(x + 3/(x + ...))).
    slope = np.asarray(1 - x * _mills(x))
    if (far := x > 5).any():
        tail, k = x[far], np.zeros(())
        for j in range(60, 0, -1):
            k = j / (tail + k)
        slope[far] = k / (tail + k)
    return slope


def _log_delta(eps: Array, gdp: Array) -> Array:
    # The relative error of delta is below 1e-11 for epsilon up to 1e4 and delta >= 1e-300.
    # log delta = log phi(a) + log(R(a) - R(b)), R being Mills' ratio. The difference is the integral of 1 - x R(x) over
    # [a, b], by quadrature if b - a = mu <= 1. Where a < 0 and mu > 1, 1 - delta = phi(a) (R(-a) + R(b)) is used.
    eps, gdp = np.broadcast_arrays(eps, gdp)
    with np.errstate(over="ignore", under="ignore", invalid="ignore", divide="ignore"):
        a = eps / gdp - gdp / 2
        b = eps / gdp + gdp / 2
        above = -a * a / 2 - _LOG_SQRT_2PI
        small = gdp <= 1
        if small.all():
            return above + np.log(_integral(a, gdp))
        near = _integral(a, gdp) if small.any() else 1.0
        far = _mills(np.maximum(a, 0.0)) - _mills(b)
        above = above + np.log(np.where(small, near, far))
        complement = np.exp(-a * a / 2 - _LOG_SQRT_2PI) * (_mills(np.maximum(-a, 0.0)) + _mills(b))
        return np.where((a < 0) & ~small, np.log1p(-complement), above)


def _integral(a: Array, gdp: Array) -> Array:
    # R(a) - R(a + mu), R being Mills' ratio, for arrays `a` and `gdp` of mu. For mu <= 1 and -mu/2 <= a <= 300 the
    # relative error was at most 5e-15 in 3,000 random cases against mpmath; else it is large.
    nodes = a[..., None] + gdp[..., None] * (1 + _NODES) / 2
    return gdp / 2 * (_mills_slope(np.where(gdp[..., None] <= 1, nodes, 0.0)) @ _WEIGHTS)


def _log_delta_above(eps: Array, gdp: Array) -> Array:
    log_delta = _log_delta(eps, gdp)
    with np.errstate(over="ignore", under="ignore"):
        a = eps / gdp - gdp / 2
        size = 1 + np.minimum(a * a / 2 + np.abs(a) * (eps / gdp + gdp / 2), _LARGEST_FLOAT / 2)
    # The bound rests on a measurement, not on a proof: against mpmath in 4,000 random cases `_log_delta` erred by at
    # most 32 units of 2^-53 (1 + a^2/2 + |a| b)(1 - delta), with a = epsilon/mu - mu/2 and b = epsilon/mu + mu/2. Twice
    # this is added.
    return log_delta - 2.0**-47 * size * np.expm1(log_delta)


def delta_from_gdp(epsilon: ArrayLike, gdp: ArrayLike) -> Array:
    """Returns the smallest delta with which every mu-GDP mechanism is (epsilon, delta)-DP: Phi(-epsilon/mu + mu/2) -
    e^epsilon Phi(-epsilon/mu - mu/2), where Phi is the normal distribution function.

    Args:
        epsilon: >= 0, an array of any shape; else ValueError.
        gdp: mu > 0, of a shape that broadcasts with `epsilon`; else ValueError.

    Returns:
        An array of deltas of the broadcast shape, with a relative error below 1e-11 for epsilon <= 1e4 and delta >=
        1e-300. They are not rounded to a safe side.
    """
    eps = check.real_array("epsilon", epsilon, at_least=0)
    return np.exp(_log_delta(eps, check.real_array("gdp", gdp, above=0)))


def gdp_from_epsilon(epsilon: ArrayLike, delta: ArrayLike) -> Array:
    """Returns the largest mu for which every mu-GDP mechanism is (epsilon, delta)-DP.

    Args:
        epsilon: > 0, an array of any shape; else ValueError.
        delta: in (0, 1), of a shape that broadcasts with `epsilon`; else ValueError.

    Returns:
        An array of mu of the broadcast shape. Each is rounded down by a relative 1e-11 or less, so the guarantee holds.
    """
    eps = check.real_array("epsilon", epsilon, above=0)
    target = check.real_array("delta", delta, above=0, below=1)
    eps, target = np.broadcast_arrays(eps, target)
    log_target = np.log(target)
    z = -special.ndtri(target)
    root = np.hypot(z, math.sqrt(2) * np.sqrt(eps))
    with np.errstate(divide="ignore"):
        low = np.where(z > 0, eps / ((root + z) / 2), root - z)
    low = np.maximum(low, math.sqrt(2 * math.pi) * target) * (1 - 1e-9)
    return roots(lambda gdp: _log_delta_above(eps, gdp) - log_target, low, rising=True)


def epsilon_from_gdp(gdp: ArrayLike, delta: ArrayLike) -> Array:
    """Returns the smallest epsilon >= 0 for which every mu-GDP mechanism is (epsilon, delta)-DP.

    Args:
        gdp: mu > 0, an array of any shape; else ValueError.
        delta: in (0, 1), of a shape that broadcasts with `gdp`; else ValueError.

    Returns:
        An array of epsilons of the broadcast shape. Each is rounded up, so the guarantee holds in spite of rounding.
    """
    gdp = check.real_array("gdp", gdp, above=0)
    target = check.real_array("delta", delta, above=0, below=1)
    gdp, target = np.broadcast_arrays(gdp, target)
    log_target = np.log(target)
    free = _log_delta_above(np.zeros_like(gdp), gdp) <= log_target
    gdp = np.where(free, 1.0, gdp)
    log_target = np.where(free, _log_delta(np.full_like(gdp, 0.5), gdp), log_target)
    with np.errstate(over="ignore"):
        high = np.minimum((gdp * -special.ndtri(target) + gdp * gdp / 2) * (1 + 1e-9) + 1e-300, _LARGEST_FLOAT)
    low = np.zeros_like(gdp)
    high = np.where(free, 1.0, high)
    found = roots(lambda eps: _log_delta_above(eps, gdp) - log_target, low, high, rising=False)
    return np.where(free, 0.0, found)
