"""Epochs of batches of one size in a random order: pairs of laws that some data attain, for lower ends.

The records of an epoch are put into a uniformly random order, and its t steps take batches of B records in that order.
Lengths are in units of the clip, s is the noise. Let all records but one contribute -1. Then a step's sum, plus B, is 0
if that record is in another step, and 1 + c if it is in this one and contributes c: 1 or -1, or 0 under zero-out. With
e_i the i-th unit vector,

    replace-one:  P = (1/t) sum_i N(2 e_i, s^2 I),   Q = N(0, s^2 I);
    zero-out:     P as above,                        Q = (1/t) sum_i N(e_i, s^2 I).

For zero-out there is also P = (1/t) sum_i N(e_i, s^2 I) and Q = N(0, s^2 I), of others that contribute 0. Pairs with
Q = N(0, s^2 I) are those of random allocation (`allocations.epoch`), at half the noise under replace-one. For the other
pair the largest output M of the epoch is told, which is post-processing, and its law has a closed form, as in Chua et
al. ("How private are DP-SGD implementations?", ICML 2024, arXiv 2403.17673):

    P(M <= x) = (1 - r/t) F(x)^r + (r/t) F(x - 2) F(x)^(r - 1),    F(x) = Phi(x/s),

where r <= t steps of the epoch are released. Each epoch has a new order, so that the pairs of epochs compose.
"""

from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.laws.finite import FinitePair

LEAST_SHUFFLED = 0.02
"""The least noise s, over the clip, for which pairs are made; with less the losses are in the thousands."""
_WIDTHS, _FARTHEST = 40, 12.0
"""The largest output is told up to intervals, this many to a standard deviation of the noise, that end so many standard
deviations above the largest mean. Below all of them the intervals begin as far under 0."""
_ERROR = 1e-12
"""A bound on the rounding error of an interval's probability, as a share of that of all outputs on its side."""


def _masses(edges: Array, s: float, share: float, released: int, mean: float) -> tuple[Array, Array]:
    """The probabilities that the largest of `released` outputs is in the intervals, and bounds on their absolute
    errors.

    The intervals are those between -inf, the `edges` and inf. With probability `share` one of the outputs, else none,
    has this mean; the others have the mean 0. s: the noise.
    """
    still, moved = log_ndtr(edges / s), log_ndtr((edges - mean) / s)
    logs = released * still, moved + (released - 1) * still
    below, above = (
        (1 - share) * first + share * second
        for first, second in (tuple(map(np.exp, logs)), tuple(-np.expm1(log) for log in logs))
    )
    below, above = np.concatenate([[0.0], below, [1.0]]), np.concatenate([[1.0], above, [0.0]])
    high = below[1:] > above[:-1]
    mass = np.where(high, above[:-1] - above[1:], below[1:] - below[:-1])
    return mass, _ERROR * np.where(high, above[:-1], below[1:])


@lru_cache(maxsize=16)
def largest_pairs(noise: float, epoch: int, released: int, down: float) -> tuple[FinitePair, FinitePair]:
    """The laws of the largest output of an epoch, as a pair that (P, Q) dominates and one that (Q, P) dominates. They
    bound delta from below only.

    noise: s, the standard deviation over the clip, at least `LEAST_SHUFFLED`. epoch: t, the number of steps of an
    epoch. released: r, the number of the epoch's steps that are released. down: the mean under Q of the step that the
    record is in, 0 or 1; under P it is 2.
    """
    edges = np.arange(-_FARTHEST * noise, 2 + _FARTHEST * noise, noise / _WIDTHS)
    (p, p_error), (q, q_error) = (_masses(edges, noise, released / epoch, released, mean) for mean in (2.0, down))
    return _least(p - p_error, q + q_error), _least(q - q_error, p + p_error)


def _least(p: Array, q: Array) -> FinitePair:
    """The pair with the weights p and q under its two laws, without the outputs where one of them is not above 0. It
    serves for lower ends only."""
    seen = (p > 0) & (q > 0)
    p, q = p[seen], q[seen]
    loss = np.log(p) - np.log(q)
    order = np.argsort(loss, kind="stable")
    return FinitePair(loss[order], p[order], 0.0, p[order], q[order])
