"""One release with Laplace noise, in full or Poisson batches: a finite pair that dominates it, and one that it
dominates.

P is the law of the output with the record, Q the law without it or with another one. Lengths are in units of the clip.
The noise has the density e^{-|x|/s}/(2 s), s = `noise`, or it is its analogue on a lattice with M = `levels` points to
a clip. The record moves the sum by 1; with replace-one the other record moves it by -1. Where x is beyond all of these
means the ratio of the densities of P and Q at x is constant, and between them it rises. So let the line be cut into
intervals. To tell only the interval of an output is post-processing, so the intervals' exact masses under P and Q are a
pair that is dominated ("below"). If each interval's masses are split between the two density ratios at its ends, so
that its masses under P and under Q are both kept, the pair dominates ("above"). Derived in derivation.md, section 11.
"""

import math
from functools import lru_cache

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.laws.finite import FinitePair, partitioned

LEAST_LAPLACE = 1 / 300
"""The least noise parameter s, over the clip, that is accounted for. Losses are up to 2/s = 600, so that their
exponentials are still floats."""
_INTERVALS = 1500
"""Each length of one clip is cut into this many intervals, or into fewer if the lattice has fewer points to a clip."""
_MASS_ERROR = 1e-14
"""A bound on the relative rounding error of the computed probability of an interval of outputs."""

Mixed = tuple[tuple[int, float], ...]
"""A mixture of two Laplace laws as ((centre, weight),), where the law with that centre, in clips, has that weight. The
law with centre 0 has the rest."""


def _cuts(bottom: int, levels: int) -> tuple[Array, Array]:
    """The intervals into which the outputs from `bottom` to 1 are cut: the first and the last output of each.

    Outputs are in units of the clip. Each length of one clip is cut into `_INTERVALS` equal intervals, on a lattice
    into about as many or, if its points are fewer, into one for each point.

    bottom: the lowest mean, 0 or, with replace-one, -1.
    levels: the lattice points to a clip, or 0 for continuous noise. On a lattice the outputs `bottom` and 1 themselves
        are in no interval.
    """
    ends = np.arange(bottom * _INTERVALS, _INTERVALS + 1) / _INTERVALS
    if not levels:
        return ends[:-1], ends[1:]
    points = np.unique(np.clip(np.rint(ends * levels), bottom * levels + 1, levels))
    return points[:-1] / levels, (points[1:] - 1) / levels


def _masses(first: Array, last: Array, bottom: int, centre: int, s: float, gap: float) -> Array:
    """The probabilities that Laplace noise gives to the outputs up to `bottom`, to each interval, and to those from 1.

    Outputs are in units of the clip. The noise has the density exp(-|x - centre|/s)/(2 s), or on a lattice with spacing
    `gap` > 0 masses in proportion to it. first, last: the ends of the intervals. The centre is 0, 1 or -1, at least
    `bottom`, and inside no interval. The first and the last entry of the result are those of the two outer parts.
    """
    near = np.where(first >= centre, first - centre, centre - last)
    inner = np.exp(-near / s) * -np.expm1(-(last + gap - first) / s)
    outer = [math.exp(-(centre - bottom) / s), math.exp(-(1 - centre) / s)]
    return np.concatenate([outer[:1], inner, outer[1:]]) / (1 + math.exp(-gap / s))


def log_mixed(weight: float, level: Array) -> Array:
    """The log of 1 - weight + weight e^level, without overflow, and with a small relative error where it is near 0 too.

    weight: in (0, 1].
    """
    if weight == 1:
        return level
    more = weight * np.expm1(np.minimum(level, 700.0))
    near = np.abs(more) < 0.5
    far = np.logaddexp(math.log1p(-weight), math.log(weight) + level)
    return np.asarray(np.where(near, np.log1p(np.where(near, more, 0.0)), far))


def _log_ratio(mixed: Mixed, x: Array, s: float) -> Array:
    """The log of the ratio of two densities at x: that of the mixture `mixed` of Laplace laws to that of the law with
    centre 0.

    s: the parameter of all these laws.
    """
    centre, weight = mixed[-1]
    return log_mixed(weight, (np.abs(x) - np.abs(x - centre)) / s)


@lru_cache(maxsize=8)
def laplace_pairs(
    noise: float, sample_rate: float, levels: int = 0, *, replaced: bool
) -> tuple[FinitePair, FinitePair]:
    """Pairs of laws with finitely many outcomes that bound one release with Laplace noise from above and from below.

    The first result is for (P, Q), with the record under P, and the second for (Q, P).

    noise: the Laplace parameter s over the clip, at least `LEAST_LAPLACE`.
    sample_rate: q in (0, 1], of full or Poisson batches.
    levels: M, the lattice points to a clip, or 0 for continuous noise.
    replaced: whether the record has another value under Q; else its contribution is 0 there.
    """
    s, q, gap = noise, sample_rate, 1 / levels if levels else 0.0
    bottom = -1 if replaced else 0
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
    wrong_p, wrong_r = _MASS_ERROR * p, _MASS_ERROR * r
    forward = partitioned(p, r, least, most, wrong_p, wrong_r)
    if q == 1 or replaced:
        # Reflection of the outputs exchanges the two laws, so that both directions are one pair.
        return forward, forward
    return forward, partitioned(r, p, -most, -least, wrong_r, wrong_p)
