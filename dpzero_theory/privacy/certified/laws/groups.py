"""One Gaussian release of a Poisson batch, for data sets that differ in a group of k records: finite pairs that bound
it.

Lengths are in units of the clip, s is the standard deviation of the noise, and q is the rate at which each record is
drawn. With the group the output has the law P = sum over j of p_j N(j, s^2), where p_j is the binomial probability that
j of the k records are in the batch. Without it the law is Q = N(0, s^2); with replace-one the group's other records
pull the other way, and Q = sum over j of p_j N(-j, s^2).

No data does worse. Given that the set S of the group's records is in the batch, the two outputs are normal laws whose
means are at most |S| from that of the batch without the group. Of all events E with a given probability under the
latter, the half-line {x > c} has the largest probability under every N(|S|, s^2) at once, and the smallest one under
every N(-|S|, s^2) (Neyman and Pearson). So it maximises P(E) - a Q(E) for every a > 0, and the half-line {x < c}
maximises Q(E) - a P(E). The pair (P, Q) therefore dominates the release, and records that all contribute one clip in
one direction attain it.

The logarithm of the ratio of P's to Q's density rises with x, so the line of outputs is cut into intervals, and two
finite pairs are made from the intervals' masses (`finite.partitioned`).
"""

import math
from functools import lru_cache

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.laws.arithmetic import normal_mass
from dpzero_theory.privacy.certified.laws.finite import FinitePair, partitioned

MOST_IN_GROUP = 2000
"""The largest k for which the pairs are made; with more records the weights p_j would be less accurate."""
LEAST_NOISE, MOST_NOISE = 0.2, 1e4
"""The least and the most noise s. With less noise the losses of one release are in the hundreds and need a long grid;
with more, two neighbouring intervals' losses hardly differ, so that rounding would widen the bracket."""
_WEIGHT_ERROR = 1e-11
"""A bound on the relative rounding error of p_j, whose logarithm is a sum of terms of at most 2e4 in all."""
_LOSS_ERROR = 1e-11
"""A bound on the rounding error of a loss, as a share of 1 plus its size; it includes the error of the p_j."""
_SELDOM = 1e-40
"""Outputs near j clips are put into narrow intervals only if j or more records are drawn with at least this
probability."""
_NEAR, _FAR = 9.0, 38.0
"""Within 9 standard deviations of the likely means the intervals are narrow; up to 38 beyond all means they are wide.
Farther out a normal law has a probability below 1e-315."""
_NARROW, _WIDE = 250, 10
"""The number of intervals to a standard deviation of the noise, where they are narrow and where they are wide."""
_MOST_INTERVALS = 20_000
"""The largest number of narrow intervals. Where more would be needed, they are wider."""


def _log_weights(rate: float, size: int) -> Array:
    """The logs of the binomial probabilities that j = 0, ..., `size` records are drawn, each independently with
    probability `rate`.

    rate: in (0, 1).
    """
    drawn = np.arange(size + 1)
    ways = np.array([math.log(math.comb(size, j)) for j in range(size + 1)])
    return np.asarray(ways + drawn * math.log(rate) + (size - drawn) * math.log1p(-rate))


def _edges(log_weights: Array, s: float, replaced: bool) -> Array:
    """The ends of the intervals into which outputs are cut, narrow where outputs are likely and wide beyond.

    log_weights: the logs of the probabilities that j = 0, 1, ... records of the group are drawn. s: the noise over the
    clip. replaced: whether the other data set has as many other records.
    """
    size = len(log_weights) - 1
    likely = int(np.flatnonzero(np.logaddexp.accumulate(log_weights[::-1])[::-1] > math.log(_SELDOM)).max(initial=0))
    bottom = -1 if replaced else 0
    low, high = bottom * likely - _NEAR * s, likely + _NEAR * s
    count = min(math.ceil((high - low) / s * _NARROW), _MOST_INTERVALS)
    least, most = bottom * size - _FAR * s, size + _FAR * s
    below, above = (math.ceil(gap / s * _WIDE) + 1 for gap in (low - least, most - high))
    return np.concatenate(
        [
            np.linspace(least, low, below)[:-1],
            np.linspace(low, high, count + 1),
            np.linspace(high, most, above)[1:],
        ]
    )


def _masses(edges: Array, log_weights: Array, s: float, sign: int) -> tuple[Array, Array]:
    """The probabilities of the intervals of outputs under a mixture of normal laws, and bounds on their errors.

    The intervals are those between -inf, the `edges` and inf. The mixture has the laws N(sign j, s^2), j = 0, 1, ...,
    with weights whose logs are `log_weights`.
    """
    ends = np.concatenate([[-np.inf], edges, [np.inf]])
    total, error = np.zeros(len(ends) - 1), np.zeros(len(ends) - 1)
    for j, log_weight in enumerate(log_weights):
        weight = math.exp(log_weight)
        if weight > 0:
            mass, wrong = normal_mass((ends[:-1] - sign * j) / s, (ends[1:] - sign * j) / s)
            total += weight * mass
            error += weight * (wrong + _WEIGHT_ERROR * mass)
    return total, error + 1e-16 * total


def _losses(edges: Array, log_weights: Array, s: float, replaced: bool) -> Array:
    """The privacy losses at the outputs `edges`: the logs of the ratio of the density with the group to that without
    it.

    log_weights: the logs of the probabilities that j = 0, 1, ... records of the group are drawn. s: the noise over the
    clip. replaced: whether the other data set has as many other records, which pull the other way.
    """

    def log_ratio(x: Array) -> Array:
        total = np.full(len(x), -np.inf)
        for j, log_weight in enumerate(log_weights):
            total = np.logaddexp(total, log_weight + (2 * j * x - j * j) / (2 * s * s))
        return total

    return log_ratio(edges) - log_ratio(-edges) if replaced else log_ratio(edges)


@lru_cache(maxsize=16)
def group_pairs(noise: float, sample_rate: float, size: int, *, replaced: bool) -> tuple[FinitePair, FinitePair]:
    """Pairs of laws with finitely many outcomes that bound one release for a group of records from above and from
    below.

    The first result is for (P, Q), with the group under P, and the second for (Q, P).

    noise: s over the clip, from `LEAST_NOISE` to `MOST_NOISE`. sample_rate: q in (0, 1). size: k, at most
    `MOST_IN_GROUP`. replaced: whether the group's records have other values under Q; else they are not there.
    """
    s = noise
    log_weights = _log_weights(sample_rate, size)
    edges = _edges(log_weights, s, replaced)
    loss = _losses(edges, log_weights, s, replaced)
    slack = _LOSS_ERROR * (1 + np.abs(loss))
    (p, p_error), (q, q_error) = (
        _masses(edges, log_weights, s, 1),
        _masses(edges, log_weights if replaced else np.zeros(1), s, -1),
    )
    # If the group is missing under Q, the loss is at least log p_0, where p_0 is the probability that none of its
    # records is drawn. With replace-one the loss has no bound.
    bottom = -math.inf if replaced else float(log_weights[0]) - _LOSS_ERROR * (1 - float(log_weights[0]))
    least, most = np.append(bottom, loss - slack), np.append(loss + slack, math.inf)
    return partitioned(p, q, least, most, p_error, q_error), partitioned(q, p, -most, -least, q_error, p_error)
