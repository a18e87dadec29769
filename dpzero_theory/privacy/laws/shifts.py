"""Bounds the cost of one release whose sum the protected records shift by a random amount, with Gaussian or Laplace
noise on the line or on integers, by finite pairs of distributions.

Lengths are in units of the clip. N(c) is the noise with centre c, and s its parameter: the standard deviation, or the
scale of Laplace noise. With the protected records the output has the distribution P = sum over j of p_j N(c_j), where
c_j >= 0 is the shift by the records that are in the batch, and p_j its probability: c_j = j with binomial p_j for
Poisson batches. Without the records the output has the distribution Q = N(0). Under replace-one the records' other
values shift the sum the other way, and Q = sum over j of p_j N(-c_j). No data cost more (derivation.md, section 4). The
loss rises with the output, so outputs are divided into intervals, whose probabilities and losses make finite pairs
(`finite.partitioned`).
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
"""The largest number k of records in a group, with Gaussian and with Laplace noise. With more records the probabilities
that j of them are in a batch would be less accurate than `_MANY_ERROR` says."""
LEAST_NOISE, MOST_NOISE = 0.2, 1e4
"""The smallest and the largest standard deviation s of `NormalNoise`, in clips. With less, privacy losses of one
release are in the hundreds and need a long grid. With more, neighbouring intervals of outputs have almost the same
loss, and rounding would make bounds wide."""
LEAST_LAPLACE = 1 / 300  # the least s of Laplace noise; losses are up to 2/s = 600, whose exponentials are floats
LEAST_DISCRETE = 0.05  # the least s of Gaussian noise on integers: a clip is 20 times s: it hides nothing
WIDEST = 2.0**8  # the largest sigma of noise on integers that is summed integer by integer, not taken as continuous
LEAST_ZEROED, MOST_ZEROED = 0.05, 2.0**40
"""For `zeroed_pairs`: the smallest standard deviation s of the noise in clips, and the largest s/q for a sample rate q;
with more, the privacy losses of neighbouring intervals of outputs are equal."""
_FEW_ERROR, _MANY_ERROR = 32 * UNIT, 1e-11
"""Rounding errors of probabilities (`_Noise.mixed`) and losses (`_Noise.losses`) are bounded in these units: the first
if protected records shift a sum by one of at most two amounts, else the second."""
_NEGLIGIBLE = 1e-300  # added to each mass's error, for rounding of numbers below the least normal float
_SELDOM = 1e-40  # outputs are cut into narrow intervals up to the largest shift that has at least this tail probability
_NEAR, _FAR, _FARTHEST = 9.0, 38.0, 37.5
"""Intervals of outputs are narrow within `_NEAR` standard deviations of the noise around the likely means, and wide up
to `_FAR` of them beyond all means. Integers are summed up to `_FARTHEST` sigma from a mean."""
_NARROW, _WIDE, _MOST_INTERVALS = 250, 10, 20_000
"""`NormalNoise.cuts` makes `_NARROW` intervals of outputs per standard deviation of the noise where outputs are likely,
but at most `_MOST_INTERVALS` in all, and `_WIDE` elsewhere."""
_TO_CLIP, _FEWEST_TO_CLIP = 1500, 64  # with Laplace noise a clip has 1500 intervals; 3000/k, >= 64, for k records

_Mixture = tuple[tuple[float, float], ...]  # the law of a random shift c >= 0 in clips: pairs (c, log probability)


def binomial_shifts(rate: float, size: int) -> _Mixture:
    """Returns the distribution of the number j of `size` records that are drawn, each independently with probability
    `rate` in (0, 1]: pairs (j, log of its probability) for j = 0, ..., size, or for j = size alone if `rate` is 1."""
    if rate == 1:
        return ((float(size), 0.0),)
    ways = (math.log(math.comb(size, j)) for j in range(size + 1))
    log_in, log_out = math.log(rate), math.log1p(-rate)
    return tuple((float(j), way + j * log_in + (size - j) * log_out) for j, way in enumerate(ways))


def any_drawn(rate: float, size: int) -> float:
    """Returns an upper bound on the probability that at least one of `size` >= 1 records is drawn, each independently
    with probability `rate` in (0, 1]."""
    if size == 1 or rate >= 1:
        return rate
    return min(-math.expm1(size * math.log1p(-rate)) * (1 + 1e-15), 1.0)


class _Noise(ABC):
    # A law of noise on a sum. Outputs are in units of the clip (`IntegerNoise`: integers), and centres are in clips.

    bounded = False  # whether the loss is constant on each side of all centres, as it is for Laplace noise

    @abstractmethod
    def cuts(self, shifts: _Mixture, bottom: float) -> tuple[Array, Array]:
        """Divides all outputs of a release into intervals for `shifted_pairs`, and returns the first and the last
        output of each, in rising order. Outputs are in clips (`IntegerNoise`: integers). Any division is correct;
        bounds are narrow if the loss varies little in each likely interval. Under P the centre of the noise is a random
        shift with the distribution `shifts`, pairs (shift in clips, log of its probability). `bottom` <= 0 is the
        smallest centre under P and Q, in clips. On the line neighbours share an end; on integers an interval begins at
        the integer after the last one of its neighbour. Only the inner end of each of the two outermost (unbounded)
        intervals is used."""

    @abstractmethod
    def masses(self, first: Array, last: Array, centre: float) -> tuple[Array, Array]:
        """Returns the probabilities of the intervals from `first` to `last`, arrays of outputs that `cuts` returns (in
        clips, or integers), for noise with this `centre`, in clips; and bounds on their absolute errors."""

    @abstractmethod
    def log_ratio(self, x: Array, centre: float) -> Array:
        """Returns the log of the density at outputs x, in clips (`IntegerNoise`: integers), of the noise with this
        `centre`, in clips, over the density of the noise with centre 0."""

    def mixed(self, first: Array, last: Array, shifts: _Mixture, sign: int) -> tuple[Array, Array]:
        # For noise whose centre is `sign`, 1 or -1, times a random shift with the law `shifts`: the probabilities of
        # the intervals of outputs from `first` to `last`, and bounds on their absolute errors
        total, error = np.zeros(len(first)), np.full(len(first), _NEGLIGIBLE)
        rounding = _FEW_ERROR if len(shifts) <= 2 else _MANY_ERROR
        for centre, log_weight in shifts:
            if (weight := math.exp(log_weight)) > 0:
                mass, wrong = self.masses(first, last, sign * centre)
                total += weight * mass
                error += weight * (wrong + rounding * (2 - log_weight if len(shifts) <= 2 else 1) * mass)
        return total, error

    def losses(self, x: Array, shifts: _Mixture, replaced: bool) -> tuple[Array, Array]:
        # The losses log dP/dQ at outputs x, and bounds on their absolute errors. Under P the centre of the noise is a
        # random shift with the law `shifts`; under Q it is 0, or minus such a shift if `replaced`.
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
    """Gaussian noise on the line with standard deviation s > 0, in units of the clip; an argument of
    `shifted_pairs`."""

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
    """Laplace noise with scale `s` > 0, in units of the clip, on a lattice with `levels` points per clip, or on the
    line if `levels` is 0; an argument of `shifted_pairs`. The protected records must shift the sum by whole clips."""

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
        # Ends of intervals on a lattice are rounded to floats. `rounded` is this error over an interval's length.
        rounded = 8 * (last[-1] - first[0]) / (last + gap - first) if gap else 0.0
        return found, UNIT * (64 * (1 + near / s) + rounded) * found

    def log_ratio(self, x: Array, centre: float) -> Array:
        return (np.abs(x) - np.abs(x - centre)) / self.s


@dataclass(frozen=True)
class IntegerNoise(_Noise):
    """Gaussian noise on integers with the parameter sigma = `s` `levels`, where the clip is `levels` >= 1 integers; an
    argument of `shifted_pairs`, which counts each integer as an outcome."""

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
        total = _sum_of_densities(sigma)
        square = ((first - centre * self.levels) / sigma) ** 2
        found = np.exp(-square / 2) / total
        error = 8 * UNIT * (8 + square) * found
        # The masses farther than `reach` from a centre, on one side, fall at least as fast as a geometric series.
        beyond = math.exp(-(((reach + 1) / sigma) ** 2) / 2) / -math.expm1(-(2 * reach + 3) / (2 * sigma**2)) / total
        found[[0, -1]] = error[[0, -1]] = beyond / 2
        return found, error

    def log_ratio(self, x: Array, centre: float) -> Array:
        c = centre * self.levels
        return c * (2 * x - c) / (2 * (self.s * self.levels) ** 2)


@lru_cache(maxsize=4)
def _sum_of_densities(sigma: float) -> float:  # of e^(-x^2/(2 sigma^2)) over the integers x
    reach = math.ceil(_FARTHEST * sigma)
    return math.fsum(np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2) / 2))


@lru_cache(maxsize=16)
def shifted_pairs(noise: _Noise, shifts: _Mixture, *, replaced: bool) -> tuple[FinitePair, FinitePair]:
    """Bounds delta of one release in which the protected records shift a noisy sum by a random amount. Returns a
    `FinitePair` for (P, Q) and one for (Q, P), whose methods `upper` and `lower` bound delta. Under P the shift c >= 0,
    in clips, has the distribution `shifts`, pairs (c, log of its probability) with rising c. Under Q the shift is -c if
    `replaced`, as with replace-one, else 0. `noise` is a `NormalNoise` with s from 0.2 to 1e4, a `LaplaceNoise` with s
    over the largest shift of at least 1/300, or an `IntegerNoise` with s of at least 0.05 and s times the integers of a
    clip of at most 256. Callers must ensure this, as bounds are wide or slow beyond."""
    first, last = noise.cuts(shifts, -shifts[-1][0] if replaced else 0.0)
    p, p_error = noise.mixed(first, last, shifts, 1)
    q, q_error = noise.mixed(first, last, shifts if replaced else ((0.0, 0.0),), -1)
    (low, slack), (high, more) = (
        noise.losses(np.concatenate(x), shifts, replaced) for x in ((last[:1], first[1:]), (last[:-1], first[-1:]))
    )
    least, most = low - slack, high + more
    if not noise.bounded:
        # If there is no shift under Q, the loss is at least the log of the probability of a shift of 0 under P; it has
        # no lower bound if that shift does not occur. With replace-one the loss never has a lower bound.
        still, log_still = shifts[0]
        least[0] = -math.inf if replaced or still > 0 else log_still - _MANY_ERROR * (1 - log_still)
        most[-1] = math.inf
    forward = partitioned(p, q, least, most, p_error, q_error)
    if replaced or len(shifts) == 1:
        # Reflection of the outputs exchanges P and Q, so that (P, Q) and (Q, P) have the same pair.
        return forward, forward
    return forward, partitioned(q, p, -most, -least, q_error, p_error)


@lru_cache(maxsize=32)
def zeroed_pairs(noise: float, rate: float) -> tuple[FinitePair, FinitePair]:
    """Bounds delta of one release with Gaussian noise and batches of fixed size under zero-out. The protected record
    contributes under P, and 0 takes its place under Q. `noise` is the noise's standard deviation s in clips, and `rate`
    is q in (0, 1), the number of records in a batch over the number of all records; callers must ensure that s >= 0.05
    and s/q <= 2^40. Returns a `FinitePair` for (P, Q) and one for (Q, P); `upper` and `lower` bound delta."""
    # N(c) is the law of the noise with centre c. With probability q the record is in the batch, in the place of another
    # one with the contribution y. Outputs are measured from y. At the worst data the record's contribution, of size 1,
    # the clip, is opposite to y: the outputs have the centre 0 without the record, 2 with it, and 1 with 0 in its
    # place, so P = (1-q) N(0) + q N(2) and Q = (1-q) N(0) + q N(1). At every ratio a >= 1 this pair's divergence max
    # over A of P(A) - a Q(A) is the largest over all data; the largest one in the other direction is that of Q against
    # N(0) (derivation.md, section 5). A pair with both dominates. Data attain (P, Q), the lower bound.
    s, normal = noise, NormalNoise(noise)
    still, one = ((0.0, 0.0),), binomial_shifts(rate, 1)
    two = tuple((2 * c, log_weight) for c, log_weight in one)
    # Losses are steep where the noise is small, so intervals are narrower then. P is likelier than Q at outputs above
    # 3/2 clips, and Q is likelier than N(0) above 1/2: there the losses are 0.
    step = s * min(0.03, 0.05 * s)
    count = math.ceil((1.5 + 15 * s) / step)

    def masses(edges: Array, *laws: _Mixture) -> list[Array]:
        found = [normal.mixed(edges[:-1], edges[1:], law, 1) for law in laws]
        return [one[k] for k in (0, 1) for one in found]

    def positive(zero: float, first: _Mixture, second: _Mixture) -> tuple[FinitePair, FinitePair]:
        # What the outputs above `zero` add to the pairs that bound (A, B) and (B, A), where A and B are the laws of
        # outputs whose centre has the law `first` or `second`: pairs whose masses sum to the probability of these
        # outputs. The loss of A against B is 0 at the output `zero`, and positive above.
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
    # A pair that dominates (P, Q) is made of two parts, in which outputs have positive and negative losses; the rest of
    # P's mass has the loss 0. The pair that (P, Q) dominates has outcomes of probability `p` under P and `q` under Q.
    middle = max(1 - float(np.sum(positive.mass) + np.sum(negative.mass)) - positive.infinite, 0.0)
    loss = np.concatenate([negative.loss, [0.0], positive.loss])
    mass = np.concatenate([negative.mass, [middle], positive.mass])
    seen = (p > 0) & (q > 0)
    return FinitePair(loss, mass, positive.infinite, p[seen], q[seen])
