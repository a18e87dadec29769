"""Random allocation, where a record is in `taken` random steps of each epoch: finite pairs of laws that bound an epoch.

x_i is the output of step i of an epoch of t steps, s the noise multiplier. With the record in one step the density
ratio of the outputs to R = N(0, s^2 I) is the average S of the Y_i = exp((2 x_i - 1)/(2 s^2)). With the other record of
replace-one it is the average S' of the Y'_i = exp((-2 x_i - 1)/(2 s^2)); without any record S' = 1.

From above, for one step: the divergence at a ratio a is E_R (S - a S')_+, so a mean of the positive part of a sum of
independent variables V_i less a constant, with V = Y, -Y' or Y - a Y'. From below, for any number of steps: for each of
a few numbers c, the sum over an epoch of the log(1 - c + c Y_i), rounded to a grid, is a function of the outputs whose
laws are known. Sums are composed by `fourier.sums`. Statements and proofs: derivation.md, section 7.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr, ndtr, ndtri_exp

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.finite import Ends, FinitePair, dominated, dominating
from dpzero_theory.privacy.laws.fourier import Product, sums
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import CDF_ERROR, UNIT, Law, log_law, normal_mass

LEAST_EPOCH_NOISE = 0.1
"""The least noise multiplier s; with less the density ratios, which are e^{1/(2 s^2)} and more, need too long a grid,
and OverflowError is raised."""
_LONGEST, _LONGEST_CAREFUL, _FINER = 2**20, 2**17, 400
"""The most cells of a grid, and of one that replaces a grid whose errors were too large; a longer one takes seconds, so
OverflowError is raised. And, for sums with another record under Q, the number of cells between 0 and the largest value
that matters, at cells of relative width 1."""
_MISPLACED = 2e-13
"""A bound on the probability that is put into the wrong cell by a rounding error of a cell's end, as a share of the
normal tail probability from that cell outward."""
_CLIPPED = 4.0
_DENSE = 12.0
"""Every cell of the grid has a weight up to this many standard deviations from the mean of V; beyond, fewer do."""
_FOLDED, _FOLDED_ONCE = -30.0, -18.0
"""The log of about the share of a tilted sum that lies beyond the grid, if that serves many thresholds and if it serves
one."""
_SPARED = 9.0
_ACCURATE, _ACCURATE_ONCE = 1e-4, 3e-3
"""One tilt serves the thresholds at which its errors are at most the first share of the divergence, and at least one at
which they are at most the second."""
_COARSE, _LESS_FINE, _FINE = (0.3, 0.4), (0.06, 0.15), (0.03, 0.1)
"""The width of a grid's cells in standard deviations: of rough laws; of sharp ones at noise multipliers below 1, which
take longer; and of sharp ones at 1 and above. Each pair has the width for neighbours with and without the record first,
then that for two values of a record (replace-one)."""
_FEW_POINTS, _MANY_POINTS = 2**12, 2**15
"""From below: the number of grid points for the sum of an epoch's losses, for rough laws and for sharp ones."""
_EVENTS = expit(np.linspace(-80.0, 30.0, 2000))
"""The probabilities under P of the events {sum above a level} that are used."""
_FARTHEST_OF_GRID = 11.0
"""That grid reaches this far from the mean of the sum, and a step's outputs this far from theirs, in standard
deviations."""
_LOG_FOLDED = -40.0
"""The log of the share of such a sum's law that is beyond the grid."""
_REMOVED, _REPLACED = [-0.25 * j for j in range(8)], [0.45 * j for j in range(-1, 7)]
"""For lower bounds some constants c are tried. These numbers are log(c/(1-c)) minus the same of (k-1)/t for a record in
k of t steps, in units of 1/s with noise s, or of 1/t for k = 1, in units of 2/s and at least 2: first for relations in
which the record is there or not, then for replace-one."""
_LARGEST_LOGIT = 600.0
"""The largest absolute value of such a difference that is used, so that c/(1-c) is a float."""
_LEAST_CHANCE = 1e-18
"""If the probability that the record is in j of the released steps is below this, that j is left out: under P its
probability is dropped, and under Q it is added to the bounds."""


@dataclass(frozen=True)
class Epoch(Law):
    """The first `released` of the `epoch` steps of an epoch of random allocation, in `taken` of which the record is.

    Args:
        noise: the noise multiplier s.
        epoch, released: see above.
        replaced: whether the record has another value under Q; else it is not there.
        way: 0 for (P, Q), 1 for (Q, P).
        taken: 1, or any number below `epoch` with `end` "lower".
        end: "upper" for a law that dominates, "lower" for one that is dominated.
        epochs: the number of epochs in the history, by which the outputs that matter are chosen.
    """

    noise: float
    epoch: int
    released: int
    replaced: bool
    way: int
    taken: int = 1
    end: Ends = "lower"
    epochs: int = 1
    infinite = 0.0

    def refined(self, points: int, z: float) -> Law:
        kind_of = self.noise, self.epoch, self.released
        if self.released == 1:
            # The record is in the first step with probability k/t.
            kind = "replace" if self.replaced else ("remove", "add")[self.way]
            return Gaussian(kind, self.taken / self.epoch, self.noise)
        if self.end == "lower":
            count = _FEW_POINTS if points <= _FEW_POINTS else _MANY_POINTS
            return dominated_pairs(*kind_of, self.taken, replaced=self.replaced, points=count)[self.way]
        reach = math.ceil(-2 * float(ndtri_exp(log_ndtr(-z) - math.log(self.released)))) / 2
        near = min(reach, 4 + reach / math.sqrt(self.epochs))
        ratio = (_COARSE if points <= 2**12 else _FINE if self.noise >= 1 else _LESS_FINE)[self.replaced]
        return dominating_pairs(*kind_of, replaced=self.replaced, reach=reach, near=near, ratio=ratio)[self.way]


@dataclass(frozen=True)
class Side:
    """Which two laws of an epoch's outputs are compared, a first one with a second one; R is the law without any
    record.

    Attributes:
        up: 1 if the first law is the one with the record, which is in one random step; 0 if it is R.
        down: 1 if the second law is the one with the other record of replace-one, in one random step; 0 if it is R.
    """

    up: int
    down: int


class _Grid:
    """The grid for sums of V over some steps: V = Y, -Y' or Y - a Y', for each side. It serves thresholds from
    `threshold` up to `most`. A cell has the width `ratio` in standard deviations of V."""

    def __init__(self, side: Side, s: float, a: float, steps: int, threshold: float, ratio: float) -> None:
        self.side, self.s, self.a, self.steps = side, s, a, steps
        both, reach = side.up and side.down, 10 * s + 2
        x = np.linspace(-reach, reach, 401)
        weight = np.exp(-((x / s) ** 2) / 2)
        weight /= weight.sum()
        value = side.up * np.exp((2 * x - 1) / (2 * s * s))
        value = value - (a if both else side.down) * np.exp((-2 * x - 1) / (2 * s * s))
        mean, least, largest, root = float(side.up - (a if both else side.down)), -math.inf, math.inf, math.sqrt(steps)
        for _ in range(12):
            # Values farther away than matters are clipped, so that they are not to widen the cells.
            clipped = np.clip(value, least, largest)
            mean = float(weight @ clipped) if both else mean
            deviation = math.sqrt(float(weight @ (clipped - mean) ** 2))
            beyond = max(threshold - steps * mean, 0.0)
            span = deviation * root
            farthest = beyond + span if both else 2 * beyond + 2 * span
            least, largest = mean - 2 * _CLIPPED * span, mean + farthest + _CLIPPED * span
            if not side.up:
                least = max(least, 1.2 * threshold)
        # Without a record up the scale of what matters is that of the threshold, which rises to 0.
        self.most = steps * mean + farthest if side.up else min(steps * mean + farthest, 0.85 * threshold)
        clipped = np.clip(value, least, largest)
        self.thetas = np.geomspace(min(0.05 / span, 0.5 / (farthest + span)), 1e8 / span, 128)
        exponent = self.thetas[:, None] * clipped + log_law(weight)
        top = exponent.max(axis=1)
        tilted = np.exp(exponent - top[:, None])
        total = tilted.sum(axis=1)
        self.moments = steps * (top + np.log(total))
        self.error = self.moments - self.thetas * threshold - np.log(self.thetas)
        best = int(np.argmin(self.error))
        middle = float(tilted[best] @ clipped / total[best])
        near = math.sqrt(float(tilted[best] @ (clipped - middle) ** 2 / total[best]))
        ratio = max(ratio, 32 * root / _LONGEST)
        self.width = ratio * min(max(deviation, beyond * min(s / 8, 0.3) / root), near)
        if both:
            # The size of Y where it is a Y': with little noise most values are far smaller than their deviation.
            size = max(math.sqrt(a) * math.exp(-1 / (2 * s * s)), 1.0)
            self.width = min(self.width, max(ratio * size * root, ratio * largest / _FINER))
        if not self.width > 0:
            raise OverflowError("values that all but are one")
        low = math.floor((least if side.down else max(least, 0.0)) / self.width)
        high = math.ceil((largest if side.up else min(largest, 0.0)) / self.width)
        if high - low > _LONGEST:
            raise OverflowError("the noise is too little for the grid")
        offsets = [math.ceil(_DENSE / ratio)]
        while offsets[-1] < high - low:
            offsets.append(math.ceil(offsets[-1] * (1 + ratio)))
        far = np.array(offsets[1:], dtype=np.int64)
        mesh = np.concatenate([-far[::-1], np.arange(-offsets[0], offsets[0] + 1), far])
        centres = {round(middle / self.width), 0} if both else {round(middle / self.width)}
        points = np.unique(np.concatenate([mesh + centre for centre in centres]))
        self.points = np.concatenate([[low], points[(points > low) & (points < high)], [high]])
        self.z = self.points * self.width

    def edges(self, z: Array) -> Array:
        """The output x at which V is z; it rises in z. If no output has so small or so large a V, it is -inf or inf.

        The rounding error is accounted for by `_MISPLACED`.
        """
        s = self.s
        with np.errstate(divide="ignore", invalid="ignore"):
            if self.side.up and self.side.down:
                product = self.a * math.exp(-1 / s**2)
                root = np.sqrt(z * z + 4 * product)
                return np.asarray(s * s * np.log(np.where(z > 0, (z + root) / 2, 2 * product / (root - z))) + 0.5)
            if self.side.up:
                return np.asarray(s * s * np.log(np.maximum(z, 0.0)) + 0.5)
            return np.asarray(-s * s * np.log(np.maximum(-z, 0.0)) - 0.5)

    def tilt(self, careful: bool) -> tuple[float, float]:
        """A tilt theta > 0, and the log of about the share of the tilted sum that a grid may leave out.

        Any two numbers are correct. The rounding errors are about the least ones if `careful`, else at most about e^9
        times those, with about the shortest grid.
        """
        best = int(np.argmin(self.error))
        if careful:
            return float(self.thetas[best]), _FOLDED
        folded = _FOLDED_ONCE - (self.error - self.error[best])[:-1]
        more = np.where(self.thetas > self.thetas[:-1, None], self.thetas - self.thetas[:-1, None], math.nan)
        longest = np.nanmin((self.moments - self.moments[:-1, None] - folded[:, None]) / more, axis=1)
        best = int(np.argmin(np.where(folded >= _FOLDED_ONCE - _SPARED, longest, math.inf)))
        return float(self.thetas[best]), float(folded[best])

    def spread(self) -> tuple[Array, float]:
        """A law on the points of the grid that is larger in convex order than V's, and what its mean lacks at most.

        The mass between two points is split between them so that the mean of V is kept, or raised a little to cover
        rounding errors. Mass below the first point is counted there; of mass above the last one the mean is lost.
        """
        s, (up, down) = self.s, (self.side.up, self.a if self.side.up else self.side.down)
        down *= self.side.down
        z, edges = self.z, self.edges(self.z)
        ends = np.append(edges, math.inf)
        (r, r_error), (p, p_error), (q, q_error) = (
            normal_mass((ends[:-1] - mean) / s, (ends[1:] - mean) / s) for mean in (0, 1, -1)
        )
        p_most, q_least = up * (p + p_error), down * np.maximum(q - q_error, 0.0)
        excess = p_most - q_least - z * np.where(z > 0, np.maximum(r - r_error, 0.0), r + r_error)
        lost = max(float(excess[-1]), 0.0)
        higher = np.maximum(excess[:-1], 0.0) / np.diff(z)
        higher = np.where(ends[1:-1] > ends[:-2], higher, 0.0)
        law = np.maximum(r + r_error, 0.0)
        law[:-1] = np.maximum(law[:-1] - higher, 0.0)
        law[1:] += higher
        # Mass that may belong to the next higher cell, because of rounding, is counted two points higher.
        misplaced = r_error * (_MISPLACED / CDF_ERROR)
        law[2:] += misplaced[:-2]
        law[-1] += misplaced[-2] + misplaced[-1]
        law[0] += float(ndtr(edges[0] / s)) * (1 + 1e-12)
        return law, lost


def divergences(side: Side, noise: float, epoch: int, released: int, loss: Array, ratio: float) -> Array:
    """Upper bounds on the divergences of the first `released` steps of an epoch, at the losses `loss` >= 0.

    Args:
        side: which law is compared with which.
        noise: the noise multiplier s.
        epoch: t, the number of steps of a whole epoch.
        released: how many steps of the epoch are released, at most t.
        loss: rising numbers l, the first of which is 0; divergences are bounded at the ratios e^l.
        ratio: the width of the cells; the width of the bounds falls as its square.
    """
    if 2 * loss[-1] > 600:
        raise OverflowError("the noise is too little for the grid")
    both, a = side.up and side.down, np.exp(loss)
    if both:
        threshold = (epoch - released) * np.expm1(loss)
    elif side.up:
        threshold = released + epoch * np.expm1(loss)
    else:
        threshold = -(released + epoch * np.expm1(-loss))
    # Without a record up V is negative, so that no sum exceeds a threshold above 0.
    possible = len(loss) if side.up else int(np.sum(threshold < 0))
    found, k = np.zeros(len(loss)), 0
    while k < possible:
        alike = slice(k, k + 1 if both else possible)
        value, wrong = np.full(1, math.inf), np.zeros(1)
        try:
            grid = _Grid(side, noise, float(a[k]), released, float(threshold[k]), ratio)
            law, lost = grid.spread()
            for careful in (False, True):
                (theta, log_folded), longest = grid.tilt(careful), _LONGEST_CAREFUL if careful else _LONGEST
                (total,) = sums(grid.points, grid.width, [(theta, [(law, released)])], log_folded, longest)
                value, wrong = total.excess(threshold[alike])
                if wrong[0] <= _ACCURATE_ONCE * value[0]:
                    break
        except OverflowError:
            if not math.isfinite(value[0]):
                if k == 0:
                    raise
                # Divergences fall with the ratio.
                found[k:possible] = found[k - 1]
                break
        value = value + released * lost * (1 + 1e-12)
        good = (wrong <= _ACCURATE * value) & (threshold[alike] <= grid.most)
        good[0] = True
        count = len(good) if good.all() else int(np.argmin(good))
        found[k : k + count] = value[:count]
        k += count
    return found * (1 / epoch if side.up else a / epoch) * (1 + 16 * UNIT)


_MOST_LOSSES = 500
"""Divergences are computed at this many losses at most."""


def _losses(side: Side, s: float, epoch: int, released: int, reach: float, near: float, ratio: float) -> Array:
    """The losses at which divergences of an epoch are computed, from 0 to beyond the largest one that matters.

    They are equally spaced, by `ratio` standard deviations of an epoch's loss, up to `near` of them, and then farther
    and farther apart. Outputs farther than `reach` standard deviations from their means do not matter.
    """
    both = side.up and side.down
    variance = math.expm1(1 / s**2) * released / epoch**2
    deviation = math.sqrt(math.log1p(variance * (4 if both else 1)))
    spread = math.sqrt(math.log1p(variance))
    largest = (2 * (1 + s * reach) - 1) / (2 * s * s)
    top = math.log1p(math.exp(largest - math.log(epoch)) + reach * math.sqrt(variance)) if side.up else 0.0
    top += reach * spread + spread**2 / 2 if side.down else 0.0
    losses = [0.0]
    while losses[-1] < top and len(losses) < _MOST_LOSSES:
        step = min(deviation + max(losses[-1] - near * deviation, 0.0), max(deviation, 1 / s))
        losses.append(losses[-1] + ratio * step)
    return np.array(losses)


@lru_cache(maxsize=16)
def dominating_pairs(
    noise: float, epoch: int, released: int, *, replaced: bool, reach: float, near: float, ratio: float
) -> tuple[FinitePair, FinitePair]:
    """Finite pairs of laws that dominate the first `released` steps of one epoch: the first of the two is for (P, Q),
    with the record under P, and the second for (Q, P). They bound from above only.

    Args:
        noise: the noise multiplier s.
        epoch: t, the number of steps of a whole epoch, in one of which the record takes part.
        released: how many steps of the epoch are released.
        replaced: whether the record's contribution has the opposite sign under Q; else Q is without the record.
        reach: losses that only outputs farther than this many standard deviations from their means have are not told
            apart.
        near: up to this many standard deviations of an epoch's loss the losses are equally spaced.
        ratio: the width of the cells, in standard deviations; what the bounds lose falls as its square.

    Raises:
        OverflowError: the noise multiplier is below 0.1, or the grid would be too long.
    """
    if noise < LEAST_EPOCH_NOISE:
        raise OverflowError("the noise is too little for the grid")
    heights = []
    for side in (Side(1, 1),) if replaced else (Side(1, 0), Side(0, 1)):
        loss = _losses(side, noise, epoch, released, reach, near, ratio)
        heights.append((loss, divergences(side, noise, epoch, released, loss, ratio)))
    forward = dominating(heights[0], heights[-1])
    return forward, forward if replaced else dominating(heights[-1], heights[0])


def counts(epoch: int, taken: int, released: int) -> tuple[list[tuple[int, float]], float]:
    """The law of the number j of the record's steps among the first `released` steps of an epoch, as (j, probability),
    and a bound on the total probability of the j that `_LEAST_CHANCE` leaves out of it.

    The record has `taken` of the epoch's steps.
    """
    low, high = max(0, taken - (epoch - released)), min(taken, released)

    # Ratios of neighbouring probabilities, not log-gamma functions: those of 10^8 steps err by 1e-7 of a probability.
    j = np.arange(low, high, dtype=np.float64)
    ratios = (released - j) / (j + 1) * ((taken - j) / (epoch - released - taken + j + 1))
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    kept = [(low + i, float(chance)) for i, chance in enumerate(chances) if chance > _LEAST_CHANCE]
    return kept, (len(chances) - len(kept)) * _LEAST_CHANCE


def _masses(pair: Gaussian, cells: NDArray[np.int64], width: float) -> dict[tuple[int, int], Array]:
    """Bounds on the masses of the loss of one step, rounded to the multiples cells[0] width, ... of `width`: by the
    output's mean m, with noise s, and a sign, lower ones at (m, -1) and upper ones at (m, 1)."""
    (branch,), s = pair.branches, pair.noise
    found: dict[tuple[int, int], Array] = {}
    ends = np.asarray((cells[:-1] + 0.5) * width, dtype=np.float64)
    edges = np.concatenate([[-np.inf], pair.inverse(branch, ends), [np.inf]]) / s
    for m in (-1, 0, 1):
        mass, error = normal_mass(edges[:-1] - m / s, edges[1:] - m / s)
        found |= {(m, sign): np.maximum(mass + sign * error, 0.0) for sign in (-1, 1)}
    return found


def _grid(pair: Gaussian, released: int, taken: int, replaced: bool, points: int) -> tuple[NDArray[np.int64], float]:
    """The cells of the loss of one step, and their width, with which the sum of an epoch's losses has about `points`
    cells. The loss is log(1 - c + c Y), with Y the step's density ratio and c the rate of the pair, or that of the kind
    `replace`."""
    s, (branch,) = pair.noise, pair.branches
    x = np.linspace(-_FARTHEST_OF_GRID * s - 1, _FARTHEST_OF_GRID * s + 1, 4001)
    level = pair.losses(branch, x)[0]
    weights = {m: np.exp(-(((x - m) / s) ** 2) / 2) for m in (-1, 0, 1)}
    mean = {m: float(w @ level / w.sum()) for m, w in weights.items()}
    variance = max(float(w @ (level - mean[m]) ** 2 / w.sum()) for m, w in weights.items() if m >= -replaced)
    room = _FARTHEST_OF_GRID * math.sqrt(variance * released) + float(level[-1] - mean[0])
    width = (2 * room + taken * (mean[1] - (mean[-1] if replaced else mean[0]))) / points
    return np.arange(round(float(level[0]) / width), round(float(level[-1]) / width) + 1), width


@lru_cache(maxsize=8)
def dominated_pairs(
    noise: float, epoch: int, released: int, taken: int, *, replaced: bool, points: int
) -> tuple[FinitePair, FinitePair]:
    """Finite pairs of laws whose delta is at most that of the first `released` steps of one epoch: the first of the two
    is for (P, Q), with the record under P, and the second for (Q, P). They bound from below only.

    Args:
        noise: the noise multiplier s.
        epoch, taken: t and k, 1 <= k < t: the record is in k of the t steps.
        released: how many steps of the epoch are released.
        replaced: whether the record's contributions have the opposite sign under Q; else Q is without the record.
        points: the number of grid points for the sum of an epoch's losses, a power of two.
    """
    present, missing = counts(epoch, taken, released)
    absent = present if replaced else [(0, 1.0)]
    kind, other, shifts = ("replace", -1, _REPLACED) if replaced else ("remove", 1, _REMOVED)
    found: dict[int, list[Array]] = {1: [], -1: []}
    # Of one step the sum of the Y_i is the best statistic, which is where c falls to 0.
    unit = 2 / min(noise, 1.0) if taken == 1 else 1 / noise
    for shift in shifts:
        odds = math.exp(min(max(shift * unit, -_LARGEST_LOGIT), _LARGEST_LOGIT))
        odds *= max(taken - 1, 1) / (epoch - taken + 1)
        pair = Gaussian(kind, odds / (1 + odds), noise)
        cells, width = _grid(pair, released, taken, replaced, points)
        masses = _masses(pair, cells, width)
        # The events are {sum above x} and, for (Q, P), {sum below x}, where the sum is that of an epoch's losses. P's
        # laws are tilted by e^{loss/2}, so that rare events are resolved, and Q's by e^{loss} more: they are about P's.
        for way in (1,) if replaced else (1, -1):
            there, without = ((1, present), (other, absent))[::way]
            jobs: list[tuple[float, Product]] = []
            for tilt, sign, (mean, chances) in ((0.5, -1, there), (1.5, 1, without)):
                used, still = masses[mean, sign][::way], masses[0, sign][::way]
                jobs += [(tilt, [(used, j), (still, released - j)]) for j, _ in chances]
            laws = sums((way * cells)[::way], width, jobs, _LOG_FOLDED, _LONGEST)
            kept = zip(there[1], laws, strict=False)
            p = np.sum([chance * law.tails(-1) for (_, chance), law in kept], axis=0)
            lost = zip(without[1], laws[len(there[1]) :], strict=True)
            q = np.sum([chance * law.tails(1) for (_, chance), law in lost], axis=0)
            at = np.unique(np.minimum(np.searchsorted(-p, -_EVENTS), len(p) - 1))
            found[way].append(np.array([p[at], np.minimum(q[at] + missing, 1.0)]))
    forward = dominated(*np.hstack(found[1]))
    return forward, forward if replaced else dominated(*np.hstack(found[-1]))
