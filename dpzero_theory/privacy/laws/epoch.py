"""Finite pairs of laws for one epoch of random allocation: one that dominates it (above), one that it dominates
(below).

x_i is the output of step i of an epoch of t steps, s the noise multiplier. With the record the density ratio of the
outputs to R = N(0, s^2 I) is the average S of the Y_i = exp((2 x_i - 1)/(2 s^2)). With the other record of replace-one
it is the average S' of the Y'_i = exp((-2 x_i - 1)/(2 s^2)); without any record S' = 1. The divergence at a ratio a is
E_R (S - a S')_+, so a mean of the positive part of a sum of independent variables V_i less a constant, with V = Y, -Y'
or Y - a Y'. Sums of many are composed on a grid of equal cells by `fourier.sums`. Statements and proofs:
derivation.md, section 7.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri_exp

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.finite import Ends, FinitePair, dominated, dominating
from dpzero_theory.privacy.laws.fourier import Product, Sum, sums
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
_ALIKE = 0.3
"""One statistic Y - a Y' serves ratios that differ by at most this share of a."""


@dataclass(frozen=True)
class Side:
    """Which two laws of an epoch's outputs are compared, a first one with a second one; R is the law without any
    record.

    up: 1 if the first law is the one with the record, which is in one random step; 0 if it is R.
    down: 1 if the second law is the one with the other record of replace-one, in one random step; 0 if it is R.
    """

    up: int
    down: int


class _Grid:
    """The grid for sums of V over some steps: V = Y, -Y' or Y - a Y', for each side.

    It serves the thresholds up to `most`.
    """

    def __init__(self, side: Side, s: float, a: float, steps: int, threshold: float, ratio: float) -> None:
        """threshold: the least one. ratio: the width of a cell, in standard deviations of V."""
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

    def rounded(self) -> tuple[list[Array], float]:
        """The laws of the point nearest to V for outputs of the means 0, 1 and -1, and a bound on the relative error of
        their weights."""
        edges = np.concatenate([[-math.inf], self.edges((self.z[1:] + self.z[:-1]) / 2), [math.inf]])
        laws, error = [], 0.0
        for mean in (0, 1, -1):
            mass, wrong = normal_mass((edges[:-1] - mean) / self.s, (edges[1:] - mean) / self.s)
            laws.append(mass)
            error = max(error, float(np.max(wrong / np.where(mass > 0, mass, np.inf))))
        return laws, error

    def sums(self, products: Sequence[Product], careful: bool) -> list[Sum]:
        """The laws of sums of independent variables on the points, with a tilt of this grid."""
        theta, log_folded = self.tilt(careful)
        longest = _LONGEST_CAREFUL if careful else _LONGEST
        return sums(self.points, self.width, [(theta, product) for product in products], log_folded, longest)


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
    possible, a, threshold = _questions(side, epoch, released, loss)
    found = np.zeros(len(loss))
    found[:possible] = _above(side, noise, released, ratio, a, threshold)
    return found * (1 / epoch if side.up else np.exp(loss) / epoch) * (1 + 16 * UNIT)


def events(side: Side, noise: float, epoch: int, released: int, loss: Array, ratio: float) -> tuple[Array, Array]:
    """For each of the losses l an event, by a lower bound on its probability under the first law and an upper one under
    the second. The arguments are those of `divergences`."""
    possible, a, threshold = _questions(side, epoch, released, loss)
    p, q = np.zeros(len(loss)), np.zeros(len(loss))
    p[:possible], q[:possible] = _below(side, noise, released, ratio, a, threshold, epoch)
    return p, q


def _questions(side: Side, epoch: int, released: int, loss: Array) -> tuple[int, Array, Array]:
    """How many of the losses are possible, their ratios a, and the thresholds with which sums of V are compared."""
    if 2 * loss[-1] > 600:
        raise OverflowError("the noise is too little for the grid")
    if side.up and side.down:
        threshold = (epoch - released) * np.expm1(loss)
    elif side.up:
        threshold = released + epoch * np.expm1(loss)
    else:
        threshold = -(released + epoch * np.expm1(-loss))
    # Without a record up, V is negative.
    possible = len(loss) if side.up else int(np.sum(threshold < 0))
    return possible, np.exp(loss[:possible]), threshold[:possible]


def _above(side: Side, s: float, steps: int, ratio: float, a: Array, threshold: Array) -> Array:
    """Upper bounds on E (sum of V - threshold)_+ at each ratio a."""
    found, k = np.zeros(len(a)), 0
    while k < len(a):
        alike = slice(k, k + 1 if side.up and side.down else None)
        value, wrong = np.full(1, math.inf), np.zeros(1)
        try:
            grid = _Grid(side, s, float(a[k]), steps, float(threshold[k]), ratio)
            law, lost = grid.spread()
            for careful in (False, True):
                value, wrong = grid.sums([[(law, steps)]], careful)[0].excess(threshold[alike])
                if wrong[0] <= _ACCURATE_ONCE * value[0]:
                    break
        except OverflowError:
            if not math.isfinite(value[0]):
                if k == 0:
                    raise
                # Divergences fall with the ratio.
                found[k:] = found[k - 1]
                break
        value = value + steps * lost * (1 + 1e-12)
        good = (wrong <= _ACCURATE * value) & (threshold[alike] <= grid.most)
        good[0] = True
        count = len(good) if good.all() else int(np.argmin(good))
        found[k : k + count] = value[:count]
        k += count
    return found


def _below(
    side: Side, s: float, steps: int, ratio: float, a: Array, threshold: Array, epoch: int
) -> tuple[Array, Array]:
    """For each ratio a, a lower bound on the probability of an event under the first law and an upper one under the
    second."""
    p, q, worst, k = np.zeros(len(a)), np.zeros(len(a)), 0.0, 0
    share, both = steps / epoch, side.up and side.down
    while k < len(a):
        kept, lost, sure = np.zeros(1), np.zeros(1), np.zeros(1, dtype=bool)
        try:
            grid = _Grid(side, s, float(a[k]), steps, float(threshold[k]), ratio)
            (still, up, down), error = grid.rounded()
            products: list[Product] = [[(still, steps)]]
            products += [[(law, 1), (still, steps - 1)] for law, there in ((up, side.up), (down, side.down)) if there]
            for careful in (False, True):
                found = grid.sums(products, careful)

                def tails(moved: int, one: int, sign: int, found: list[Sum] = found) -> Array:
                    """Bounds for R or, if `moved`, with a record that is in one of the epoch's steps: sum `one`."""
                    without = found[0].tails(sign)
                    return share * found[one].tails(sign) + (1 - share) * without if moved else without

                kept, lost = tails(side.up, 1, -1), tails(side.down, -1, 1)
                sure = kept > 0.97 * tails(side.up, 1, 1)
                if np.max(kept - a[k] * lost) > 0:
                    break
        except OverflowError:
            if len(kept) == 1:
                if k == 0:
                    raise
                break  # no event is known that far away
        count = 0
        for ratio_a, other in zip(a[k:].tolist(), threshold[k:].tolist(), strict=True):
            at = int(np.argmax(kept - ratio_a * lost))
            if count and not (sure[at] and (ratio_a <= (1 + _ALIKE) * a[k] if both else other <= grid.most)):
                break
            p[k + count], q[k + count] = kept[at], lost[at]
            count += 1
        worst = max(worst, error)
        k += count
    wrong = math.expm1(steps * (worst + 8 * UNIT))
    return p * max(1 - wrong, 0.0), np.minimum(q * (1 + wrong), 1.0)


_MOST_LOSSES = 500
"""Divergences are computed at this many losses at most."""


def _losses(side: Side, s: float, epoch: int, released: int, reach: float, near: float, ratio: float) -> Array:
    """The losses at which divergences of an epoch are computed, from 0 to beyond the largest one that matters.

    They are equally spaced up to `near` standard deviations of an epoch's loss, and then farther and farther apart.
    side: which laws are compared. s: the noise multiplier. epoch, released: the steps of an epoch, and how many of them
    are released. reach: outputs farther than this many standard deviations from their means do not matter. ratio: the
    spacing, in standard deviations of an epoch's loss.
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


def epoch_pairs(
    noise: float,
    epoch: int,
    released: int,
    *,
    replaced: bool,
    reach: float,
    near: float,
    ratio: float,
    end: Ends,
) -> tuple[FinitePair, FinitePair]:
    """Finite pairs of laws that bound the first `released` steps of one epoch: the first of the two is for (P, Q), with
    the record under P, and the second for (Q, P).

    noise: the noise multiplier s.
    epoch: t, the number of steps of a whole epoch, in one of which the record takes part.
    replaced: whether the record's contribution has the opposite sign under Q; else Q is without the record.
    reach: losses that only outputs farther than this many standard deviations from their means have are not told apart.
    near: up to this many standard deviations of an epoch's loss the bounds are computed at equally spaced losses.
    ratio: the width of the cells, in standard deviations; the distance between the pairs falls as its square.
    end: which pairs are computed, "upper" (dominating) or "lower" (dominated); the others bound nothing.

    Raises:
        OverflowError: the noise multiplier is below 0.1, or the grid would be too long.
    """
    if noise < LEAST_EPOCH_NOISE:
        raise OverflowError("the noise is too little for the grid")
    sides = (Side(1, 1),) if replaced else (Side(1, 0), Side(0, 1))
    losses = [_losses(side, noise, epoch, released, reach, near, ratio) for side in sides]
    one = epoch, released
    if end == "upper":
        heights = [(x, divergences(side, noise, *one, x, ratio)) for side, x in zip(sides, losses, strict=True)]
        forward, backward = dominating(heights[0], heights[-1]), dominating(heights[-1], heights[0])
    else:
        found = [events(side, noise, *one, x, ratio) for side, x in zip(sides, losses, strict=True)]
        forward, backward = dominated(found[0], found[-1]), dominated(found[-1], found[0])
    return forward, forward if replaced else backward


@dataclass(frozen=True)
class Epoch(Law):
    """The first `released` of the `epoch` steps of an epoch of random allocation, in one of which the record is.

    Args:
        noise: the noise multiplier s.
        epoch, released: see above.
        replaced: whether the record has another value under Q; else it is not there.
        way: 0 for (P, Q), 1 for (Q, P).
        end: "upper" for a law that dominates, "lower" for one that is dominated.
        epochs: the number of epochs in the history, by which the outputs that matter are chosen.
    """

    noise: float
    epoch: int
    released: int
    replaced: bool
    way: int
    end: Ends
    epochs: int
    infinite = 0.0

    def refined(self, points: int, z: float) -> Law:
        if self.released == 1:
            # The record is in the first step with probability 1/t.
            kind = "replace" if self.replaced else ("remove", "add")[self.way]
            return Gaussian(kind, 1 / self.epoch, self.noise)
        reach = math.ceil(-2 * float(ndtri_exp(log_ndtr(-z) - math.log(self.released)))) / 2
        near = min(reach, 4 + reach / math.sqrt(self.epochs))
        ratio = (_COARSE if points <= 2**12 else _FINE if self.noise >= 1 else _LESS_FINE)[self.replaced]
        kind_of = self.noise, self.epoch, self.released
        return _pairs(*kind_of, replaced=self.replaced, reach=reach, near=near, ratio=ratio, end=self.end)[self.way]


_COARSE, _LESS_FINE, _FINE = (0.3, 0.4), (0.06, 0.15), (0.03, 0.1)
"""The width of a grid's cells in standard deviations: of rough laws; of sharp ones at noise multipliers below 1, which
take longer; and of sharp ones at 1 and above. Each pair has the width for neighbours with and without the record first,
then that for two values of a record (replace-one)."""
_pairs = lru_cache(maxsize=16)(epoch_pairs)
