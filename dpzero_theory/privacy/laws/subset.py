"""Random allocation to k of t steps: a record takes part in a uniformly random set of k of the t steps of an epoch.

A lower bound on its cost is given by `subset_pairs`: for each of a few numbers c, the sum over an epoch of the losses
log(1 - c + c Y_i), rounded to a grid, is a function of the outputs, whose laws under P and Q are known. Here Y_i =
exp((2 x_i - 1)/(2 s^2)) is the density ratio of step i at its output x_i, with s the noise. Statements and proofs:
derivation.md.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.finite import FinitePair, joined
from dpzero_theory.privacy.laws.fourier import compose, spectrum
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import Law, log_law, log_sum, normal_mass

_GRID_POINTS, _EVENTS = 2**15, 2**10
"""The number of grid points for the sum of an epoch's losses, and the number of events {sum above a level} that are
used for the pair below."""
_FARTHEST_OF_GRID = 11.0
"""The grid reaches this far from the mean of the sum, and a step's outputs this far from theirs, in standard
deviations."""
_WEIGHT_ERROR = 1e-11
"""A bound on the relative rounding error of a weight or of the factor that undoes a tilt."""
_REMOVED, _REPLACED = [-0.25 * j for j in range(8)], [0.45 * j for j in range(-1, 7)]
"""For lower bounds some constants c are tried. These numbers are log(c/(1-c)) minus the same of (k-1)/t, in units of
1/s, for a record in k of t steps and noise s: first for relations in which the record is there or not, then for
replace-one."""
_LARGEST_LOGIT = 600.0
"""The largest absolute value of log(c/(1-c)) minus the same of (k-1)/t that is used, so that c/(1-c) is a float."""
_LEAST_CHANCE = 1e-18
"""If the probability that the record is in j of the released steps is below this, that j is left out: under P its
probability is dropped, and under Q it is added to the bounds."""


def counts(epoch: int, taken: int, released: int) -> list[tuple[int, float]]:
    """The law of the number j of the record's steps among the first `released` steps of an epoch, as (j, probability).

    The record has `taken` of the epoch's steps. The j that `_LEAST_CHANCE` leaves out are not in the law.
    """
    low, high = max(0, taken - (epoch - released)), min(taken, released)

    # Ratios of neighbouring probabilities, not log-gamma functions: those of 10^8 steps err by 1e-7 of a probability.
    j = np.arange(low, high, dtype=np.float64)
    ratios = (released - j) / (j + 1) * ((taken - j) / (epoch - released - taken + j + 1))
    logs = np.concatenate([[0.0], np.cumsum(np.log(ratios))])
    chances = np.exp(logs - logs.max())
    chances /= chances.sum()
    return [(low + i, float(chance)) for i, chance in enumerate(chances) if chance > _LEAST_CHANCE]


def _left_out(epoch: int, taken: int, released: int) -> float:
    """A bound on the total probability that `counts` leaves out of the law of the number of the record's released
    steps.

    epoch, taken, released: the steps of an epoch, how many of them have the record, and how many of them are released.
    """
    numbers = min(taken, released) - max(0, taken - (epoch - released)) + 1
    return (numbers - len(counts(epoch, taken, released))) * _LEAST_CHANCE


class _Steps:
    """The laws of one step's loss, rounded to multiples of `width`: first width, (first + 1) width, ...

    The loss is log(1 - c + c Y), with Y the step's density ratio, or the loss of the kind `replace` with sample rate c.
    pair: the pair with this loss, noise and c. released, taken: how many steps of an epoch are released, and how many
    have the record. replaced: whether neighbours replace a record. The grid of the sum of an epoch's losses has the
    same width and this number of `points`, and begins at the loss `bottom`.
    """

    def __init__(self, pair: Gaussian, released: int, taken: int, replaced: bool, points: int) -> None:
        s, (branch,) = pair.noise, pair.branches
        x = np.linspace(-_FARTHEST_OF_GRID * s - 1, _FARTHEST_OF_GRID * s + 1, 4001)
        level = pair.losses(branch, x)[0]
        weights = {m: np.exp(-(((x - m) / s) ** 2) / 2) for m in (-1, 0, 1)}
        mean = {m: float(w @ level / w.sum()) for m, w in weights.items()}
        variance = max(float(w @ (level - mean[m]) ** 2 / w.sum()) for m, w in weights.items() if m >= -replaced)
        room = _FARTHEST_OF_GRID * math.sqrt(variance * released) + float(level[-1] - mean[0])
        self.bottom = released * mean[0] - room + (taken * (mean[-1] - mean[0]) if replaced else 0.0)
        self.width = (released * mean[0] + taken * (mean[1] - mean[0]) + room - self.bottom) / points
        self.points = points
        self.first = round(float(level[0]) / self.width)
        last = round(float(level[-1]) / self.width)
        levels: Array = self.width * (np.arange(self.first, last, dtype=np.float64) + 0.5)
        edges = pair.inverse(branch, levels)
        self._edges = np.concatenate([[-np.inf], edges, [np.inf]]) / s
        self._s = s

    def masses(self, mean: int, sign: int) -> Array:
        """Bounds on the masses of the rounded losses if the output has the law N(mean, s^2), where s is the noise.

        They are lower bounds if sign is -1, and upper bounds if it is 1.
        """
        ends = self._edges - mean / self._s
        mass, error = normal_mass(ends[:-1], ends[1:])
        return np.maximum(mass + sign * error, 0.0)


def _first(steps: _Steps, mean: int, released: int, chances: list[tuple[int, float]]) -> tuple[Array, float]:
    """Lower bounds on the law of the sum of the `released` steps' losses, modulo the length of the grid; and a bound on
    the Euclidean norm of their rounding errors.

    The outputs of j of the steps have the mean `mean`, those of the others the mean 0; `chances` is the law of j.
    """
    still, used = (spectrum(steps.masses(m, -1), steps.first, steps.points) for m in (0, mean))
    start = math.floor(steps.bottom / steps.width)
    total, wrong = np.zeros(steps.points), 0.0
    for j, chance in chances:
        law, error = compose([(used, j), (still, released - j)], start)
        total, wrong = total + chance * law, wrong + chance * error
    return total, wrong


def _second(
    steps: _Steps, mean: int, released: int, chances: list[tuple[int, float]], sign: int
) -> tuple[Array, Array, float]:
    """Upper bounds on the law of the sum of the `released` steps' losses, whose laws are tilted by e^{sign loss} and
    composed.

    The outputs of j of the steps have the mean `mean`, those of the others the mean 0; `chances` is the law of j. It
    returns the bounds, a bound on the rounding error of each (for a sum of several the squares add), and a bound on the
    mass of the sums beyond the grid.
    """
    start = math.floor(steps.bottom / steps.width)
    points = (steps.first + np.arange(len(steps.masses(0, 1)), dtype=np.float64)) * steps.width
    logs = {m: log_law(steps.masses(m, 1)) for m in (0, mean)}
    scale = {m: log_sum(log, sign, points) for m, log in logs.items()}
    spectra = {m: spectrum(np.exp(logs[m] + sign * points - scale[m]), steps.first, steps.points) for m in logs}
    at = (start + np.arange(steps.points, dtype=np.float64)) * steps.width
    total, wrong = np.zeros(steps.points), np.zeros(steps.points)
    for j, chance in chances:
        law, error = compose([(spectra[mean], j), (spectra[0], released - j)], start)
        factor = chance * np.exp(np.minimum(j * scale[mean] + (released - j) * scale[0] - sign * at, 700.0))
        total, wrong = total + factor * law, wrong + factor * error
    # Sums beyond that end of the grid where the tilt is small wrap round and then count too little. `tail` is
    # Chernoff's bound on their mass, the best of several rates.
    ends = (steps.bottom, steps.bottom + steps.points * steps.width)
    tail = 1.0
    for rate in np.geomspace(0.1, 30, 20) / (steps.points * steps.width / (2 * _FARTHEST_OF_GRID)):
        moment = max(
            j * log_sum(logs[mean], -sign * rate, points) + (released - j) * log_sum(logs[0], -sign * rate, points)
            for j, _ in chances
        )
        tail = min(tail, math.exp(min(moment + sign * rate * (ends[0] if sign > 0 else ends[1]), 0.0)))
    return total, wrong, tail


def _powers(
    first: tuple[Array, float], second: tuple[Array, Array, float], missing: float, sign: int
) -> tuple[Array, Array]:
    """Bounds on the probabilities of events, lower ones under P and upper ones under Q, the smallest event first.

    The events are {sum above x}, or {sum below x} if sign is -1, where the sum is that of an epoch's losses and x runs
    over a coarser grid.

    first: lower bounds on the law of the sum under P, and a bound on the Euclidean norm of their rounding errors, as
        `_first` returns them.
    second: upper bounds on that law under Q, a bound on the rounding error of each, and a bound on the mass beyond the
        grid, as `_second` returns them.
    missing: a bound on the probability that is left out, which is added under Q.
    """
    group = len(first[0]) // _EVENTS
    p = (first[0].reshape(-1, group).sum(axis=1) - math.sqrt(group) * first[1]) * (1 - _WEIGHT_ERROR)
    law, wrong = (np.minimum(each, 1.0).reshape(-1, group) for each in second[:2])
    q = (law.sum(axis=1) + np.sqrt((wrong**2).sum(axis=1))) * (1 + _WEIGHT_ERROR)
    return np.cumsum(np.maximum(p, 0.0)[::-sign]), np.minimum(np.cumsum(q[::-sign]) + second[2] + missing, 1.0)


def _pair(powers: list[tuple[Array, Array]]) -> FinitePair:
    """The pair of laws with finitely many outcomes that is dominated, from probabilities of events under P and under Q.

    P is the first law of the pair that is bounded, Q the second. powers: lists of such probabilities, as `_powers`
    returns them. Events for which another one has more P and less Q are dropped; the rest are joined until P/Q falls
    from each to the next.
    """
    p, q = (np.concatenate([one[k] for one in powers]) for k in (0, 1))
    order = np.lexsort((-p, q))
    p, q = p[order], q[order]
    better = p > np.maximum.accumulate(np.concatenate([[0.0], p[:-1]]))
    p, q = p[better], q[better]
    segments = joined(zip(np.diff(p, prepend=0.0).tolist(), np.diff(q, prepend=0.0).tolist(), strict=True))
    p, q = np.array(segments).T[:, ::-1]
    return FinitePair(np.log(p) - np.log(q), p, 0.0, p, q)


@lru_cache(maxsize=8)
def subset_pairs(
    noise: float, epoch: int, taken: int, released: int, *, replaced: bool, points: int = _GRID_POINTS
) -> tuple[FinitePair, FinitePair]:
    """Two results, each with a finite pair of laws whose delta is at most that of the first `released` steps of one
    epoch.

    The first is for (P, Q), with the record under P, and the second for (Q, P). They bound from below only.

    noise: the noise multiplier s.
    epoch, taken: t and k, 2 <= k < t: the record is in k of the t steps.
    replaced: whether the record's contributions have the opposite sign under Q; else Q is without the record.
    points: the number of grid points for the sum of an epoch's losses, a power of two, `_EVENTS` or more.
    """
    present = counts(epoch, taken, released)
    absent = present if replaced else [(0, 1.0)]
    kind, other, beyond = ("replace", -1, _REPLACED) if replaced else ("remove", 1, _REMOVED)
    missing = _left_out(epoch, taken, released)
    forward, backward = [], []
    for shift in beyond:
        odds = (taken - 1) / (epoch - taken + 1) * math.exp(min(max(shift / noise, -_LARGEST_LOGIT), _LARGEST_LOGIT))
        steps = _Steps(Gaussian(kind, odds / (1 + odds), noise), released, taken, replaced, points)
        there = _first(steps, 1, released, present), _second(steps, other, released, absent, 1)
        forward.append(_powers(*there, missing, 1))
        if not replaced:
            back = _first(steps, 1, released, absent), _second(steps, 1, released, present, -1)
            backward.append(_powers(*back, missing, -1))
    first = _pair(forward)
    return first, _pair(backward) if backward else first


@dataclass(frozen=True)
class Subset(Law):
    """The first `released` of the `epoch` steps of an epoch in which the record has `taken` steps, from below.

    way: 0 for (P, Q), 1 for (Q, P). The other arguments are those of `subset_pairs`.
    """

    noise: float
    epoch: int
    taken: int
    released: int
    replaced: bool
    way: int
    infinite = 0.0

    def refined(self, points: int, z: float) -> FinitePair:
        count = _GRID_POINTS if points > 2**12 else 2**12
        kind = self.noise, self.epoch, self.taken, self.released
        return subset_pairs(*kind, replaced=self.replaced, points=count)[self.way]
