"""Finite pairs of laws for one epoch of random allocation: one that dominates it (above), one that it dominates
(below).

x_i is the output of step i of an epoch of t steps, s the noise multiplier. With the record the density ratio of the
outputs to R = N(0, s^2 I) is the average S of the Y_i = exp((2 x_i - 1)/(2 s^2)). With the other record of replace-one
it is the average S' of the Y'_i = exp((-2 x_i - 1)/(2 s^2)); without any record S' = 1 and Y'_i = 1. The divergence at
a ratio a is E_R (S - a S')_+, so 1/t times the mean of the positive part of a sum of t independent variables Z_i = Y_i
- a Y'_i. Statements and proofs: derivation.md, section 7.
"""

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr, ndtr, ndtri_exp

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.arithmetic import CDF_ERROR, normal_mass
from dpzero_theory.privacy.laws.finite import Ends, FinitePair, Profile, region
from dpzero_theory.privacy.laws.law import Stand
from dpzero_theory.privacy.laws.signed import SignedGrid, Weights

LEAST_EPOCH_NOISE = 0.1
"""The least noise multiplier s; with less the density ratios, which are e^{1/(2 s^2)} and more, need too long a grid,
and OverflowError is raised."""
_MOST_WEIGHTS = 200_000
"""The most weights (grid points times ratios a) of the laws of one step; more take seconds, and OverflowError is
raised."""
_AT_ONCE = 7_000
"""About the number of weights (grid points times ratios a) whose laws are added at once; this many stay in a
processor's cache."""
_WIDER, _WIDEST_RATIO = 1.2, 0.3
"""The spacing of the grid of density ratios is widened by the first number at a time to save work, until it exceeds the
second number; with wider ones the bounds are of no use."""
_MISPLACED = 2e-13
"""A bound on the probability that is put into the wrong cell by a rounding error of a cell's end, as a share of the
normal tail probability from that cell outward."""


@dataclass(frozen=True)
class Side:
    """Which two laws of an epoch's outputs are compared, a first one with a second one; R is the law without any
    record.

    up: 1 if the first law is the one with the record, which is in one random step; 0 if it is R.
    down: 1 if the second law is the one with the other record of replace-one, in one random step; 0 if it is R.
    """

    up: int
    down: int

    @property
    def means(self) -> tuple[int, ...]:
        """The means that an output may have. They are 0 without any record, 1 if the first law has the record in this
        step, and -1 if the second law has the other record in it."""
        return (0, *([1] if self.up else []), *([-1] if self.down else []))


@dataclass(frozen=True)
class _Step:
    """The variable Z = Y - a Y' + more of one step, for several ratios a, where Y and Y' are density ratios of the
    output.

    For the output x and the noise multiplier s, Y = exp((2 x - 1)/(2 s^2)) and Y' = exp((-2 x - 1)/(2 s^2)).

    side: which laws are compared; Y is 1 if the first of them is without a record, and Y' is 1 if the second is. s: the
    noise multiplier. a: the ratios.
    more: for each a, a share of the constant 1 - a that each unreleased step of the epoch adds to the sum; the released
    steps share these constants equally.
    """

    side: Side
    s: float
    a: Array
    more: Array

    def at(self, part: slice) -> "_Step":
        """The variables Z of this step for those ratios a only that `part` selects."""
        return replace(self, a=self.a[part], more=self.more[part])

    @property
    def unit(self) -> Array:
        """The unit in which the step's variable Z = Y - a Y' + more is measured, one for each ratio a.

        It is the larger of 1 and the value of Y where Y = a Y'.
        """
        if not self.side.up:
            return np.ones(len(self.a))
        at = np.sqrt(self.a) * math.exp(-1 / (2 * self.s**2)) if self.side.down else self.a
        return np.maximum(at, 1.0)

    def edges(self, z: Array) -> Array:
        """The output x at which Z is z units, for each ratio a and each z; it rises in z. The unit is the property
        `unit`.

        If no output has so small or so large a Z, it is -inf or inf. The rounding error is accounted for by
        `_MISPLACED`.
        """
        s, a, side = self.s, self.a[:, None], self.side
        z = self.unit[:, None] * z - self.more[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            if side.up and side.down:
                product = a * math.exp(-1 / s**2)
                root = np.sqrt(z * z + 4 * product)
                return np.asarray(s * s * np.log(np.where(z > 0, (z + root) / 2, 2 * product / (root - z))) + 0.5)
            if side.up:
                return np.asarray(s * s * np.log(np.maximum(z + a, 0.0)) + 0.5)
            return np.asarray(-s * s * np.log(np.maximum((1 - z) / a, 0.0)) - 0.5)


def _spread(step: _Step, grid: SignedGrid, low: float, high: float) -> Weights:
    """The law of one step's variable Z = Y - a Y' + more, for outputs in [low, high], on the points of the grid.

    The mass between two points is split between them so that the mean of Z is kept, or raised a little to cover
    rounding errors.
    """
    s, side = step.s, step.side
    points = np.concatenate([-grid.points[::-1], [0.0], grid.points])
    edges = np.clip(step.edges(points), low, high)
    (r, r_error), (p, p_error), (q, q_error) = (
        normal_mass((edges[:, :-1] - mean) / s, (edges[:, 1:] - mean) / s) for mean in (0, side.up, -side.down)
    )
    empty = edges[:, 1:] <= edges[:, :-1]
    unit = step.unit[:, None]
    factor = step.more[:, None] / unit - points[:-1]
    excess = (p + p_error - step.a[:, None] * np.maximum(q - q_error, 0.0)) / unit
    excess += factor * np.where(factor < 0, np.maximum(r - r_error, 0.0), r + r_error)
    up = np.where(empty, 0.0, np.maximum(excess, 0.0) / np.diff(points))
    down = np.where(empty, 0.0, np.maximum(r + r_error - up, 0.0))
    law = np.zeros((len(step.a), len(points)))
    law[:, :-1] += down
    law[:, 1:] += up
    # Mass that may belong to the next higher cell, because of rounding, is counted two points higher.
    misplaced = np.where(empty, 0.0, r_error * (_MISPLACED / CDF_ERROR))
    law[:, 2:] += misplaced[:, :-1]
    law[:, -1] += misplaced[:, -1]
    # Mass below the first point is counted at that point, which raises the mean.
    law[:, 0] += ndtr(edges[:, 0] / s)
    return Weights.of(law.T)


def _events(step: _Step, grid: SignedGrid, low: float, high: float) -> tuple[Weights, float]:
    """The laws of the grid point nearest to one step's variable Z = Y - a Y' + more, and a bound on their weights'
    relative error.

    There is one law for each of `Side.means` as the mean of the output. Outputs outside [low, high] are counted in the
    first and the last cell.
    """
    points = np.concatenate([-grid.points[::-1], [0.0], grid.points])
    s = step.s
    edges = step.edges((points[1:] + points[:-1]) / 2)
    edges = np.where(edges < low + 1e-3 * s, -np.inf, np.where(edges > high - 1e-3 * s, np.inf, edges))
    ends = np.full((len(step.a), 1), np.inf)
    edges = np.concatenate([-ends, edges, ends], axis=1)
    laws, error = [], 0.0
    for mean in step.side.means:
        mass, wrong = normal_mass((edges[:, :-1] - mean) / s, (edges[:, 1:] - mean) / s)
        laws.append(mass)
        error = max(error, float(np.max(wrong / np.where(mass > 0, mass, np.inf))))
    return Weights.of(np.stack(laws).transpose(2, 0, 1)), error


Chain = dict[int, tuple[int, int]]
"""An addition chain, as a dictionary from each sum to its two terms. In order, its numbers are each the sum of two
numbers which are 1 or stand earlier in the chain. It tells in which order laws are added."""


def _windows(number: int, width: int) -> Chain:
    """An addition chain (`Chain`) from 1 to `number` by the sliding-window method.

    It doubles for each binary digit, and adds an odd number of at most `width` digits for each window of digits.
    """
    digits = bin(number)[2:]
    windows, place = [], 0
    while (place := digits.find("1", place)) >= 0:
        ones = digits[place : place + width].rstrip("0")
        place += len(ones)
        windows.append((int(ones, 2), len(digits) - place))
    largest = max(window for window, _ in windows)
    chain: Chain = {2: (1, 1)} if largest > 1 else {}
    chain |= {odd: (odd - 2, 2) for odd in range(3, largest + 1, 2)}
    total, place = windows[0]
    for window, after in [*windows[1:], (0, 0)]:
        for _ in range(place - after):
            chain[2 * total] = (total, total)
            total *= 2
        if window:
            chain[total + window] = (total, window)
        total, place = total + window, after
    return chain


def chain(number: int) -> Chain:
    """An addition chain (`Chain`) from 1 to `number`, the one of several that takes the least time by `_cost`."""
    return min((_windows(number, width) for width in range(1, 6)), key=_cost)


def _cost(sums: Chain) -> int:
    """The time that the addition chain `sums` takes, in arbitrary units: a doubling counts 1, any other sum 2."""
    return sum(1 + (one != other) for one, other in sums.values())


def _above(step: _Step, grid: SignedGrid, low: float, high: float, released: int) -> tuple[Array, Array]:
    """A law that is larger in the convex order than that of the sum, over the `released` steps of an epoch, of the
    variable Z = Y - a Y' + more of a step (`_Step`), for upper bounds.

    Outputs outside [low, high] are left out. Returns the law's weights at the positive grid points, and what its mean
    lacks because the grid ends, for each ratio a.
    """
    sums = {1: (_spread(step, grid, low, high), np.zeros(len(step.a)))}
    for total, (m, n) in chain(released).items():
        weights, lost = grid.add(sums[m][0], sums[n][0])
        sums[total] = weights, sums[m][1] + sums[n][1] + lost
    weights, lost = sums[released]
    return weights.at[:, 0], lost


def _below(step: _Step, grid: SignedGrid, low: float, high: float, released: int) -> tuple[Array, float]:
    """The laws of the rounded sum, over the `released` steps of an epoch, of the variable Z = Y - a Y' + more of a
    step, whose events give lower bounds.

    Outputs outside [low, high] count in the outermost cells. Returns the laws, one for each of `Side.means`, from the
    lowest grid point to the highest, and a bound on the relative error of one step's weights in them.
    """
    first, wrong = _events(step, grid, low, high)
    events = {1: first}
    for total, (m, n) in chain(released).items():
        if m == n:
            events[total] = grid.add(events[m], events[n][:1], nearest=True)[0]
            continue
        # `total` steps are m steps and n others. `share` has one factor for each law of their sum: 1 for that without
        # any record, and for a law with a record, which is in one random step, the chance m/total that this is one of
        # the m.
        share = np.array([1.0, m / total, m / total])[: len(step.side.means), None]
        joint = grid.add(events[m] * share, events[n][:1], nearest=True)[0]
        other = grid.add(events[m][:1], events[n][1:] * (1 - share[1:]), nearest=True)[0]
        joint.at[:, :, 1:] += other.at
        joint.zero[1:] += other.zero
        events[total] = joint
    return events[released].rising(), wrong


def profile(
    side: Side,
    noise: float,
    epoch: int,
    released: int,
    loss: Array,
    reach: float,
    ratio: float,
    ends: Ends = "both",
) -> Profile:
    """Bounds from both sides on the divergences of the first `released` steps of an epoch, at the losses `loss` >= 0.

    Args:
        side: which law is compared with which.
        noise: the noise multiplier s.
        epoch: t, the number of steps of a whole epoch.
        released: how many steps of the epoch are released, at most t.
        loss: rising numbers l, the first of which is 0; divergences are bounded at the ratios e^l.
        reach: outputs farther than `reach` standard deviations from their means are left out, with probability at most
            2 released Phi(-reach).
        ratio: the spacing h of the grid of `signed`; the width of the bounds falls as its square.
        ends: which bounds are computed. The others are empty arrays in the result.
    """
    s, a = noise, np.exp(loss)
    low, high = -side.down - s * reach, side.up + s * reach
    grid = _grid(side, s, released, reach, ratio)
    if grid.count * len(loss) > _MOST_WEIGHTS or 2 * loss[-1] > 600:
        raise OverflowError("the noise is too little for the grid")
    step = _Step(side, s, a, (epoch - released) / released * -np.expm1(loss))
    size = math.ceil(len(a) / math.ceil(grid.count * len(a) / _AT_ONCE))
    steps = [step.at(slice(k, k + size)) for k in range(0, len(a), size)]
    rounding = 8 * (grid.count + 16) * 2.0**-53
    upper = p = q = np.zeros(0)
    wrong = 0.0
    if ends != "lower":
        above = [_above(part, grid, low, high, released) for part in steps]
        positive, lost = (np.concatenate([one[k] for one in above], axis=-1) for k in range(2))
        upper = (np.tensordot(grid.points, positive, axes=1) + lost) * step.unit / epoch
        upper *= math.exp(2 * released * rounding)
    if ends != "upper":
        below = [_below(part, grid, low, high, released) for part in steps]
        laws, wrong = np.concatenate([one[0] for one in below], axis=-1), max(one[1] for one in below)
        part = released / epoch
        laws = np.moveaxis(laws[::-1].cumsum(axis=0), 1, 0)
        p, q = (part * law + (1 - part) * laws[0] for law in (laws[side.up], laws[-1 if side.down else 0]))
        best = np.argmax(p - a * q, axis=0)[None]
        p, q = (np.take_along_axis(each, best, 0)[0] for each in (p, q))
    cut = 2 * released * float(ndtr(-reach))
    return Profile(loss, upper, p, q, cut, math.expm1(released * (wrong + 2 * rounding)))


def _grid(side: Side, s: float, released: int, reach: float, ratio: float) -> SignedGrid:
    """The grid for sums over `released` steps of the variable Z of a step.

    side: which laws are compared. s: the noise multiplier. reach: outputs farther than this many standard deviations
    from their means do not matter. ratio: the spacing h of the grid.
    """
    variance = math.expm1(1 / s**2) + (1 - math.exp(-(1 / s**2)) if side.up and side.down else 0.0)
    deviation = math.sqrt(variance * (2 if side.up and side.down else 1))
    high = side.up + s * reach
    largest = math.exp((2 * high - 1) / (2 * s * s)) if side.up else -math.expm1(-(2 * high + 1) / (2 * s * s))
    top = deviation * reach * math.sqrt(released)
    top = max(top if side.up else min(top, released), largest)
    least = ratio * min(deviation, 1.0)
    return SignedGrid(least, ratio, max(math.ceil(math.log(1.2 * top / least) / ratio), 2))


_LOSS_STEP = 2.5
"""The spacing of the losses at which divergences are computed, in standard deviations of an epoch's loss times `ratio`,
the spacing of the grid."""
_MOST_LOSSES = 300
"""Divergences are computed at this many losses at most."""


def _losses(side: Side, s: float, epoch: int, released: int, reach: float, near: float, ratio: float) -> Array:
    """The losses at which divergences of an epoch are computed, from 0 to beyond the largest one that matters.

    They are equally spaced up to `near` standard deviations of an epoch's loss, and then farther and farther apart.
    side: which laws are compared. s: the noise multiplier. epoch, released: the steps of an epoch, and how many of them
    are released. reach: outputs farther than this many standard deviations from their means do not matter. ratio: the
    spacing of the grid of density ratios.
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
        losses.append(
            losses[-1]
            + _LOSS_STEP * ratio * min(deviation + max(losses[-1] - near * deviation, 0.0), max(deviation, 1 / s))
        )
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
    ends: Ends = "both",
    work: float = math.inf,
) -> tuple[FinitePair, FinitePair]:
    """Finite pairs of laws that bound the first `released` steps of one epoch from above and from below.

    The first result has a pair that dominates (P, Q), with the record under P, and one that is dominated; the second
    has the same for (Q, P).

    noise: the noise multiplier s.
    epoch: t, the number of steps of a whole epoch, in one of which the record takes part.
    replaced: whether the record's contribution has the opposite sign under Q; else Q is without the record.
    reach: outputs farther than this many standard deviations from their means are left out.
    near: up to this many standard deviations of an epoch's loss the bounds are computed at equally spaced losses.
    ratio: the spacing h of the grid of density ratios; the distance between the pairs falls as its square.
    ends: which pairs are computed, "upper" (dominating), "lower" (dominated) or "both"; the others bound nothing.
    work: the most additions of two weights of laws on the grid that are made; where `ratio` would need more, the
    spacing is wider, up to 0.3.

    Raises:
        OverflowError: the noise multiplier is below 0.1, or the grid would be too long.
    """
    if noise < LEAST_EPOCH_NOISE:
        raise OverflowError("the noise is too little for the grid")
    sides = (Side(1, 1),) if replaced else (Side(1, 0), Side(0, 1))

    def losses(side: Side) -> Array:
        return _losses(side, noise, epoch, released, reach, near, ratio)

    def additions() -> float:
        weights = sum(_grid(side, noise, released, reach, ratio).count * len(losses(side)) for side in sides)
        return weights * (len(chain(released)) + 1) * math.log(2 / ratio) / ratio

    while additions() > work and ratio < _WIDEST_RATIO:
        ratio *= _WIDER
    found = [profile(side, noise, epoch, released, losses(side), reach, ratio, ends) for side in sides]
    forward = region(found[0], found[-1])
    return forward, forward if replaced else region(found[1], found[0])


@dataclass(frozen=True)
class Epoch(Stand):
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

    def refined(self, points: int, z: float) -> FinitePair:
        reach = math.ceil(-2 * float(ndtri_exp(log_ndtr(-z) - math.log(self.released)))) / 2
        near = min(reach, 4 + reach / math.sqrt(self.epochs))
        ratio, work = (0.15, _COARSE_WORK) if points <= 2**12 else (0.06, _WORK)
        return _pairs(self.noise, self.epoch, self.released, self.replaced, reach, near, ratio, work, self.end)[
            self.way
        ]


_COARSE_WORK, _WORK = 2e6, 2.5e7


@lru_cache(maxsize=16)
def _pairs(
    noise: float,
    epoch: int,
    released: int,
    replaced: bool,
    reach: float,
    near: float,
    ratio: float,
    work: float,
    end: Ends,
) -> tuple[FinitePair, FinitePair]:
    how = {"reach": reach, "near": near, "ratio": ratio, "work": work}
    return epoch_pairs(noise, epoch, released, replaced=replaced, ends=end, **how)
