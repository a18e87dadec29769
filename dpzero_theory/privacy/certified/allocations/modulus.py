"""Random allocation to k of the t steps of one epoch, the record removed: an upper bound on delta.

The density ratio of the epoch is a coefficient of a product of polynomials, one for each step, and a coefficient is at
most the mean of the modulus on a circle. With Y_i the ratio of step i as in `epoch`, any c in (0, 1), A_i = 1 - c + c
Y_i, p_i = c Y_i/A_i and V_i = p_i (1 - p_i), this gives the bound

    F = e^{sum log A_i} e^{-sum V_i} I_0(sum V_i) / P(Bin(t, c) = k),

where I_0 is a Bessel function. F is convex in the two sums. So the mean of (F - a)_+ only rises if the law of a step's
(log A, V) is spread to a lattice with its means kept; there one transform composes the steps. Statements and proofs:
derivation.md, section 12.
"""

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import expit, gammaln, ive, ndtr

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.grids.convolution import chernoff, compose, transform
from dpzero_theory.privacy.certified.laws.arithmetic import log_law, log_sum, normal_mass

_CUT_AT = 11.0
"""Outputs farther than this from their means, in standard deviations of the noise, are left out; their probability is
added to the upper bound on delta."""
_PIECES = 2**15
"""The line of outputs is cut into so many pieces. On each piece log A is replaced by the larger of its values at the
two ends and V by the smaller, which only raises the bound."""
_ROWS, _COLUMNS, _COLUMNS_TO_MEAN = 2**12, 2**7, 40
"""The number of lattice points for sum log A (rows) and for sum V (columns), and the number of columns below the mean
of sum V."""
_LOG_BEYOND_ROWS = math.log(1e-15)
"""The log of a bound on the tilted probability that sum log A is above all rows of the lattice."""
_STEP_ROUNDING = 1e-12
"""A bound on the relative rounding error of a step's weights, and on that of the share of a weight that moves to the
next lattice point."""
_TILT_STEP = 0.05
"""Only tilts whose logs are multiples of this are used, so that the laws of one tilt serve several epsilons."""
_LARGEST_TILT = 60.0
"""The largest tilt that is tried."""
_LARGEST_EXPONENT = 690.0
"""If the largest exponent in the sum for the bound exceeds this, the bound is 1; e^690 is still a float, with room for
a product."""
_LEAST_SPREAD = 1e-250
"""If the typical sum V is below this, no lattice is made and OverflowError is raised: the outputs then all but show
which steps the record is in."""


def _log_ratio(x: Array, s: float) -> Array:
    """The log of Y, the density ratio of N(1, s^2) to N(0, s^2), at the output x."""
    return np.asarray((2 * x - 1) / (2 * s * s))


def _terms(x: Array, s: float, logit: float) -> tuple[Array, Array]:
    """The values at the output x of log A and p as the module defines them, where `logit` is log(c/(1 - c))."""
    above = logit + _log_ratio(x, s)
    return np.logaddexp(0.0, above) - np.logaddexp(0.0, logit), expit(above)


def _log_chance(epoch: int, taken: int, logit: float) -> float:
    """A lower bound on log P(Bin(t, c) = k), with t = `epoch`, k = `taken` and `logit` = log(c/(1 - c))."""
    whole = gammaln(epoch + 1)
    choose = whole - gammaln(taken + 1) - gammaln(epoch - taken + 1)
    chance = choose - taken * np.logaddexp(0.0, -logit) - (epoch - taken) * np.logaddexp(0.0, logit)
    return float(chance - 1e-9 - 1e-14 * whole)


@lru_cache(maxsize=256)
def _guide(noise: float, epoch: int, taken: int, tilt: float) -> tuple[float, float, float]:
    """A good c for a tilt: its logit, and the log F and the sum V that are typical with it (see the module).

    c is such that the mean of sum p_i is k, when a step's output has the law N(0, s^2) tilted by A^tilt. The typical
    log F and sum V are those at the means of log A and V under that law.
    """
    x = np.linspace(-9 * noise, 9 * noise + 1 + tilt, 801)
    weight = -((x / noise) ** 2) / 2
    low, high = -60.0, 60.0
    for _ in range(50):
        logit = (low + high) / 2
        level, p = _terms(x, noise, logit)
        law = np.exp(weight + tilt * level - np.max(weight + tilt * level))
        law /= law.sum()
        low, high = (logit, high) if epoch * float(law @ p) < taken else (low, logit)
    spread = epoch * float(law @ (p * (1 - p)))
    log_f = epoch * float(law @ level) + math.log(ive(0, spread)) - _log_chance(epoch, taken, logit)
    return logit, log_f, spread


def _tilt(noise: float, epoch: int, taken: int, epsilon: float) -> float:
    """The least tilt whose log is a multiple of `_TILT_STEP` and whose typical log F, by `_guide`, is at least
    epsilon."""
    steps = range(math.ceil(math.log(_LARGEST_TILT) / _TILT_STEP))
    at = bisect_left(steps, epsilon, key=lambda k: _guide(noise, epoch, taken, math.exp(k * _TILT_STEP))[1])
    return math.exp(at * _TILT_STEP)


@dataclass(frozen=True, eq=False)
class _Sums:
    """The tilted law, on a lattice, of the pair (sum log A_i, sum V_i) of the module.

    law: the probabilities, rows for sum log A and columns for sum V, times e^{tilt sum log A - log_scale}.
    error: a bound on the sum of the errors of `law`.
    level, spread: the values of sum log A at the rows and of sum V at the columns.
    log_chance: the log of P(Bin(t, c) = k).
    beyond: a bound on the part of the mean of F that comes from sums above all rows.
    """

    law: Array
    error: float
    level: Array
    spread: Array
    tilt: float
    log_scale: float
    log_chance: float
    beyond: float

    def above(self, epsilon: float) -> float:
        """An upper bound on the mean of (F - e^epsilon)_+, F as in the module, over the points of the lattice: `beyond`
        and the outputs that `_CUT_AT` leaves out are not in it."""
        first = int(np.searchsorted(self.level, epsilon + self.log_chance))
        level = self.level[first:]
        if not len(level):
            return 0.0
        exponent = self.log_scale + (1 - self.tilt) * level - self.log_chance
        if exponent[0] > _LARGEST_EXPONENT:
            return 1.0
        gain = np.exp(exponent)[:, None] * (ive(0, self.spread) * (1 + _STEP_ROUNDING))
        gain -= np.exp(self.log_scale + epsilon - self.tilt * level)[:, None]
        np.maximum(gain, 0.0, out=gain)
        return float(np.sum(self.law[first:] * gain)) * (1 + 1e-9) + self.error * float(gain.max())


@lru_cache(maxsize=6)
def _sums(noise: float, epoch: int, taken: int, tilt: float) -> _Sums:
    """The law of (sum log A_i, sum V_i) over an epoch, tilted by the product of the A_i^tilt, with every mass spread to
    lattice points so that means of functions such as (F - a)_+ are not lowered."""
    logit, _, centre = _guide(noise, epoch, taken, tilt)
    if not centre > _LEAST_SPREAD:
        raise OverflowError("a record whose steps the outputs all but name")
    s = noise
    x = np.linspace(-_CUT_AT * s, 1 + _CUT_AT * s, _PIECES + 1)
    mass, wrong = normal_mass(np.concatenate([[-np.inf], x[:-1]]) / s, x / s)
    level, p = _terms(x, s, logit)
    variance = p * (1 - p)
    variance = np.minimum(variance, np.concatenate([[0.0], variance[:-1]]))
    log_mass = log_law(mass + wrong)
    log_tilted = log_mass + tilt * level
    low, high = (-_reach(epoch, -level, log_tilted), _reach(epoch, level, log_tilted))
    thin = centre / _COLUMNS_TO_MEAN
    column = np.floor(variance / thin)
    # a sum of V beyond the last column wraps round into later rows: at most so many rows on
    carried = epoch * (int(column.max()) + 1) // _COLUMNS + 1
    if carried > _ROWS // 4:
        raise OverflowError("too many steps for the lattice")
    width = (high - low) / (_ROWS - carried - 16)
    row = np.floor(level / width)
    up = np.clip(level / width - row + _STEP_ROUNDING, 0.0, 1.0)
    right = np.clip(variance / thin - column - _STEP_ROUNDING, 0.0, 1.0)
    first, top = int(row[0]), float(np.max(log_tilted))
    law = np.zeros((int(row[-1]) + 2 - first, _COLUMNS))
    for raised, wide in itertools.product((0, 1), (0, 1)):
        share = (up if raised else 1 - up) * (right if wide else 1 - right)
        weight = share * np.exp(log_mass + tilt * width * (row + raised) - top)
        # F is larger where V is smaller, so rounding errors are taken from the share that moves V up
        np.add.at(law, ((row + raised).astype(np.int64) - first, (column + wide).astype(np.int64) % _COLUMNS), weight)
    total = float(law.sum())
    log_scale = epoch * (math.log(total) + top + 4 * _STEP_ROUNDING)
    points = width * (first + np.arange(len(law), dtype=np.float64))
    last = math.ceil(_reach(epoch, points, log_law(law.sum(axis=1))) / width)
    start = last + carried - _ROWS + 1
    spectrum = transform(law.ravel() / total, first * _COLUMNS, _ROWS * _COLUMNS, extended=False)
    found, error = compose([(spectrum, epoch)], start * _COLUMNS)
    log_chance = _log_chance(epoch, taken, logit)
    return _Sums(
        found.reshape(_ROWS, _COLUMNS),
        error,
        width * (start + np.arange(_ROWS, dtype=np.float64)),
        thin * np.arange(_COLUMNS, dtype=np.float64),
        tilt,
        log_scale,
        log_chance,
        math.exp(min(log_scale + (1 - tilt) * width * last - log_chance + _LOG_BEYOND_ROWS, 700.0)),
    )


def _reach(epoch: int, points: Array, log_weight: Array) -> float:
    """A number that the sum of `epoch` independent terms exceeds with probability at most 1e-15; each term has the
    values `points` with probabilities proportional to e^log_weight."""
    law = np.exp(log_weight - np.max(log_weight))
    law /= law.sum()
    deviation = math.sqrt(float(law @ (points - float(law @ points)) ** 2) * epoch)
    total = log_sum(log_weight, 0.0, points)
    rates = np.geomspace(0.3, 30, 16) / deviation
    return chernoff(lambda rate: epoch * (log_sum(log_weight, rate, points) - total), rates, _LOG_BEYOND_ROWS)


def coefficient_delta(epsilon: float, noise: float, epoch: int, taken: int) -> float:
    """An upper bound on delta(epsilon) of one epoch: P has the record in `taken` of the `epoch` steps, Q is without it.

    noise: the noise multiplier s.

    Raises:
        OverflowError: the lattice would need too many points, or outputs would all but show the record's steps.
    """
    sums = _sums(noise, epoch, taken, _tilt(noise, epoch, taken, epsilon))
    cut = taken * float(ndtr(-_CUT_AT)) + (epoch - taken) * float(ndtr(-_CUT_AT - 1 / noise))
    return min(sums.above(epsilon) + sums.beyond + cut, 1.0)
