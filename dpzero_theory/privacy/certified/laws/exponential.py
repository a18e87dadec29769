"""One release with Laplace noise, in full or Poisson batches: finite pairs above and below it, in closed form.

Lengths are in clips; the noise has parameter s = `noise`, on a lattice of M = `levels` integers to a clip, or
continuous. With the record the sum is moved by 1, with the other one of replace-one by -1. Beyond these outputs the
ratio of P to Q is constant, and between them it rises. So intervals with their exact masses under P and Q are a pair
below (the interval is a function of the output), and with each mass split between the ratios at the interval's ends,
the masses under P and Q kept, a pair above. Derived in derivation.md, section 11.
"""

import math
from functools import lru_cache

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.laws.finite import FinitePair
from dpzero_theory.privacy.relation import Relation

LEAST_NOISE = 1 / 300
_CELLS = 1500
"""Intervals a clip, at most."""
_ROUNDING = 1e-14
"""Relative error of a mass, with room."""

Mixed = tuple[tuple[int, float], ...]
"""Centres of Laplace laws and their weights."""


def _cuts(bottom: int, levels: int) -> tuple[Array, Array]:
    """First and last output of each interval between `bottom` and 1, both excluded on a lattice."""
    ends = np.arange(bottom * _CELLS, _CELLS + 1) / _CELLS
    if not levels:
        return ends[:-1], ends[1:]
    points = np.unique(np.clip(np.rint(ends * levels), bottom * levels + 1, levels))
    return points[:-1] / levels, (points[1:] - 1) / levels


def _masses(first: Array, last: Array, bottom: int, centre: int, s: float, gap: float) -> Array:
    """Of the outputs up to `bottom` <= centre, of the intervals, none of which has the centre inside, and from 1 on."""
    near = np.where(first >= centre, first - centre, centre - last)
    inner = np.exp(-near / s) * -np.expm1(-(last + gap - first) / s)
    outer = [math.exp(-(centre - bottom) / s), math.exp(-(1 - centre) / s)]
    return np.concatenate([outer[:1], inner, outer[1:]]) / (1 + math.exp(-gap / s))


def log_mixed(weight: float, level: Array) -> Array:
    """Log of 1 - weight + weight e^level."""
    if weight == 1:
        return level
    more = weight * np.expm1(np.minimum(level, 700.0))
    near = np.abs(more) < 0.5
    far = np.logaddexp(math.log1p(-weight), math.log(weight) + level)
    return np.asarray(np.where(near, np.log1p(np.where(near, more, 0.0)), far))


def _log_ratio(mixed: Mixed, x: Array, s: float) -> Array:
    """Log of the density at x over that of the law with centre 0."""
    centre, weight = mixed[-1]
    return log_mixed(weight, (np.abs(x) - np.abs(x - centre)) / s)


def _split(p: Array, q: Array, least: Array, most: Array) -> FinitePair:
    """Masses under P and Q of sets of outputs with losses between `least` and `most`."""
    width = np.where(most > least, most - least, 1.0)
    up = np.where(most > least, (p - q * np.exp(least) + 4 * _ROUNDING * p) / -np.expm1(-width), 0.0)
    up = np.clip(up, 0.0, p)
    loss, mass = np.concatenate([least, most]), np.concatenate([p - up, up])
    order = np.argsort(loss, kind="stable")
    exact = bool(np.all(most == least))
    return FinitePair(loss[order], mass[order], 0.0, p * (1 - _ROUNDING), q * (1 + _ROUNDING), exact)


@lru_cache(maxsize=8)
def laplace_pairs(
    noise: float, sample_rate: float, relation: Relation, levels: int = 0
) -> tuple[FinitePair, FinitePair]:
    """The pairs (P, Q) and (Q, P) of one release, P with the record.

    noise: s of the module, at least `LEAST_NOISE`. sample_rate: q in (0, 1], of full or Poisson batches. levels: M, or
    0 for continuous noise.
    """
    s, q, gap = noise, sample_rate, 1 / levels if levels else 0.0
    bottom = -1 if relation is Relation.REPLACE_ONE else 0
    first, last = _cuts(bottom, levels)

    def law(centre: int) -> tuple[Array, Mixed]:
        still = _masses(first, last, bottom, 0, s, gap)
        if centre == 0:
            return still, ((0, 1.0),)
        return (1 - q) * still + q * _masses(first, last, bottom, centre, s, gap), ((centre, q),)

    (p, used), (r, other) = law(1), law(bottom)
    least, most = (
        _log_ratio(used, x, s) - _log_ratio(other, x, s)
        for x in (np.concatenate([[bottom], ends, [1.0]]) for ends in (first, last))
    )
    return _split(p, r, least, most), _split(r, p, -most, -least)
