"""Bounds the cost of an epoch of random allocation, where a record is in some random steps, by finite pairs of laws.

x_i is the output of step i of an epoch of t steps, and s the noise multiplier. With the record in one step the density
ratio of the outputs to R = N(0, s^2 I) is the average S of the Y_i = exp((2 x_i - 1)/(2 s^2)). With the record's other
value under replace-one it is the average S' of the Y'_i = exp((-2 x_i - 1)/(2 s^2)); without the record S' = 1.

Upper bounds, for a record in one step, use distributions larger in convex order than those of S or, with another value,
of S - a S' for each of some ratios a (`dominating_pairs`). Lower bounds, for any number of steps, use probabilities of
events about sums over an epoch of log(1 - c + c Y_i) for a few c (`dominated_pairs`). See derivation.md, section 7.
"""

import itertools
import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_ndtr, ndtr, ndtri, ndtri_exp

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.finite import Ends, FinitePair, dominated, dominating
from dpzero_theory.privacy.laws.fourier import sums
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import CDF_ERROR, UNIT, Law, log_law, normal_mass

LEAST_EPOCH_NOISE = 0.1
"""The smallest noise multiplier s for which this module bounds the cost of an epoch. With less, the density ratios of
outputs, which are e^{1/(2 s^2)} and more, would need too long a grid."""
_LONGEST, _LONGEST_CAREFUL, _FINER = 2**19, 2**17, 400
"""The most cells of a grid, beyond which OverflowError is raised, as it would take seconds: `_LONGEST`, or
`_LONGEST_CAREFUL` in a second attempt after too large errors. `_Grid` makes its cells narrower
if most values are small, the less so the smaller `_FINER` is."""
_MISPLACED = 2e-13
"""A bound on the probability that is put into a wrong cell because an end of a cell is rounded, relative to the normal
tail probability from that cell outward."""
_TILTS, _NEAR_TILTS = np.geomspace(1.0, 1e9, 32), np.geomspace(1 / 16, 16, 40)
"""Tilts theta to try: the weights of the values v of a sum become e^{theta v} times as large. They are `_TILTS` times a
small number, and then `_NEAR_TILTS` times the best of these."""
_FOLDED, _FOLDED_ONCE = -30.0, -18.0
"""About the log of the share of a sum's tilted probabilities that may lie beyond the grid: `_FOLDED` if errors must be
small, else `_FOLDED_ONCE`."""
_REACH, _FARTHER = 10, 4
"""For upper bounds: outputs are told apart up to `_REACH` standard deviations of the noise beyond their means, or, if
that leaves out too much, up to the next of `_REACH` + `_FARTHER`, `_REACH` + 2 `_FARTHER`, ..."""
_RATIO = 0.012  # the width of the cells of a sum of density ratios in its standard deviations (add-remove, zero-out)
_COARSE, _LESS_FINE, _FINE = 0.4, 0.15, 0.1
"""Under replace-one, the width of cells for a step's density ratios (`_Grid`) or an epoch's loss (`_losses`) in its
standard deviations: `_COARSE` if rough, else from `_LESS_FINE` (noise multipliers up to 0.9) to `_FINE` (from 1 on)."""
_NODES, _SHARES = np.polynomial.legendre.leggauss(20)
"""Nodes and weights on [-1, 1] of the Gauss-Legendre rule for the probability of a cell. Its relative error is below
1e-20 for cells of at most 0.15 standard deviations of the noise (derivation.md, section 7)."""
_LEAST_WEIGHT = 1e-200  # weights and density ratios of a sum below this count as infinite losses
_DROPPED, _LOST = 1e-270, 1e-150
"""In the law of the sum of an epoch's density ratios, probabilities of at most `_DROPPED` are dropped. All dropped ones
together are at most `_LOST` under P and under Q."""
_FEW_POINTS, _POINTS, _MANY_POINTS = 2**12, 3000, 2**16
"""For lower bounds: a grid for the total loss of an epoch has `_POINTS` times the square root of the number of released
steps as its points, rounded up to a power of 2, but at least `_FEW_POINTS` and at most `_MANY_POINTS`."""
_EVENTS = expit(np.linspace(-80.0, 30.0, 2000))
"""Lower bounds use the events {an epoch's loss above a level} of about these probabilities under P, or Q for (Q, P)."""
_FARTHEST_OF_GRID = 11.0
"""For lower bounds: losses of a step are told apart for outputs up to this many standard deviations of the noise beyond
-1 and 1, in clips, and a grid is for total losses up to about this many of their standard deviations from the mean."""
_TILTS_BELOW = 0.5, 4.0
"""For lower bounds the probabilities under P of an epoch's total loss S are multiplied by e^{tilt S} with each of these
tilts. The larger one makes those of rare events more accurate, and others less."""
_REMOVED, _REPLACED = [-0.25 * j for j in range(8)], [0.45 * j for j in range(-1, 7)]
"""The values of `_family`'s argument `shift`, which sets the events of lower bounds, that `_best_shifts` tries:
`_REMOVED` for relations in which a record is present or absent, `_REPLACED` for replace-one."""
_LEVELS = np.concatenate([[0.0], np.geomspace(1e-3, 100.0, 60)])
_SAME, _LEAST_GAP, _NOISES = 1e-3, 1e-20, 8
"""`_best_shifts` chooses values of `_family`'s argument `shift`, which sets the events that bound delta from below: at
each epsilon of `_LEVELS` one gives the largest bound on a rough grid, up to a relative `_SAME`, or it is at most
`_LEAST_GAP`. Noise multipliers that round to the same power of 2^(1/`_NOISES`) share a choice."""
_LEAST_CHANCE = 1e-18
"""If the probability that the record is in j of the released steps is below this number, that j is left out: under P
its probability is dropped, and under Q it is added to the bounds."""


@dataclass(frozen=True)
class Epoch(Law):
    """The law of the privacy loss of the first `released` steps of an epoch of random allocation, in which the
    protected record is in `taken` random steps of the whole epoch.

    Args:
        noise: the noise multiplier: the standard deviation of Gaussian noise on a batch's sum, divided by the clip.
        epoch: the number of steps of the whole epoch.
        released: the number of its steps that are released, from 1 to `epoch`.
        replaced: True if the record has another value in the data set of Q, at worst the opposite; False for none.
        way: 0 for (P, Q), with the record under P; 1 for (Q, P).
        taken: 1, or with `end` "lower" any number from 1 to `epoch` - 1.
        end: "upper" if the law's delta is at least that of the steps, "lower" if it is at most that.
        epochs: the number of epochs in the history, to choose grids; a wrong one makes bounds wide, not false.
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

    def like(self) -> tuple[Law, int]:
        # If the record is in each step with probability k/t, as in Poisson batches, an epoch costs about as much.
        kind = "replace" if self.replaced else ("remove", "add")[self.way]
        return Gaussian(kind, self.taken / self.epoch, self.noise), self.released

    def refined(self, points: int, z: float) -> Law:
        kind_of = self.noise, self.epoch, self.released
        if self.released == 1:
            return self.like()[0]  # one released step is exactly such a Gaussian release
        if self.end == "lower":
            count = 2 ** math.ceil(math.log2(_POINTS * math.sqrt(self.released)))
            count = min(max(count, _FEW_POINTS), _MANY_POINTS)
            return dominated_pairs(*kind_of, self.taken, replaced=self.replaced, points=count)[self.way]
        ratio = _RATIO
        if self.replaced:
            # Between the noise multipliers 0.9 and 1 the width changes gradually, so that bounds do not jump.
            fine = min(max(_FINE + (1 - self.noise) / 2, _FINE), _LESS_FINE)
            ratio = _COARSE if points <= 2**12 else fine
            if self.released < self.epoch:  # a part of the last one of many epochs, so that wide cells hardly matter
                ratio = min(ratio * max(math.sqrt(self.epochs / 32), 1.0), _COARSE)
        # Outputs beyond z in any of the steps do not matter. A distance rounded up lets one cached law serve many z.
        each = self.released if self.replaced else 1
        reach = -float(ndtri_exp(log_ndtr(-z) - math.log(each)))
        reach = _REACH + _FARTHER * max(math.ceil((reach - _REACH) / _FARTHER), 0)
        near = min(reach, math.ceil(4 + reach / math.sqrt(self.epochs)))
        return dominating_pairs(*kind_of, replaced=self.replaced, reach=reach, near=near, ratio=ratio)[self.way]


_Levels = dict[int, tuple[int, Array]]
"""The distribution of a value u >= 0. At key k: an integer i, and the weights of the values i 2^k, (i + 1) 2^k, ..."""


def _add(levels: _Levels, k: int, first: int, weights: NDArray[Any]) -> None:
    # Add to a law, at its level `k`, the weights of the values first 2^k, (first + 1) 2^k, ...
    if k in levels:
        at, old = levels[k]
        start = min(at, first)
        total = np.zeros(max(at + len(old), first + len(weights)) - start)
        total[at - start :][: len(old)] = old
        total[first - start :][: len(weights)] += weights
        first, weights = start, total
    levels[k] = first, weights


def _coarser(first: int, weights: Array) -> tuple[int, Array]:
    # The law with `weights` at first, first + 1, ... on the lattice of the even integers, in units of 2: the weight of
    # an odd integer is split between its neighbours, which keeps the mean.
    weights = np.concatenate([np.zeros(first % 2), weights])
    even, half = weights[::2], weights[1::2] / 2
    found = np.zeros(len(weights) // 2 + 1)
    found[: len(even)] = even
    found[: len(half)] += half
    found[1 : len(half) + 1] += half
    return first // 2, found


def _convolved(one: _Levels, other: _Levels) -> tuple[_Levels, int]:
    """Returns the distribution of the sum of independent values with the distributions `one` and `other`, and about the
    largest number of roundings of one of its weights. Each distribution is a dict: at the key k it has the first
    integer i, and the weights of the values i 2^k, (i + 1) 2^k, ... Where two values are on lattices of different
    spacings, the weight of the finer one is first split between coarser neighbours, which keeps the mean."""
    found: _Levels = {}
    finer: list[_Levels] = [{}, {}]  # at level k, what comes from the finer levels of each law
    least, largest, most = min(*one, *other), max(*one, *other), 0
    for k in range(least, largest + 1):
        for a, b in ((one.get(k), other.get(k)), (one.get(k), finer[1].get(k)), (finer[0].get(k), other.get(k))):
            if a and b:
                _add(found, k, a[0] + b[0], np.convolve(a[1], b[1]))
                most = max(most, min(len(a[1]), len(b[1])))
        for law, rest in zip((one, other), finer, strict=True):
            if k in law:
                _add(rest, k, *law[k])
            if k in rest:
                _add(rest, k + 1, *_coarser(*rest.pop(k)))
    return found, most + 4 * (largest - least + 1)


@dataclass(frozen=True)
class _Mesh:
    # Cells are `ratio` standard deviations of the sum wide up to `near` of them from its mean, then wider and wider.
    # The sum is over `steps` steps of Y = e^((2x - 1)/(2 s^2)), with x the output of a step and s the noise multiplier.
    # A sum far below its mean is near 0, where its logarithm, the loss, varies much over a short range; so there cells
    # are a share of the value.
    s: float
    steps: int
    near: float
    ratio: float

    def widths(self, u: Array) -> Array:
        s, steps = self.s, self.steps
        # The standard deviation leaves out outputs so large that any step has one with a probability of at most 0.02.
        z = max(-float(ndtri(0.02 / steps)), 3.0)
        variance = math.exp(1 / s**2) * ndtr(z - 2 / s) - 2 * ndtr(z - 1 / s) + ndtr(z)
        deviation = math.sqrt(steps * max(variance, min(1 / s**2, 1.0) / 8))
        slope, close = self.ratio / min(s, 1.0), self.near * deviation
        found = self.ratio * deviation + slope * np.maximum(np.abs(u - steps) - close, 0.0) / 2
        if close > steps:
            least = math.exp(-12) * min(steps, deviation * min(s, 1.0))
            found = np.minimum(found, slope * np.maximum(u, least))
        return np.asarray(found, dtype=np.float64)

    def placed(self, levels: _Levels) -> _Levels:
        # Makes a law of a sum coarser, so that its weights stay few when sums are added up: each value moves to a
        # lattice whose spacing is the power of 2 nearest to what `widths` returns for the value, unless its spacing is
        # larger already. Its weight is split between two neighbours so that the mean stays the same. The dict `levels`
        # is emptied. Weights below 1e-270 are dropped; `dominating_pairs` counts them (`_LOST`) as infinite losses.
        found: _Levels = {}
        while levels:
            k = min(levels)
            first, weights = levels.pop(k)
            wide = self.widths(np.ldexp(first + np.arange(float(len(weights))), k)) >= 2.0 ** (k + 0.5)
            if wide.any():
                _add(levels, k + 1, *_coarser(first, np.where(wide, weights, 0.0)))
            kept = np.flatnonzero(~wide & (weights > _DROPPED))
            if len(kept):
                found[k] = first + int(kept[0]), np.where(wide, 0.0, weights)[kept[0] : kept[-1] + 1]
        return found


def _one_step(mesh: _Mesh, reach: float) -> tuple[_Levels, float]:
    # A law that stands in for that of one step's Y = e^((2x - 1)/(2 s^2)), x from N(0, s^2), in upper bounds: means of
    # convex functions are at least as large, if outputs above 1 + `reach` s count as equal to that. Outputs from
    # -`reach` s on are cut into cells, whose mass is split between the Y at their ends so that its mean is kept. The
    # second result is a bound on the relative errors of the weights.
    s, ratio = mesh.s, mesh.ratio / 2
    x = np.arange(-reach, reach + 1 / s + ratio, ratio) * s
    beyond = ratio * (1 + _NODES) / 2
    density = np.exp(-((x[:-1, None] / s + beyond) ** 2) / 2) * (ratio * _SHARES / math.sqrt(8 * math.pi))
    up = np.expm1(beyond / s) / math.expm1(ratio / s)
    weights = np.zeros(len(x) + 1)
    weights[2:] = density @ up
    weights[1:-1] += density @ (-np.expm1((beyond - ratio) / s) / -math.expm1(-ratio / s))
    y = np.concatenate([[0.0], np.exp((2 * x - 1) / (2 * s * s))])
    # The probability of outputs below the first cell goes to Y = 0. In addition the least Y > 0 gets the weight that
    # keeps the mean of their Y, so that the weights sum to a little more than 1.
    weights[0], weights[-1] = ndtr(x[0] / s), weights[-1] + ndtr(-x[-1] / s)
    weights[1] += ndtr((x[0] - 1) / s) / y[1]
    most = float(x[-1] / s)
    levels: _Levels = {}
    level = np.floor(np.log2(mesh.widths(y)) + 0.5).astype(np.int64)
    for k in np.unique(level).tolist():
        at, mass = np.ldexp(y[level == k], -k), weights[level == k]
        i = np.floor(at)
        first, part = int(i[0]), at - i
        i = (i - first).astype(np.int64)
        _add(levels, k, first, np.bincount(i, mass * (1 - part)))
        _add(levels, k, first + 1, np.bincount(i, mass * part))
    return levels, UNIT * (256 + 16 * most * most + 8 * most / ratio)


@lru_cache(maxsize=64)
def _summed(mesh: _Mesh, reach: float) -> tuple[_Levels, float]:
    # A law that stands in, in upper bounds, for that of the sum of Y = e^((2x - 1)/(2 s^2)) over `mesh.steps` steps
    # with outputs x, and a bound on the relative errors of its weights. The sums over two parts of the steps are added.
    steps = mesh.steps
    if steps == 1:
        return _one_step(mesh, reach)
    half = steps // 2 if steps % 2 == 0 else steps - 1
    (one, wrong), (other, more) = (_summed(replace(mesh, steps=count), reach) for count in (half, steps - half))
    found, most = _convolved(one, other)
    return mesh.placed(found), wrong + more + UNIT * (2 * most + 64)


class _Grid:
    # The points, `points` times `width`, on which `divergences` sums V = Y - a Y' over the released steps of an epoch.
    # An output x has the law N(0, s^2), R, without the record; Y = e^((2x - 1)/(2 s^2)) and Y' = e^((-2x - 1)/(2 s^2))
    # are the density ratios to R with its two values. P and Q are the laws of all `steps` released outputs if the
    # record has the first or the second value in one random step of t. For a >= 1 the largest P(E) - a Q(E) is the mean
    # under R of max(sum of V - threshold, 0)/t, with threshold = (t - steps)(a - 1). Cells are `ratio` standard
    # deviations of V wide, or less.

    def __init__(self, s: float, a: float, steps: int, threshold: float, ratio: float) -> None:
        self.s, self.a, self.steps = s, a, steps
        reach = 10 * s + 2
        x = np.linspace(-reach, reach, 241)
        weight = np.exp(-((x / s) ** 2) / 2)
        weight /= weight.sum()
        value = np.exp((2 * x - 1) / (2 * s * s)) - a * np.exp((-2 * x - 1) / (2 * s * s))
        least, largest, root = -math.inf, math.inf, math.sqrt(steps)
        for _ in range(6):
            # Values farther away than matters are clipped, so that they do not widen the cells.
            clipped = np.clip(value, least, largest)
            mean = float(weight @ clipped)
            deviation = math.sqrt(float(weight @ (clipped - mean) ** 2))
            beyond = max(threshold - steps * mean, 0.0)
            span = deviation * root
            farthest = beyond + span
            least, largest = mean - 8 * span, mean + farthest + 4 * span
        clipped = np.clip(value, least, largest)
        self.thetas = min(0.05 / span, 0.5 / (farthest + span)) * _TILTS
        for factors in (_NEAR_TILTS, np.ones(1)):
            exponent = self.thetas[:, None] * clipped + log_law(weight)
            top = exponent.max(axis=1)
            tilted = np.exp(exponent - top[:, None])
            total = tilted.sum(axis=1)
            self.moments = steps * (top + np.log(total))
            self.error = self.moments - self.thetas * threshold - np.log(self.thetas)
            best = int(np.argmin(self.error))
            if len(factors) > 1:
                self.thetas = self.thetas[best] * factors
        middle = float(tilted[best] @ clipped / total[best])
        near = math.sqrt(float(tilted[best] @ (clipped - middle) ** 2 / total[best]))
        ratio = max(ratio, 32 * root / _LONGEST)
        self.width = ratio * min(max(deviation, beyond * min(s / 8, 0.3) / root), near)
        # With little noise V = Y - a Y' is mostly far smaller than its standard deviation, so cells are narrowed.
        # `size` is the value of Y at the output where V = 0, or 1 if that is larger.
        size = max(math.sqrt(a) * math.exp(-1 / (2 * s * s)), 1.0)
        self.width = min(self.width, max(ratio * size * root, ratio * largest / _FINER))
        if not self.width > 0:
            raise OverflowError("values that all but are one")
        low, high = math.floor(least / self.width), math.ceil(largest / self.width)
        if high - low > _LONGEST:
            raise OverflowError("the noise is too little for the grid")
        # Up to 12 standard deviations from the mean of V every cell has a point with a weight; beyond, fewer cells do.
        offsets = [math.ceil(12 / ratio)]
        while offsets[-1] < high - low:
            offsets.append(math.ceil(offsets[-1] * (1 + ratio)))
        far = np.array(offsets[1:], dtype=np.int64)
        mesh = np.concatenate([-far[::-1], np.arange(-offsets[0], offsets[0] + 1), far])
        points = np.unique(np.concatenate([mesh + centre for centre in {round(middle / self.width), 0}]))
        self.points = np.concatenate([[low], points[(points > low) & (points < high)], [high]])
        self.z = self.points * self.width

    def edges(self, z: Array) -> Array:
        # The outputs x at which V(x) = e^((2x - 1)/(2 s^2)) - a e^((-2x - 1)/(2 s^2)), which rises, has the values z.
        # `_MISPLACED` bounds the probability that rounding of x puts into the wrong cell.
        product = self.a * math.exp(-1 / self.s**2)
        root = np.sqrt(z * z + 4 * product)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.s**2 * np.log(np.where(z > 0, (z + root) / 2, 2 * product / (root - z))) + 0.5)

    def tilt(self, careful: bool) -> tuple[float, float]:
        # Returns a tilt theta > 0, and the log of the share of the tilted sum that the grid may leave out; any numbers
        # are correct. If `careful`, rounding errors are about the least possible. Else they are at most about e^9 times
        # as large, and the grid is about the shortest.
        best = int(np.argmin(self.error))
        if careful:
            return float(self.thetas[best]), _FOLDED
        folded = _FOLDED_ONCE - (self.error - self.error[best])[:-1]
        more = np.where(self.thetas > self.thetas[:-1, None], self.thetas - self.thetas[:-1, None], math.nan)
        longest = np.nanmin((self.moments - self.moments[:-1, None] - folded[:, None]) / more, axis=1)
        best = int(np.argmin(np.where(folded >= _FOLDED_ONCE - 9, longest, math.inf)))
        return float(self.thetas[best]), float(folded[best])

    def spread(self) -> tuple[Array, float]:
        # The weights on the points of a law that stands in for that of one step's V = Y - a Y' in upper bounds, and a
        # bound on E max(V - last point, 0), which it lacks: once that is added, means of rising convex functions of
        # slope at most 1 are at least as large. The mass between two points is split between them so that the mean of V
        # is kept, or raised a little for rounding; mass below the first point is counted there.
        s = self.s
        z, edges = self.z, self.edges(self.z)
        ends = np.append(edges, math.inf)
        (r, r_error), (p, p_error), (q, q_error) = (
            normal_mass((ends[:-1] - mean) / s, (ends[1:] - mean) / s) for mean in (0, 1, -1)
        )
        excess = p + p_error - self.a * np.maximum(q - q_error, 0.0)
        excess -= z * np.where(z > 0, np.maximum(r - r_error, 0.0), r + r_error)
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


def divergences(noise: float, epoch: int, released: int, loss: Array, ratio: float, least: float = 0.0) -> Array:
    """Returns upper bounds, at each entry l of `loss`, on the largest P(A) - e^l Q(A) over events A. P and Q are the
    distributions of what the first `released` steps of an epoch release if a record, which is in one random step, has
    one value or the opposite one. The bounds also hold with P and Q exchanged. Raises OverflowError if the noise is so
    small that the grid would be too long.

    Args:
        noise: the noise multiplier.
        epoch: the number of steps of a whole epoch.
        released: how many steps of the epoch are released, at most `epoch`.
        loss: rising numbers, the first of which is 0.
        ratio: the width of a grid's cells over the standard deviation of one step's Y - e^l Y', where Y and Y' are the
            densities of a step's output with the record's first and second value over its density without the record.
            The bounds exceed the exact numbers by a share that falls as its square.
        least: from the first bound that is at most this number on, all entries get that bound.
    """
    if 2 * loss[-1] > 600:
        raise OverflowError("the noise is too little for the grid")
    found = np.zeros(len(loss))
    for k, a in enumerate(np.exp(loss)):
        value, threshold = math.inf, (epoch - released) * math.expm1(loss[k])
        try:
            grid = _Grid(noise, float(a), released, threshold, ratio)
            law, lost = grid.spread()
            for careful in (False, True):
                (theta, log_folded), longest = grid.tilt(careful), _LONGEST_CAREFUL if careful else _LONGEST
                (total,) = sums(grid.points, grid.width, [(theta, [law], [(0.0, [released])])], log_folded, longest)
                value, wrong = total.excess(threshold)
                if wrong <= 3e-3 * value:  # errors are small enough; else try the longer, careful grid
                    break
        except OverflowError:
            if k == 0 and not math.isfinite(value):
                raise
        found[k] = (value + released * lost * (1 + 1e-12)) / epoch * (1 + 16 * UNIT)
        # Divergences fall with the ratio, so a bound holds for all larger ratios.
        if not found[k] < math.inf or found[k] <= least:
            found[k:] = min(found[k], found[max(k - 1, 0)])
            break
    return found


def _losses(s: float, epoch: int, released: int, reach: float, near: float, ratio: float) -> Array:
    # Divergences are computed at these losses: up to `near` standard deviations of an epoch's loss they are `ratio` of
    # these apart, then farther and farther. The largest one is beyond what outputs within `reach` standard deviations
    # of their means can have; the others do not matter.
    variance = math.expm1(1 / s**2) * released / epoch**2
    deviation, spread = math.sqrt(math.log1p(4 * variance)), math.sqrt(math.log1p(variance))
    largest = (2 * (1 + s * reach) - 1) / (2 * s * s)
    top = math.log1p(math.exp(largest - math.log(epoch)) + reach * math.sqrt(variance)) + reach * spread + spread**2 / 2
    losses = [0.0]
    while losses[-1] < top and len(losses) < 500:
        step = min(deviation + 0.7 * max(losses[-1] - near * deviation, 0.0), max(deviation, 1 / s))
        losses.append(losses[-1] + ratio * step)
    return np.array(losses)


@lru_cache(maxsize=16)
def dominating_pairs(
    noise: float, epoch: int, released: int, *, replaced: bool, reach: float, near: float, ratio: float
) -> tuple[FinitePair, FinitePair]:
    """Returns two finite pairs, whose delta is at least that of (P, Q) and of (Q, P) at every epsilon. P and Q are the
    distributions of what the first `released` steps of an epoch release with the protected record, which is in one
    random step, and without it; under Q it has the opposite value instead if `replaced`.

    Args:
        noise: the noise multiplier s.
        epoch: the number of steps of a whole epoch.
        released: how many steps of the epoch are released.
        replaced: True if the record has the opposite contribution under Q, False if it has none.
        reach: outputs are told apart up to this many standard deviations of the noise beyond their means; any number is
            correct. The probability under P that the record's step has an output above 1 + reach s counts as an
            infinite loss; if `replaced`, so do losses that are larger than outputs within reach can have.
        near: how many standard deviations from the middle the cells get wider. The middle is the mean of the sum over
            the steps of a step's density ratio (with the record over without); if `replaced`, a loss of 0.
        ratio: about the width of cells of that sum, or if `replaced` of that loss, in its standard deviations. The
            bounds exceed the exact numbers by a share that falls as its square.

    Raises:
        OverflowError: the noise multiplier is below 0.1, or the grid would be too long.
    """
    if noise < LEAST_EPOCH_NOISE:
        raise OverflowError("the noise is too little for the grid")
    if replaced:
        loss = _losses(noise, epoch, released, reach, near, ratio)
        heights = loss, divergences(noise, epoch, released, loss, ratio, released * float(ndtr(-reach)))
        both = dominating(heights, heights)
        return both, both
    levels, wrong = _summed(_Mesh(noise, released, near, ratio), reach)
    if wrong > 0.01:
        raise OverflowError("rounding errors exceed the answer")
    # The values of the sum, i 2^k, minus `released` have no rounding error.
    at = np.concatenate([np.ldexp(i + np.arange(float(len(w))), k) - released for k, (i, w) in levels.items()])
    weights = np.concatenate([w for _, w in levels.values()])
    order = np.argsort(at, kind="stable")
    order = order[weights[order] > 0]
    more, weights = at[order] / epoch, weights[order] * (1 + wrong)
    # `more` is S - 1, S being the mean of an epoch's ratios e^((2x - 1)/(2 s^2)), and is wrong by at most slip (1 + S).
    # It takes fewer than 16 roundings relative to S or 1. An exponent is at most about reach/s + 1/s^2 in size and
    # takes fewer than 8, each of which changes the ratio by a share of at most that size times 2^-53.
    slip = UNIT * (16 + 8 * (reach / noise + 1 / noise**2))
    high, low = more + slip * (2 + more), more - slip * (2 + more)
    # What the mean of Y lacks beyond the last cell counts as an infinite loss, and so do weights that are almost 0.
    lost = released / epoch * float(ndtr(-reach)) * (1 + 1e-12) + _LOST
    seen, rare = weights > _LEAST_WEIGHT, weights <= _LEAST_WEIGHT
    lost += float(weights[rare] @ (1 + high[rare])) * 1.01
    loss = np.log1p(high[seen])
    mass = weights[seen] * np.exp(loss) * (1 + 4 * UNIT)
    forward = FinitePair(loss, mass, lost, mass, weights[seen])
    seen &= low > _LEAST_WEIGHT - 1
    back, mass = -np.log1p(low[seen])[::-1], weights[seen][::-1]
    infinite = float(np.sum(weights[~seen])) * 1.01 + _LOST
    return forward, FinitePair(back, mass, infinite, mass, mass * np.exp(-back))


def counts(epoch: int, taken: int, released: int) -> tuple[list[tuple[int, float]], float]:
    """Returns the distribution of the number j of steps that use the record among the first `released` steps of an
    epoch, if `taken` random ones of its `epoch` steps use it: a list of pairs (j, probability), and a bound on the
    total probability of the j that are left out because their probability is at most 1e-18."""
    low, high = max(0, taken - (epoch - released)), min(taken, released)

    # Ratios of neighbours are multiplied, since log-gamma functions of 10^8 steps err by 1e-7 of a probability.
    j = np.arange(low, high, dtype=np.float64)
    ratios = (released - j) / (j + 1) * ((taken - j) / (epoch - released - taken + j + 1))
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    kept = [(low + i, float(chance)) for i, chance in enumerate(chances) if chance > _LEAST_CHANCE]
    return kept, (len(chances) - len(kept)) * _LEAST_CHANCE


def _grid(pair: Gaussian, released: int, taken: int, replaced: bool, points: int) -> tuple[NDArray[np.int64], float]:
    s, (branch,) = pair.noise, pair.branches
    x = np.linspace(-_FARTHEST_OF_GRID * s - 1, _FARTHEST_OF_GRID * s + 1, 4001)
    level = pair.losses(branch, x)[0]
    # Returns integers k, in order, and a width: a step's loss is rounded to the nearest of the values k times width.
    # The width is such that the total loss of `released` steps, in which the record is `taken` times, has about
    # `points` cells. The loss is log(1 - c + c Y), with c = `pair.rate` and Y the ratio of the densities of a step's
    # output with and without the record; if `replaced`, that minus the same log for the record's other value.
    weights = {m: np.exp(-(((x - m) / s) ** 2) / 2) for m in (-1, 0, 1)}
    mean = {m: float(w @ level / w.sum()) for m, w in weights.items()}
    variance = max(float(w @ (level - mean[m]) ** 2 / w.sum()) for m, w in weights.items() if m >= -replaced)
    room = _FARTHEST_OF_GRID * math.sqrt(variance * released) + float(level[-1] - mean[0])
    width = (2 * room + taken * (mean[1] - (mean[-1] if replaced else mean[0]))) / points
    return np.arange(round(float(level[0]) / width), round(float(level[-1]) / width) + 1), width


_Family = tuple[Array, Array]
"""Bounds on the probabilities of some events, for (P, Q) and for (Q, P): an array with a row of lower bounds under the
first distribution and a row of upper bounds under the second one."""


def _family(
    noise: float,
    epoch: int,
    released: int,
    taken: int,
    replaced: bool,
    points: int,
    shift: float,
    longest: int = _LONGEST,
) -> _Family:
    # Bounds on the probabilities of events that tell P from Q, the laws of the released steps with the protected record
    # and without it or, if `replaced`, with its opposite value: a row of lower bounds under P and of upper bounds under
    # Q, with a column for each event, and the same for (Q, P). An event is that the sum over the steps of log(1 - c + c
    # Y) is above a level, or for (Q, P) below it. Y is the ratio of the densities of a step's output with the record
    # and without it; if `replaced`, the same log for the other value is subtracted. Any c in (0, 1) is correct; `shift`
    # chooses it: c/(1-c) is e^(shift/s) (k-1)/(t-k+1), or e^(2 shift/min(s, 1))/t for k = 1, for a record in k =
    # `taken` steps of t = `epoch`. The grid of the sum has about `points` cells; the events of a sum that needs more
    # than `longest` are left out.
    present, missing = counts(epoch, taken, released)
    absent = present if replaced else [(0, 1.0)]
    kind, other = ("replace", -1) if replaced else ("remove", 1)
    # If the record is in one step of the epoch, the best test adds up the density ratios Y_i. The sum of log(1 - c + c
    # Y_i) becomes that test as c falls to 0, so constants c near 0 are tried then, in steps of another size.
    unit = 2 / min(noise, 1.0) if taken == 1 else 1 / noise
    odds = math.exp(min(max(shift * unit, -600.0), 600.0)) * max(taken - 1, 1) / (epoch - taken + 1)
    pair = Gaussian(kind, odds / (1 + odds), noise)
    cells, width = _grid(pair, released, taken, replaced, points)
    # Bounds on the masses of the cells, where the output has the mean m: lower ones at (m, -1), upper ones at (m, 1).
    ends = np.asarray((cells[:-1] + 0.5) * width, dtype=np.float64)
    edges = np.concatenate([[-np.inf], pair.inverse(pair.branches[0], ends), [np.inf]]) / noise
    masses: dict[tuple[int, int], Array] = {}
    for m in (-1, 0, 1):
        mass, error = normal_mass(edges[:-1] - m / noise, edges[1:] - m / noise)
        masses |= {(m, sign): np.maximum(mass + sign * error, 0.0) for sign in (-1, 1)}
    # The events are {sum above x} and, for (Q, P), {sum below x}, where the sum is that of an epoch's losses. P's laws
    # are tilted by e^{theta loss}, so that rare events are resolved, and Q's by e^{loss} more, which makes them
    # nearly equal to P's.
    found: dict[int, list[Array]] = {1: [], -1: []}
    for way, theta in itertools.product((1,) if replaced else (1, -1), _TILTS_BELOW):
        there, without = ((1, present), (other, absent))[::way]
        products = [
            (
                tilt,
                [masses[mean, sign][::way], masses[0, sign][::way]],
                [(math.log(chance), [j, released - j]) for j, chance in chances],
            )
            for tilt, sign, (mean, chances) in ((theta, -1, there), (theta + 1, 1, without))
        ]
        with suppress(OverflowError):
            first, second = sums((way * cells)[::way], width, products, -40.0, longest)
            p, q = first.tails(-1), second.tails(1)
            at = np.unique(np.minimum(np.searchsorted(-p, -_EVENTS), len(p) - 1))
            found[way].append(np.array([p[at], np.minimum(q[at] + missing, 1.0)]))
    none = [np.zeros((2, 0))]
    return np.hstack(found[1] or none), np.hstack(found[-1] or none)


def _pairs(families: list[_Family], replaced: bool) -> tuple[FinitePair, FinitePair]:
    forward, backward = (np.hstack([family[way] for family in families]) for way in (0, 1))
    first = dominated(*forward)
    return first, first if replaced else dominated(*backward)


@lru_cache(maxsize=64)
def _best_shifts(noise: float, epoch: int, released: int, taken: int, replaced: bool) -> list[float]:
    # Few of the values of `shift` of `_family` that are tried, those for which a fine grid pays: at every loss one of
    # them has almost the largest divergence on a rough grid
    found: dict[float, Array] = {}
    ratio = np.exp(_LEVELS)[:, None]
    for shift in _REPLACED if replaced else _REMOVED:
        family = _family(noise, epoch, released, taken, replaced, _FEW_POINTS, shift, 4 * _FEW_POINTS)
        pairs = _pairs([family], replaced)
        found[shift] = np.concatenate([np.maximum(one.p - ratio * one.q, 0.0).sum(axis=1) for one in pairs])
    gaps = np.array(list(found.values()))
    good = (gaps >= gaps.max(axis=0) * (1 - _SAME)) & (gaps > _LEAST_GAP)
    best: list[int] = []
    while good.any() or not best:
        best.append(int(np.argmax(good.sum(axis=1))))
        good = good & ~good[best[-1]]
    return [list(found)[k] for k in best]


@lru_cache(maxsize=8)
def dominated_pairs(
    noise: float, epoch: int, released: int, taken: int, *, replaced: bool, points: int
) -> tuple[FinitePair, FinitePair]:
    """Returns two finite pairs, whose delta is at most that of (P, Q) and of (Q, P) at every epsilon. P and Q are the
    distributions of what the first `released` steps of an epoch release with the protected record and without it (with
    its opposite value, if `replaced`). Use only their method `lower`.

    Args:
        noise: the noise multiplier.
        epoch, taken: the record is in `taken` random ones of the `epoch` steps, 1 <= taken < epoch.
        released: how many steps of the epoch are released.
        replaced: True if the record has the opposite contributions under Q, False if it has none.
        points: the number of grid points for the sum of an epoch's losses, a power of two.
    """
    # The events (`shift`) that are best for one noise are good for noise near it: a search for noise needs few choices.
    near = 2.0 ** (round(_NOISES * math.log2(noise)) / _NOISES)
    setting = epoch, released, taken, replaced
    return _pairs([_family(noise, *setting, points, shift) for shift in _best_shifts(near, *setting)], replaced)
