"""One Gaussian release with a random shift, such as that of k records in a Poisson batch: finite pairs that bound it.

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

Any other law of the shift has the same pair, with its own means c_j >= 0 and weights p_j: such a mechanism is a mixture
of Gaussians (Choquette-Choo et al., arXiv 2310.15526). With replace-one the other record's shift is -c_j.

The logarithm of the ratio of P's to Q's density rises with x, so the line of outputs is cut into intervals, and two
finite pairs are made from the intervals' masses (`finite.partitioned`).
"""

import math
from functools import lru_cache

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.arithmetic import normal_mass
from dpzero_theory.privacy.laws.finite import FinitePair, partitioned

MOST_IN_GROUP = 2000
"""The largest number k of records in a group for which pairs are made. With more records the probabilities p_j that j
of them are in a batch would be less accurate than `WEIGHT_ERROR` says."""
LEAST_NOISE, MOST_NOISE = 0.2, 1e4
"""The least and the most noise s, its standard deviation over the clip, for which pairs are made. With less noise the
losses of one release are in the hundreds and need a long grid; with more, two neighbouring intervals' losses hardly
differ, so that rounding would widen the bracket."""
WEIGHT_ERROR = 1e-11
"""A bound on the relative rounding error of p_j, the probability that j of a group's records are in the batch. Its
logarithm is a sum of terms of at most 2e4."""
LOSS_ERROR = 1e-11
"""A bound on the rounding error of a loss, as a share of 1 plus its absolute value. It includes the error
`WEIGHT_ERROR` of the probabilities."""
_CHANCE_ROUNDING = 1e-15
"""A bound on the relative rounding error of the probability 1 - (1 - q)^k, computed with expm1 and log1p."""
_SELDOM = 1e-40
"""Outputs near a shift are put into narrow intervals only if it, or a larger one, has at least this probability."""
_NEAR, _FAR = 9.0, 38.0
"""Within 9 standard deviations of the noise around the likely means the intervals are narrow; up to 38 beyond all means
they are wide. Farther out a normal law has a probability below 1e-315."""
_NARROW, _WIDE = 250, 10
"""The number of intervals to a standard deviation of the noise, where they are narrow and where they are wide."""
_MOST_INTERVALS = 20_000
"""The largest number of narrow intervals. Where more would be needed, they are wider."""


Mixture = tuple[tuple[float, float], ...]
"""The law of a random shift as ((c, log p), ...), where the shift c >= 0, in clips, has the probability p. The shifts
rise."""


def binomial_shifts(rate: float, size: int) -> Mixture:
    """The law of the number j = 0, ..., `size` of records that are drawn, each independently with probability `rate` in
    (0, 1)."""
    ways = (math.log(math.comb(size, j)) for j in range(size + 1))
    log_in, log_out = math.log(rate), math.log1p(-rate)
    return tuple((float(j), way + j * log_in + (size - j) * log_out) for j, way in enumerate(ways))


def drawn_shifts(n: int, batch: int, size: int) -> Mixture:
    """The law of the number j of a group's `size` records in a batch of `batch` of n records, drawn without
    replacement."""
    found = []
    for j in range(max(0, batch + size - n), min(size, batch) + 1):
        drawn, left = np.arange(j), np.arange(size - j)
        terms = (*np.log((batch - drawn) / (n - drawn)), *np.log((n - batch - left) / (n - j - left)))
        found.append((float(j), math.log(math.comb(size, j)) + math.fsum(terms)))
    return tuple(found)


def any_drawn(rate: float, size: int) -> float:
    """An upper bound on the probability that at least one of `size` records is drawn, each independently with
    probability `rate`."""
    if size == 1 or rate >= 1:
        return rate
    return min(-math.expm1(size * math.log1p(-rate)) * (1 + _CHANCE_ROUNDING), 1.0)


def _edges(shifts: Mixture, s: float, replaced: bool) -> Array:
    """The ends of the intervals into which outputs are cut, narrow where outputs are likely and wide beyond.

    shifts: the law of the shift. s: the noise over the clip. replaced: whether the other data set has the opposite
    shift.
    """
    at, log_weights = (np.array(each) for each in zip(*shifts, strict=True))
    seen = np.flatnonzero(np.logaddexp.accumulate(log_weights[::-1])[::-1] > math.log(_SELDOM))
    likely, largest = float(at[seen.max(initial=0)]), float(at[-1])
    bottom = -1 if replaced else 0
    low, high = bottom * likely - _NEAR * s, likely + _NEAR * s
    count = min(math.ceil((high - low) / s * _NARROW), _MOST_INTERVALS)
    least, most = bottom * largest - _FAR * s, largest + _FAR * s
    below, above = (math.ceil(gap / s * _WIDE) + 1 for gap in (low - least, most - high))
    return np.concatenate(
        [
            np.linspace(least, low, below)[:-1],
            np.linspace(low, high, count + 1),
            np.linspace(high, most, above)[1:],
        ]
    )


def _masses(edges: Array, shifts: Mixture, s: float, sign: int) -> tuple[Array, Array]:
    """The probabilities of the intervals of outputs under a mixture of normal laws, and bounds on their absolute
    errors.

    The intervals are those between -inf, the `edges` and inf. The mixture has the laws N(sign c, s^2) of the `shifts`
    c, with their probabilities; sign is 1 or -1.
    """
    ends = np.concatenate([[-np.inf], edges, [np.inf]])
    total, error = np.zeros(len(ends) - 1), np.zeros(len(ends) - 1)
    for at, log_weight in shifts:
        weight = math.exp(log_weight)
        if weight > 0:
            mass, wrong = normal_mass((ends[:-1] - sign * at) / s, (ends[1:] - sign * at) / s)
            total += weight * mass
            error += weight * (wrong + WEIGHT_ERROR * mass)
    return total, error + 1e-16 * total


def _losses(edges: Array, shifts: Mixture, s: float, replaced: bool) -> Array:
    """The privacy losses at the outputs `edges`: the logs of the ratio of the density with the shift to that without
    it.

    shifts: the law of the shift. s: the noise over the clip. replaced: whether the other data set has the opposite
    shift.
    """

    def log_ratio(x: Array) -> Array:
        total = np.full(len(x), -np.inf)
        for at, log_weight in shifts:
            total = np.logaddexp(total, log_weight + (2 * at * x - at * at) / (2 * s * s))
        return total

    return log_ratio(edges) - log_ratio(-edges) if replaced else log_ratio(edges)


@lru_cache(maxsize=16)
def mixture_pairs(noise: float, shifts: Mixture, *, replaced: bool) -> tuple[FinitePair, FinitePair]:
    """Two results, each with a finite pair of laws that dominates one release whose sum has a random shift, and one
    that it dominates.

    The first result is for (P, Q), with the shift under P, and the second for (Q, P).

    noise: the standard deviation over the clip, from `LEAST_NOISE` to `MOST_NOISE` times the largest shift. shifts: the
    law of the shift. replaced: whether the shift is the opposite one under Q; else there is none.
    """
    s = noise
    edges = _edges(shifts, s, replaced)
    loss = _losses(edges, shifts, s, replaced)
    slack = LOSS_ERROR * (1 + np.abs(loss))
    (p, p_error), (q, q_error) = (
        _masses(edges, shifts, s, 1),
        _masses(edges, shifts if replaced else ((0.0, 0.0),), s, -1),
    )
    # If there is no shift under Q, the loss is at least the log of the probability of a shift of 0, which may be none.
    # With replace-one the loss has no bound.
    still, log_still = shifts[0]
    bottom = -math.inf if replaced or still > 0 else log_still - LOSS_ERROR * (1 - log_still)
    least, most = np.append(bottom, loss - slack), np.append(loss + slack, math.inf)
    return partitioned(p, q, least, most, p_error, q_error), partitioned(q, p, -most, -least, q_error, p_error)


@lru_cache(maxsize=16)
def attained_pair(noise: float, first: Mixture, second: Mixture) -> FinitePair:
    """A pair of laws from below: what tells of the interval of an output which some data attain.

    The pair that dominates is a copy, and bounds nothing. noise: s over the clip. first, second: the laws of the shift
    under P and under Q, at these data; both have equally many values.
    """
    edges = _edges(max(first, second), noise, False)
    (p, p_error), (q, q_error) = (_masses(edges, law, noise, 1) for law in (first, second))
    p, q = p - p_error, q + q_error
    seen = (p > 0) & (q > 0)
    p, q = p[seen], q[seen]
    loss = np.log(p) - np.log(q)
    order = np.argsort(loss, kind="stable")
    return FinitePair(loss[order], p[order], 0.0, p, q)
