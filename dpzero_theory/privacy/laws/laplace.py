"""One release with Laplace noise, in full or Poisson batches: a finite pair that dominates it, and one that it
dominates.

P is the law of the output with the record, Q the law without it or with another one. Lengths are in units of the clip.
The noise has the density e^{-|x|/s}/(2 s), s = `noise`, or it is its analogue on a lattice with M = `levels` points to
a clip. The record moves the sum by 1; with replace-one the other record moves it by -1. Where x is beyond all of these
means the ratio of the densities of P and Q at x is constant, and between them it rises. So let the line be cut into
intervals. To tell only the interval of an output is post-processing, so the intervals' exact masses under P and Q are a
pair that is dominated ("below"). If each interval's masses are split between the two density ratios at its ends, so
that its masses under P and under Q are both kept, the pair dominates ("above"). Derived in derivation.md, section 4.
"""

import math
from functools import lru_cache

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.finite import FinitePair, partitioned
from dpzero_theory.privacy.laws.shifts import LOSS_ERROR, WEIGHT_ERROR, binomial_shifts

LEAST_LAPLACE = 1 / 300
"""The least noise parameter s, over the clip, that is accounted for. Losses are up to 2/s = 600, so that their
exponentials are still floats."""
_INTERVALS = 1500
"""Each length of one clip is cut into this many intervals, or into fewer if the lattice has fewer points to a clip."""
MOST_IN_LAPLACE_GROUP = 300
"""The largest number k of records in a group for which `laplace_group_pairs` makes pairs of laws."""
_FEWEST_INTERVALS = 64
"""For a group each length of one clip is cut into `_INTERVALS` over k intervals, times two, but at least into these."""
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
    """Two results, each with a finite pair of laws that dominates one release with Laplace noise and one that it
    dominates.

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


@lru_cache(maxsize=8)
def laplace_group_pairs(
    noise: float, sample_rate: float, size: int, *, replaced: bool
) -> tuple[FinitePair, FinitePair]:
    """Two results, each with a finite pair of laws that dominates one release of a Poisson batch for a group of k
    records, and one that it dominates.

    The noise is Laplace noise. With the group the output has the law P = sum over j of p_j Lap(j, s), where p_j is the
    binomial probability that j of the k records are in the batch; Lap(0, s) without it, and with replace-one Q = sum
    over j of p_j Lap(-j, s). As for Gaussian noise no data does worse (`groups`): of all events with a given
    probability under Lap(0, s) a half-line has the largest one under Lap(j, s), at once for every j >= 0. The first
    result is for (P, Q), the second for
    (Q, P).

    noise: the Laplace parameter s over the clip; s/k is at least `LEAST_LAPLACE`. sample_rate: q in (0, 1), of each
    record. size: k, at most `MOST_IN_LAPLACE_GROUP`. replaced: whether the group's records have other values under Q;
    else they are not there.
    """
    s, bottom = noise, -size if replaced else 0
    each = min(max(2 * _INTERVALS // size, _FEWEST_INTERVALS), _INTERVALS)
    edges = np.arange(bottom * each, size * each + 1) / each
    length = np.diff(edges)
    shifts = binomial_shifts(sample_rate, size)

    def masses(sign: int) -> Array:
        total = np.zeros(len(edges) + 1)
        for j, log_weight in shifts if sign else ((0.0, 0.0),):
            centre = sign * j
            near = np.where(edges[:-1] >= centre, edges[:-1] - centre, centre - edges[1:])
            inner = np.exp(log_weight - near / s) * -np.expm1(-length / s)
            outer = (math.exp(log_weight - abs(end - centre) / s) for end in (bottom, size))
            total += np.concatenate([[next(outer)], inner, [next(outer)]]) / 2
        return total

    def log_mean(sign: int) -> Array:
        total = np.full(len(edges), -np.inf)
        for j, log_weight in shifts:
            total = np.logaddexp(total, log_weight + (np.abs(edges) - np.abs(edges - sign * j)) / s)
        return total

    p, q = masses(1), masses(-1 if replaced else 0)
    loss = log_mean(1) - (log_mean(-1) if replaced else 0.0)
    slack = LOSS_ERROR * (1 + np.abs(loss))
    # The loss rises along the edges. Before the first edge and after the last, beyond which no Laplace law has its
    # centre j or -j, it is constant.
    least, most = np.concatenate([loss[:1], loss]), np.concatenate([loss, loss[-1:]])
    least, most = least - np.concatenate([slack[:1], slack]), most + np.concatenate([slack, slack[-1:]])
    wrong_p, wrong_q = ((WEIGHT_ERROR + _MASS_ERROR) * law for law in (p, q))
    return partitioned(p, q, least, most, wrong_p, wrong_q), partitioned(q, p, -most, -least, wrong_q, wrong_p)
