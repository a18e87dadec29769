"""One release whose sum the protected records shift at random, with Gaussian or Laplace noise, on the line or on
integers: finite pairs that bound it.

Lengths are in units of the clip. N(c) is the law of the noise with centre c, and s its parameter. With the protected
records the output has the law P = sum over j of p_j N(c_j), where c_j >= 0 is the shift by the records that are in the
batch: c_j = j with binomial weights for Poisson batches. Without them the law is Q = N(0); with replace-one the other
records pull the other way, and Q = sum over j of p_j N(-c_j). No data does worse (derivation.md, section 4). The loss
rises with the output, so outputs are cut into intervals, from whose masses and the losses at their ends two finite
pairs are made (`finite.partitioned`).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.finite import FinitePair, partitioned
from dpzero_theory.privacy.laws.law import UNIT, log_mixed, normal_mass

MOST_IN_GROUP, MOST_IN_LAPLACE_GROUP = 2000, 300
"""The largest number k of records in a group for which pairs are made, with Gaussian and with Laplace noise. With more
records the probabilities p_j that j of them are in a batch would be less accurate than `_MANY_ERROR` says."""
LEAST_NOISE, MOST_NOISE = 0.2, 1e4
"""The least and the most Gaussian noise s for which pairs are made. With less noise the losses of one release are in
the hundreds and need a long grid; with more, two neighbouring intervals' losses hardly differ, so that rounding would
widen the bracket."""
LEAST_LAPLACE = 1 / 300
"""The least parameter s of Laplace noise. Losses are up to 2/s = 600, so that their exponentials are still floats."""
LEAST_DISCRETE = 0.05
"""The least s of Gaussian noise on integers. There the sum with the record and the sum without it are 20 standard
deviations apart, so that the noise hides nothing."""
WIDEST = 2.0**8
"""The largest sigma, in integers, of noise that is summed integer by integer; wider noise is accounted for as
continuous."""
LEAST_ZEROED, MOST_ZEROED = 0.05, 2.0**40
"""The least s, and the largest s/q, of fixed-size batches under zero-out. With more noise neighbouring outputs have the
same loss as 64-bit floats."""
_FEW_ERROR, _MANY_ERROR = 32 * UNIT, 1e-11
"""Bounds on the rounding error of a weight, as a share of it, and of a loss, as a share of 1 plus its size: of one or
two shifts, and of more, of which the logarithms of p_j are sums of terms of at most 2e4."""
_NEGLIGIBLE = 1e-300
"""This is added to the error of every mass, because of numbers below the least normal float."""
_SELDOM = 1e-40
"""Outputs near a shift are put into narrow intervals only if it, or a larger one, has at least this probability."""
_NEAR, _FAR, _FARTHEST = 9.0, 38.0, 37.5
"""Within 9 standard deviations of the noise around the likely means the intervals are narrow; up to 38 beyond all means
they are wide. Farther out a normal law has a probability below 1e-315. Integers are summed up to 37.5 sigma."""
_NARROW, _WIDE, _MOST_INTERVALS = 250, 10, 20_000
"""The number of intervals to a standard deviation of the noise, where they are narrow and where they are wide; and the
largest number of narrow intervals. Where more would be needed, they are wider."""
_TO_CLIP, _FEWEST_TO_CLIP = 1500, 64
"""Each length of one clip is cut into so many intervals with Laplace noise. For a group of k records it is twice the
first number over k, but from the second number to the first."""

_Mixture = tuple[tuple[float, float], ...]
"""The law of a random shift c >= 0, in clips, as pairs (c, log of its probability), with rising c."""


def binomial_shifts(rate: float, size: int) -> _Mixture:
    """The law of the number j = 0, ..., `size` of records that are drawn, each independently with probability `rate` in
    (0, 1]."""
    if rate == 1:
        return ((float(size), 0.0),)
    ways = (math.log(math.comb(size, j)) for j in range(size + 1))
    log_in, log_out = math.log(rate), math.log1p(-rate)
    return tuple((float(j), way + j * log_in + (size - j) * log_out) for j, way in enumerate(ways))


def any_drawn(rate: float, size: int) -> float:
    """An upper bound on the probability that at least one of `size` records is drawn, each independently with
    probability `rate`."""
    if size == 1 or rate >= 1:
        return rate
    return min(-math.expm1(size * math.log1p(-rate)) * (1 + 1e-15), 1.0)


class _Noise(ABC):
    """A law of noise on a sum: how outputs are cut into intervals, and the masses and density ratios of the noise.

    Attributes:
        bounded: whether the loss is constant beyond the outermost centres.
    """

    bounded = False

    @abstractmethod
    def cuts(self, shifts: _Mixture, bottom: float) -> tuple[Array, Array]:
        """Cut the outputs into intervals, for centres of the noise from `bottom` to the largest shift. Returns the
        first and the last output of each interval. Of the two outer intervals only the inner end is used."""

    @abstractmethod
    def masses(self, first: Array, last: Array, centre: float) -> tuple[Array, Array]:
        """The probabilities of the intervals from `first` to `last` for noise with this centre, and bounds on their
        absolute errors."""

    @abstractmethod
    def log_ratio(self, x: Array, centre: float) -> Array:
        """The log of the ratio at x of the density with this centre to the one with centre 0."""

    def mixed(self, first: Array, last: Array, shifts: _Mixture, sign: int) -> tuple[Array, Array]:
        """What `masses` returns, for noise with a random centre: `sign` times the shift."""
        total, error = np.zeros(len(first)), np.full(len(first), _NEGLIGIBLE)
        rounding = _FEW_ERROR if len(shifts) <= 2 else _MANY_ERROR
        for centre, log_weight in shifts:
            if (weight := math.exp(log_weight)) > 0:
                mass, wrong = self.masses(first, last, sign * centre)
                total += weight * mass
                error += weight * (wrong + rounding * (2 - log_weight if len(shifts) <= 2 else 1) * mass)
        return total, error

    def losses(self, x: Array, shifts: _Mixture, replaced: bool) -> tuple[Array, Array]:
        """The privacy losses at the outputs x, and bounds on their absolute errors. Under P the centre is a random
        shift; under Q it is 0 or, with `replaced`, minus the shift."""

        def log_mean(y: Array) -> tuple[Array, Array]:
            each = [(self.log_ratio(y, centre), log_weight) for centre, log_weight in shifts]
            if len(each) > 2 or (len(each) == 2 and shifts[0][0] > 0):
                found = np.logaddexp.reduce([log + log_weight for log, log_weight in each])
                return found, _MANY_ERROR * (1 + np.abs(found))
            log, log_weight = each[-1]
            return log_mixed(math.exp(log_weight), log), _FEW_ERROR * (1 + np.abs(log))

        loss, error = log_mean(x)
        if replaced:
            other, more = log_mean(-x)
            loss, error = loss - other, error + more
        return loss, error


@dataclass(frozen=True)
class NormalNoise(_Noise):
    """Gaussian noise on the line, with standard deviation s."""

    s: float

    def cuts(self, shifts: _Mixture, bottom: float) -> tuple[Array, Array]:
        s, (at, log_weights) = self.s, (np.array(each) for each in zip(*shifts, strict=True))
        seen = np.flatnonzero(np.logaddexp.accumulate(log_weights[::-1])[::-1] > math.log(_SELDOM))
        likely, largest = float(at[seen.max(initial=0)]), float(at[-1])
        low, high = (likely if bottom else 0) * -1 - _NEAR * s, likely + _NEAR * s
        count = min(math.ceil((high - low) / s * _NARROW), _MOST_INTERVALS)
        least, most = bottom - _FAR * s, largest + _FAR * s
        below, above = (math.ceil(gap / s * _WIDE) + 1 for gap in (low - least, most - high))
        wide = np.linspace(least, low, below)[:-1], np.linspace(high, most, above)[1:]
        edges = np.concatenate([[-np.inf], wide[0], np.linspace(low, high, count + 1), wide[1], [np.inf]])
        return edges[:-1], edges[1:]

    def masses(self, first: Array, last: Array, centre: float) -> tuple[Array, Array]:
        return normal_mass((first - centre) / self.s, (last - centre) / self.s)

    def log_ratio(self, x: Array, centre: float) -> Array:
        return (2 * centre * x - centre * centre) / (2 * self.s**2)


@dataclass(frozen=True)
class LaplaceNoise(_Noise):
    """Laplace noise with parameter s, on the line or, with `levels` > 0, on a lattice with `levels` points to a clip.

    Centres are whole clips. They are ends of intervals, and on a lattice the outermost ones belong to the outer
    intervals.
    """

    s: float
    levels: int = 0
    bounded = True

    def cuts(self, shifts: _Mixture, bottom: float) -> tuple[Array, Array]:
        top, levels = round(shifts[-1][0]), self.levels
        each = min(max(2 * _TO_CLIP // top, _FEWEST_TO_CLIP), _TO_CLIP)
        ends = np.arange(round(bottom) * each, top * each + 1) / each
        first, last = ends[:-1], ends[1:]
        if levels:
            points = np.unique(np.clip(np.rint(ends * levels), bottom * levels + 1, top * levels))
            first, last = points[:-1] / levels, (points[1:] - 1) / levels
        return np.concatenate([[bottom], first, [top]]), np.concatenate([[bottom], last, [top]])

    def masses(self, first: Array, last: Array, centre: float) -> tuple[Array, Array]:
        s, gap = self.s, 1 / self.levels if self.levels else 0.0
        near = np.where(first >= centre, first - centre, centre - last)
        found = np.exp(-near / s) * -np.expm1(-(last + gap - first) / s)
        found[0], found[-1] = math.exp((first[0] - centre) / s), math.exp((centre - last[-1]) / s)
        found /= 1 + math.exp(-gap / s)
        # Ends of intervals on a lattice are rounded. The second term is that error as a share of an interval's length.
        rounded = 8 * (last[-1] - first[0]) / (last + gap - first) if gap else 0.0
        return found, UNIT * (64 * (1 + near / s) + rounded) * found

    def log_ratio(self, x: Array, centre: float) -> Array:
        return (np.abs(x) - np.abs(x - centre)) / self.s


@dataclass(frozen=True)
class IntegerNoise(_Noise):
    """Gaussian noise on integers, where a clip is `levels` integers and the parameter is `s` times `levels`.

    Outputs x are integers, and each is an interval of its own.
    """

    s: float
    levels: int

    def cuts(self, shifts: _Mixture, bottom: float) -> tuple[Array, Array]:
        reach = math.ceil(_FARTHEST * self.s * self.levels)
        least, most = round(self.levels * bottom) - reach - 1, round(self.levels * shifts[-1][0]) + reach + 1
        x = np.arange(least, most + 1, dtype=np.float64)
        return x, x

    def masses(self, first: Array, last: Array, centre: float) -> tuple[Array, Array]:
        sigma = self.s * self.levels
        reach = math.ceil(_FARTHEST * sigma)
        total = _total(sigma)
        square = ((first - centre * self.levels) / sigma) ** 2
        found = np.exp(-square / 2) / total
        error = 8 * UNIT * (8 + square) * found
        # The mass farther than `reach` from a centre, on one side, is at most that of a geometric series.
        beyond = math.exp(-(((reach + 1) / sigma) ** 2) / 2) / -math.expm1(-(2 * reach + 3) / (2 * sigma**2)) / total
        found[[0, -1]] = error[[0, -1]] = beyond / 2
        return found, error

    def log_ratio(self, x: Array, centre: float) -> Array:
        c = centre * self.levels
        return c * (2 * x - c) / (2 * (self.s * self.levels) ** 2)


@lru_cache(maxsize=4)
def _total(sigma: float) -> float:
    """The sum of e^(-x^2/(2 sigma^2)) over the integers x."""
    reach = math.ceil(_FARTHEST * sigma)
    return math.fsum(np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2) / 2))


@lru_cache(maxsize=16)
def shifted_pairs(noise: _Noise, shifts: _Mixture, *, replaced: bool) -> tuple[FinitePair, FinitePair]:
    """Finite pairs of laws that bound one release whose sum has a random shift.

    Args:
        noise: its parameter must be in the range above, of `NormalNoise` in units of the largest shift.
        shifts: the law of the shift under P.
        replaced: whether the shift is the opposite one under Q; else there is none.

    Returns:
        The pairs for (P, Q), and the pairs for (Q, P).
    """
    first, last = noise.cuts(shifts, -shifts[-1][0] if replaced else 0.0)
    p, p_error = noise.mixed(first, last, shifts, 1)
    q, q_error = noise.mixed(first, last, shifts if replaced else ((0.0, 0.0),), -1)
    (low, slack), (high, more) = (
        noise.losses(np.concatenate(x), shifts, replaced) for x in ((last[:1], first[1:]), (last[:-1], first[-1:]))
    )
    least, most = low - slack, high + more
    if not noise.bounded:
        # If there is no shift under Q, the loss is at least the log of the probability of a shift of 0, which may be
        # none. With replace-one the loss has no bound.
        still, log_still = shifts[0]
        least[0] = -math.inf if replaced or still > 0 else log_still - _MANY_ERROR * (1 - log_still)
        most[-1] = math.inf
    forward = partitioned(p, q, least, most, p_error, q_error)
    if replaced or len(shifts) == 1:
        # Reflection of the outputs exchanges the two laws, so that both directions are one pair.
        return forward, forward
    return forward, partitioned(q, p, -most, -least, q_error, p_error)


@lru_cache(maxsize=32)
def zeroed_pairs(noise: float, rate: float) -> tuple[FinitePair, FinitePair]:
    """The pairs of one release with Gaussian noise and batches of fixed size under zero-out: what `shifted_pairs`
    returns, with the record under P, and with a contribution of 0 in its place under Q.

    With probability 1 - q the batch is a set of others. Otherwise the record takes the place of one of them, whose
    contribution is y. The line is moved so that y is at 0. At the worst data the record is opposite to y, at 2, and 0
    is at 1:

        P = (1-q) N(0) + q N(2),      Q = (1-q) N(0) + q N(1).

    At every ratio a >= 1 the divergence max over A of P(A) - a Q(A) of this pair is the largest over all data. The
    largest divergence in the other direction is that of Q against N(0). A pair with both of these divergences
    dominates; and as data attain (P, Q) at every step, what tells of the interval of an output bounds from below.

    s is `noise`, at least `LEAST_ZEROED`, and q is `rate` in (0, 1), the share of the records that a batch has.
    """
    s, normal = noise, NormalNoise(noise)
    still, one = ((0.0, 0.0),), binomial_shifts(rate, 1)
    two = tuple((2 * c, log_weight) for c, log_weight in one)
    # Losses are steep where the noise is small. The loss of P against Q is 0 at 3/2, and that of Q against N(0) at 1/2.
    step = s * min(0.03, 0.05 * s)
    count = math.ceil((1.5 + 15 * s) / step)

    def masses(edges: Array, *laws: _Mixture) -> list[Array]:
        found = [normal.mixed(edges[:-1], edges[1:], law, 1) for law in laws]
        return [one[k] for k in (0, 1) for one in found]

    def positive(zero: float, first: _Mixture, second: _Mixture) -> tuple[FinitePair, FinitePair]:
        """What the outputs beyond `zero`, where the loss is 0 before it rises, add to the dominating pairs of the two
        directions."""
        edges = np.asarray(zero + step * np.arange(count + 1), dtype=np.float64)
        (log_p, wrong_p), (log_q, wrong_q) = (normal.losses(edges, law, False) for law in (first, second))
        loss, error = log_p - log_q, wrong_p + wrong_q
        p, q, p_error, q_error = masses(np.append(edges, math.inf), first, second)
        least, most = np.maximum(loss - error, 0.0), np.append((loss + error)[1:], math.inf)
        return partitioned(p, q, least, most, p_error, q_error), partitioned(q, p, -most, -least, q_error, p_error)

    p, q, p_error, q_error = masses(
        np.concatenate([[-math.inf], 1.5 + step * np.arange(-count, count + 1), [math.inf]]), two, one
    )
    below = p - p_error, q + q_error
    (up, up_back), (down, down_back) = positive(1.5, two, one), positive(0.5, one, still)
    return _joined(up, down_back, *below), _joined(down, up_back, q - q_error, p + p_error)


def _joined(positive: FinitePair, negative: FinitePair, p: Array, q: Array) -> FinitePair:
    """Join what the outputs with positive losses add to a pair that dominates, and what those with negative losses add.
    The remaining mass of P has the loss 0. `p` and `q` are the masses of the pair that is dominated."""
    middle = max(1 - float(np.sum(positive.mass) + np.sum(negative.mass)) - positive.infinite, 0.0)
    loss = np.concatenate([negative.loss, [0.0], positive.loss])
    mass = np.concatenate([negative.mass, [middle], positive.mass])
    seen = (p > 0) & (q > 0)
    return FinitePair(loss, mass, positive.infinite, p[seen], q[seen])
