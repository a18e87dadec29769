"""Random allocation to k of the t steps of one epoch, the record removed: an upper bound on delta.

The density ratio of the epoch's outputs with the record to those without it is a coefficient of a product of
polynomials, one for each step, and a coefficient is at most the mean of the modulus on a circle. Let Y_i be the density
ratio of step i, exp((2 x_i - 1)/(2 s^2)) at the output x_i, with s the noise. With any c in (0, 1), A_i = 1 - c + c
Y_i, p_i = c Y_i/A_i and V_i = p_i (1 - p_i), this gives the bound

    F = e^{sum log A_i} e^{-sum V_i} I_0(sum V_i) / P(Bin(t, c) = k),

where I_0 is a Bessel function and Bin(t, c) a binomial variable. F is convex in the two sums. So the mean of (F - a)_+
only rises if the law of a step's (log A, V) is spread to a lattice with its means kept; there one transform composes
the steps. Statements and proofs: derivation.md, section 12.
"""

import itertools
import math
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import expit, gammaln, ive, ndtr

from dpzero_theory.bisection import halved
from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.grids.convolution import chernoff, compose, transform
from dpzero_theory.privacy.certified.laws.arithmetic import log_law, log_sum, normal_mass

_CUT_AT = 11.0
"""Outputs farther than this from their means, in standard deviations of the noise, are left out; their probability is
added to the upper bound on delta."""
_PIECES = 2**15
"""The line of outputs is cut into this many pieces. On each piece log A is replaced by the larger of its values at the
two ends and V by the smaller, which only raises the bound."""
_ROWS, _COLUMNS, _COLUMNS_TO_MEAN = 2**12, 2**7, 40
"""The numbers of points of the lattice for two sums over an epoch's steps, sum log A (rows) and sum V (columns). The
third is the number of columns below the mean of sum V. A and V are those of the module's docstring."""
_LOG_BEYOND_ROWS = math.log(1e-15)
"""The log of a bound on the tilted probability that sum log A is above all rows of the lattice."""
_STEP_ROUNDING = 1e-12
"""A bound on the relative rounding error of a step's weights, and on that of the share of a weight that moves to the
next lattice point."""
_TILT_STEP = 0.05
"""Laws are multiplied by a power of A, the tilt; only tilts whose logs are multiples of this are used, so that the laws
of one tilt serve several epsilons."""
_LARGEST_TILT = 60.0
"""The largest tilt that is tried."""
_LARGEST_EXPONENT = 690.0
"""If the largest exponent in the sum for the bound exceeds this, the bound is 1; e^690 is still a float, with room for
a product."""
_LEAST_SPREAD = 1e-250
"""If the typical sum V is below this, no lattice is made and OverflowError is raised: the outputs then all but show
which steps the record is in."""


def _log_ratio(x: Array, s: float) -> Array:
    """The log of the density ratio of N(1, s^2) to N(0, s^2) at the output x, where s is the noise."""
    return np.asarray((2 * x - 1) / (2 * s * s))


def _terms(x: Array, s: float, logit: float) -> tuple[Array, Array]:
    """The values at the output x of log A and p, where A = 1 - c + c Y, p = c Y/A and Y is the density ratio of
    `_log_ratio`.

    s: the noise. logit: log(c/(1 - c)).
    """
    above = logit + _log_ratio(x, s)
    return np.logaddexp(0.0, above) - np.logaddexp(0.0, logit), expit(above)


def _log_chance(epoch: int, taken: int, logit: float) -> float:
    """A lower bound on the log of the probability that of `epoch` trials exactly `taken` succeed.

    logit: log(c/(1 - c)) for the chance c of each trial.
    """
    whole = gammaln(epoch + 1)
    choose = whole - gammaln(taken + 1) - gammaln(epoch - taken + 1)
    chance = choose - taken * np.logaddexp(0.0, -logit) - (epoch - taken) * np.logaddexp(0.0, logit)
    return float(chance - 1e-9 - 1e-14 * whole)


@lru_cache(maxsize=256)
def _guide(noise: float, epoch: int, taken: int, tilt: float) -> tuple[float, float, float]:
    """A good constant c for a tilt, as log(c/(1 - c)), and with this c the typical values of log F and of sum V_i.

    F, A_i, V_i, p_i, s, t and k are those of the module's docstring. noise: s. epoch, taken: t and k, the steps of an
    epoch and how many of them have the record. tilt: the density of a step's output x_i is in proportion to that of
    N(0, s^2) multiplied by A_i^tilt. c is such that under this law the expected sum of p_i is k. The typical values are
    those where the sums of log A_i and V_i are at their means under this law.
    """
    x = np.linspace(-9 * noise, 9 * noise + 1 + tilt, 801)
    weight = -((x / noise) ** 2) / 2

    def at(logit: float) -> tuple[Array, Array, Array]:
        level, p = _terms(x, noise, logit)
        law = np.exp(weight + tilt * level - np.max(weight + tilt * level))
        return level, p, law / law.sum()

    def few(logit: float) -> bool:
        _, p, law = at(logit)
        return epoch * float(law @ p) < taken

    logit = sum(halved(few, -60.0, 60.0, 49)) / 2
    level, p, law = at(logit)
    spread = epoch * float(law @ (p * (1 - p)))
    log_f = epoch * float(law @ level) + math.log(ive(0, spread)) - _log_chance(epoch, taken, logit)
    return logit, log_f, spread


def _tilt(noise: float, epoch: int, taken: int, epsilon: float) -> float:
    """The smallest tilt (power of A_i), of those that are tried, with which the typical log F of `_guide` is at least
    `epsilon`.

    A bound on delta(epsilon) is computed with it. F and A_i are those of the module's docstring. noise: s. epoch,
    taken: the steps of an epoch, and how many of them have the record.
    """
    steps = range(math.ceil(math.log(_LARGEST_TILT) / _TILT_STEP))
    at = bisect_left(steps, epsilon, key=lambda k: _guide(noise, epoch, taken, math.exp(k * _TILT_STEP))[1])
    return math.exp(at * _TILT_STEP)


@dataclass(frozen=True, eq=False)
class _Sums:
    """A law of the two sums over an epoch's steps on which the bound F depends (module's docstring): sum log A_i and
    sum V_i.

    law: the probabilities on a lattice, with rows for sum log A and columns for sum V, multiplied by e^{tilt sum log A
    - log_scale}.
    error: a bound on the sum of the errors of `law`.
    level, spread: the values of sum log A at the rows and of sum V at the columns.
    log_chance: a lower bound on the log of P(Bin(t, c) = k), with t, c and k of the module's docstring.
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
        """An upper bound on the mean of (F - e^epsilon)_+ over the points of the lattice, where F bounds an epoch's
        density ratio.

        The probability of sums and outputs that are left out is not in it.
        """
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
    """The law of the pair (sum log A_i, sum V_i) over the steps of an epoch, tilted by the product of the A_i^tilt.

    A_i, V_i and the bound F are those of the module's docstring. noise: s. epoch, taken: t and k. Every mass is spread
    to lattice points so that means of (F - a)_+, for any a, are not lowered. Raises OverflowError if the lattice would
    need too many points.
    """
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
    # The values V_i of the steps (`variance`, which columns count in units of `thin`) are added up along columns. A sum
    # beyond the lattice's last column wraps round into later rows, at most `carried` of them.
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
        # The bound F falls in the sum of V, so that V must never be rounded up: `share` gives a little less than its
        # exact part to the next column, where V is larger.
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
    """A number that the sum of `epoch` independent terms exceeds with probability at most 1e-15.

    Each term has the values `points` with probabilities proportional to e^log_weight. Raises OverflowError if in
    floating-point numbers a term has one value only.
    """
    law = np.exp(log_weight - np.max(log_weight))
    law /= law.sum()
    deviation = math.sqrt(float(law @ (points - float(law @ points)) ** 2) * epoch)
    if not deviation > 0:
        raise OverflowError("a term of one value has no lattice")
    total = log_sum(log_weight, 0.0, points)
    rates = np.geomspace(0.3, 30, 16) / deviation
    return chernoff(lambda rate: epoch * (log_sum(log_weight, rate, points) - total), rates, _LOG_BEYOND_ROWS)


def coefficient_delta(epsilon: float, noise: float, epoch: int, taken: int) -> float:
    """An upper bound on delta(epsilon) of one epoch, where only P has the record, in `taken` of the `epoch` steps.

    noise: the noise multiplier s.

    Raises:
        OverflowError: the lattice would need too many points, or outputs would all but show the record's steps.
    """
    sums = _sums(noise, epoch, taken, _tilt(noise, epoch, taken, epsilon))
    cut = taken * float(ndtr(-_CUT_AT)) + (epoch - taken) * float(ndtr(-_CUT_AT - 1 / noise))
    return min(sums.above(epsilon) + sums.beyond + cut, 1.0)
