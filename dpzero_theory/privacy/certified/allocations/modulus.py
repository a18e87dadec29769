"""k steps of an epoch of t, the record there or not: an upper end from the size of a coefficient.

With Y_i as in `epoch`, A = 1 - c + c Y, p = c Y/A, V = p (1 - p) and any c in (0, 1), the density ratio of one epoch is
at most F = e^{sum log A} e^{-sum V} I_0(sum V)/P(Bin(t, c) = k), as a coefficient is at most the mean modulus on a
circle. F is convex in the sums, so that E (F - a)_+ is at most that of laws on a lattice of both, spread with their
means kept, and composed by one transform. Statements and proofs: derivation.md, section 12.
"""

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import expit, gammaln, ive, ndtr

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.allocations.epoch import difference
from dpzero_theory.privacy.certified.grids.convolution import chernoff, compose, transform
from dpzero_theory.privacy.certified.laws.arithmetic import log_law, log_sum

_REACH = 11.0
"""Standard deviations of a step's output that are not cut off."""
_PIECES = 2**15
"""Of the line of outputs; on each the larger log A and the smaller V count."""
_LONG, _WIDE, _SHARE = 2**12, 2**7, 40
"""Points of the lattice in sum log A and in sum V, and those up to the mean of the latter."""
_LOG_TAIL = math.log(1e-15)
_ROUNDING = 1e-12
"""Relative error of a step's weights, and of a share, with room."""
_STEP = 0.05
"""In log of the tilt: laws are made at multiples only."""
_MOST, _LARGEST = 60.0, 690.0
"""The largest tilt; the largest exponent."""
_LEAST_SPREAD = 1e-250
"""Of a mean of sum V, below which it has no lattice."""


def _log_ratio(x: Array, s: float) -> Array:
    return np.asarray((2 * x - 1) / (2 * s * s))


def _terms(x: Array, s: float, logit: float) -> tuple[Array, Array]:
    """(log A, p) at x, c = expit(logit)."""
    above = logit + _log_ratio(x, s)
    return np.logaddexp(0.0, above) - np.logaddexp(0.0, logit), expit(above)


def _log_chance(epoch: int, taken: int, logit: float) -> float:
    """log P(Bin(t, c) = k), rather too small."""
    whole = gammaln(epoch + 1)
    choose = whole - gammaln(taken + 1) - gammaln(epoch - taken + 1)
    chance = choose - taken * np.logaddexp(0.0, -logit) - (epoch - taken) * np.logaddexp(0.0, logit)
    return float(chance - 1e-9 - 1e-14 * whole)


@lru_cache(maxsize=256)
def _guide(noise: float, epoch: int, taken: int, tilt: float) -> tuple[float, float, float]:
    """(logit of c, log F, sum V) where steps of law N(0, s^2) A^tilt have sum p = k in the mean, and there."""
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
    """The tilt under which log F is about epsilon, from a grid."""
    low, high = 0, math.ceil(math.log(_MOST) / _STEP)
    while low < high:
        middle = (low + high) // 2
        if _guide(noise, epoch, taken, math.exp(middle * _STEP))[1] < epsilon:
            low = middle + 1
        else:
            high = middle
    return math.exp(low * _STEP)


@dataclass(frozen=True, eq=False)
class _Sums:
    """Weights of (sum log A, sum V) on a lattice, rows and columns, times e^{tilt sum log A - log_scale}.

    beyond: E F beyond the rows, at most.
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
        """E (F - e^epsilon)_+ from above, but for what is beyond the rows and what was cut off."""
        first = int(np.searchsorted(self.level, epsilon + self.log_chance))
        level = self.level[first:]
        if not len(level):
            return 0.0
        exponent = self.log_scale + (1 - self.tilt) * level - self.log_chance
        if exponent[0] > _LARGEST:
            return 1.0
        gain = np.exp(exponent)[:, None] * (ive(0, self.spread) * (1 + _ROUNDING))
        gain -= np.exp(self.log_scale + epsilon - self.tilt * level)[:, None]
        np.maximum(gain, 0.0, out=gain)
        return float(np.sum(self.law[first:] * gain)) * (1 + 1e-9) + self.error * float(gain.max())


@lru_cache(maxsize=6)
def _sums(noise: float, epoch: int, taken: int, tilt: float) -> _Sums:
    logit, _, centre = _guide(noise, epoch, taken, tilt)
    if not centre > _LEAST_SPREAD:
        raise OverflowError("a record whose steps the outputs all but name")
    s = noise
    x = np.linspace(-_REACH * s, 1 + _REACH * s, _PIECES + 1)
    mass, wrong = difference(np.concatenate([[-np.inf], x[:-1]]) / s, x / s)
    level, p = _terms(x, s, logit)
    variance = p * (1 - p)
    variance = np.minimum(variance, np.concatenate([[0.0], variance[:-1]]))
    log_mass = log_law(mass + wrong)
    log_tilted = log_mass + tilt * level
    low, high = (-_reach(epoch, -level, log_tilted), _reach(epoch, level, log_tilted))
    thin = centre / _SHARE
    column = np.floor(variance / thin)
    # what a sum of V beyond the columns may add to a row's number
    carried = epoch * (int(column.max()) + 1) // _WIDE + 1
    if carried > _LONG // 4:
        raise OverflowError("too many steps for the lattice")
    width = (high - low) / (_LONG - carried - 16)
    row = np.floor(level / width)
    up = np.clip(level / width - row + _ROUNDING, 0.0, 1.0)
    right = np.clip(variance / thin - column - _ROUNDING, 0.0, 1.0)
    first, top = int(row[0]), float(np.max(log_tilted))
    law = np.zeros((int(row[-1]) + 2 - first, _WIDE))
    for raised, wide in itertools.product((0, 1), (0, 1)):
        share = (up if raised else 1 - up) * (right if wide else 1 - right)
        weight = share * np.exp(log_mass + tilt * width * (row + raised) - top)
        # a V that is taken too small makes F larger
        np.add.at(law, ((row + raised).astype(np.int64) - first, (column + wide).astype(np.int64) % _WIDE), weight)
    total = float(law.sum())
    log_scale = epoch * (math.log(total) + top + 4 * _ROUNDING)
    points = width * (first + np.arange(len(law), dtype=np.float64))
    last = math.ceil(_reach(epoch, points, log_law(law.sum(axis=1))) / width)
    start = last + carried - _LONG + 1
    spectrum = transform(law.ravel() / total, first * _WIDE, _LONG * _WIDE, extended=False)
    found, error = compose([(spectrum, epoch)], start * _WIDE)
    log_chance = _log_chance(epoch, taken, logit)
    return _Sums(
        found.reshape(_LONG, _WIDE),
        error,
        width * (start + np.arange(_LONG, dtype=np.float64)),
        thin * np.arange(_WIDE, dtype=np.float64),
        tilt,
        log_scale,
        log_chance,
        math.exp(min(log_scale + (1 - tilt) * width * last - log_chance + _LOG_TAIL, 700.0)),
    )


def _reach(epoch: int, points: Array, log_weight: Array) -> float:
    """What the sum of `epoch` terms with these weights exceeds with probability e^`_LOG_TAIL` at most."""
    law = np.exp(log_weight - np.max(log_weight))
    law /= law.sum()
    deviation = math.sqrt(float(law @ (points - float(law @ points)) ** 2) * epoch)
    total = log_sum(log_weight, 0.0, points)
    rates = np.geomspace(0.3, 30, 16) / deviation
    return chernoff(lambda rate: epoch * (log_sum(log_weight, rate, points) - total), rates, _LOG_TAIL)


def coefficient_delta(epsilon: float, noise: float, epoch: int, taken: int) -> float:
    """An upper bound of P(A) - e^epsilon Q(A) over all A, P with the record in `taken` of the `epoch` steps, Q without.

    Any tilt gives one; that of `epsilon` gives a sharp one.

    Raises:
        OverflowError: the lattice would be too long.
    """
    sums = _sums(noise, epoch, taken, _tilt(noise, epoch, taken, epsilon))
    cut = taken * float(ndtr(-_REACH)) + (epoch - taken) * float(ndtr(-_REACH - 1 / noise))
    return min(sums.above(epsilon) + sums.beyond + cut, 1.0)
