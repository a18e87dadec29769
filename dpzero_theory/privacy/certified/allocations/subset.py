"""Random allocation with k of t: each record takes part in k steps of an epoch of t, a uniformly random set of them.

From above: told a random partition of the steps into k blocks of sizes floor(t/k) and ceil(t/k), each with one of the
record's steps, an epoch is k allocations of one step in a block (`told`). From below: the sum of the rounded losses
log(1 - c + c Y_i) over an epoch is a function of the outputs, with laws known under P and Q, for each of a few c
(`subset_pairs`). Statements and proofs: derivation.md, section 12.
"""

import math
from functools import lru_cache

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.allocations.allocation import Run
from dpzero_theory.privacy.certified.allocations.epoch import difference
from dpzero_theory.privacy.certified.grids.convolution import compose, transform
from dpzero_theory.privacy.certified.laws.arithmetic import log_law, log_sum
from dpzero_theory.privacy.certified.laws.finite import FinitePair, joined
from dpzero_theory.privacy.certified.laws.pairs import Pair, inverse, losses

_SIZE, _GROUPS = 2**15, 2**10
_REACH = 11.0
"""Standard deviations of a sum, and of a step's output, that the grid holds."""
_ROUNDING = 1e-11
"""Relative error of weights and tilts, with room."""
_REMOVED, _REPLACED = [-0.25 * j for j in range(8)], [0.45 * j for j in range(-1, 7)]
"""By how much of 1/s the logit of each c that is tried is beyond that of (k-1)/t."""
_FARTHEST = 600.0
"""Of that, so that a number is left."""
_LEAST = 1e-18
"""Probability of a number of steps taken that is left out of P, and added to Q."""


def told(run: Run) -> list[Run]:
    """Allocations of one step an epoch that dominate the run; an incomplete epoch counts as a whole one."""
    size, longer = divmod(run.epoch, run.taken)
    blocks = ((size, run.taken - longer), (size + 1, longer))
    return [Run(run.noise_multiplier, t, t * count * run.epochs) for t, count in blocks if count]


def counts(epoch: int, taken: int, released: int) -> list[tuple[int, float]]:
    """(j, probability) of the number of `released` steps that are among the `taken` ones, where it is not tiny."""
    low, high = max(0, taken - (epoch - released)), min(taken, released)

    def log_chance(j: int) -> float:
        def choose(n: int, k: int) -> float:
            return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)

        return choose(released, j) + choose(epoch - released, taken - j) - choose(epoch, taken)

    chances = np.exp([log_chance(j) for j in range(low, high + 1)])
    chances /= chances.sum()
    return [(low + i, float(chance)) for i, chance in enumerate(chances) if chance > _LEAST]


def _left_out(epoch: int, taken: int, released: int) -> float:
    """The probability of all numbers that `counts` leaves out, at most."""
    numbers = min(taken, released) - max(0, taken - (epoch - released)) + 1
    return (numbers - len(counts(epoch, taken, released))) * _LEAST


class _Steps:
    """One step's laws on the grid of spacing H: masses under N(mean, s^2), and errors, at the integers from `first`."""

    def __init__(self, pair: Pair, released: int, taken: int, replaced: bool) -> None:
        s, (branch,) = pair.noise, pair.branches
        x = np.linspace(-_REACH * s - 1, _REACH * s + 1, 4001)
        level = losses(pair, branch, x, np.zeros(len(x)))[0]
        weights = {m: np.exp(-(((x - m) / s) ** 2) / 2) for m in (-1, 0, 1)}
        mean = {m: float(w @ level / w.sum()) for m, w in weights.items()}
        variance = max(float(w @ (level - mean[m]) ** 2 / w.sum()) for m, w in weights.items() if m >= -replaced)
        room = _REACH * math.sqrt(variance * released) + float(level[-1] - mean[0])
        self.bottom = released * mean[0] - room + (taken * (mean[-1] - mean[0]) if replaced else 0.0)
        self.width = (released * mean[0] + taken * (mean[1] - mean[0]) + room - self.bottom) / _SIZE
        self.first = round(float(level[0]) / self.width)
        last = round(float(level[-1]) / self.width)
        levels: Array = self.width * (np.arange(self.first, last, dtype=np.float64) + 0.5)
        edges = inverse(pair, branch, levels)
        self._edges = np.concatenate([[-np.inf], edges, [np.inf]]) / s
        self._s = s

    def masses(self, mean: int, sign: int) -> Array:
        """From below for sign -1, from above for 1."""
        ends = self._edges - mean / self._s
        mass, error = difference(ends[:-1], ends[1:])
        return np.maximum(mass + sign * error, 0.0)


def _first(steps: _Steps, mean: int, released: int, chances: list[tuple[int, float]]) -> tuple[Array, float]:
    """The law of the sum modulo the grid, `mean` in j of the steps and 0 in the others, and its Euclidean error."""
    still, used = (transform(steps.masses(m, -1), steps.first, _SIZE) for m in (0, mean))
    start = math.floor(steps.bottom / steps.width)
    total, wrong = np.zeros(_SIZE), 0.0
    for j, chance in chances:
        law, error = compose([(used, j), (still, released - j)], start)
        total, wrong = total + chance * law, wrong + chance * error
    return total, wrong / math.sqrt(_SIZE)


def _second(
    steps: _Steps, mean: int, released: int, chances: list[tuple[int, float]], sign: int
) -> tuple[Array, Array, float]:
    """(weights, their Euclidean error each, what may be beyond the grid) of the same law from above, by its tilt
    e^(sign loss)."""
    start = math.floor(steps.bottom / steps.width)
    points = (steps.first + np.arange(len(steps.masses(0, 1)), dtype=np.float64)) * steps.width
    logs = {m: log_law(steps.masses(m, 1)) for m in (0, mean)}
    scale = {m: log_sum(log, sign, points) for m, log in logs.items()}
    spectra = {m: transform(np.exp(logs[m] + sign * points - scale[m]), steps.first, _SIZE) for m in logs}
    at = (start + np.arange(_SIZE, dtype=np.float64)) * steps.width
    total, wrong = np.zeros(_SIZE), np.zeros(_SIZE)
    for j, chance in chances:
        law, error = compose([(spectra[mean], j), (spectra[0], released - j)], start)
        factor = chance * np.exp(np.minimum(j * scale[mean] + (released - j) * scale[0] - sign * at, 700.0))
        total, wrong = total + factor * law, wrong + factor * error / math.sqrt(_SIZE)
    # sums beyond the grid on the side of small tilts, folded in too lightly: Chernoff
    ends = (steps.bottom, steps.bottom + _SIZE * steps.width)
    tail = 1.0
    for rate in np.geomspace(0.1, 30, 20) / (_SIZE * steps.width / (2 * _REACH)):
        moment = max(
            j * log_sum(logs[mean], -sign * rate, points) + (released - j) * log_sum(logs[0], -sign * rate, points)
            for j, _ in chances
        )
        tail = min(tail, math.exp(min(moment + sign * rate * (ends[0] if sign > 0 else ends[1]), 0.0)))
    return total, wrong, tail


def _powers(
    first: tuple[Array, float], second: tuple[Array, Array, float], missing: float, sign: int
) -> tuple[Array, Array]:
    """(P, Q) of the sums on one side of each point of a coarser grid, from the largest losses on."""
    group = _SIZE // _GROUPS
    p = (first[0].reshape(-1, group).sum(axis=1) - math.sqrt(group) * first[1]) * (1 - _ROUNDING)
    law, wrong = (np.minimum(each, 1.0).reshape(-1, group) for each in second[:2])
    q = (law.sum(axis=1) + np.sqrt((wrong**2).sum(axis=1))) * (1 + _ROUNDING)
    return np.cumsum(np.maximum(p, 0.0)[::-sign]), np.minimum(np.cumsum(q[::-sign]) + second[2] + missing, 1.0)


def _pair(powers: list[tuple[Array, Array]]) -> FinitePair:
    """Of all events, the better ones: segments between them, joined until P/Q falls."""
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
    noise: float, epoch: int, taken: int, released: int, *, replaced: bool
) -> tuple[FinitePair, FinitePair]:
    """Pairs that the pairs (P, Q) and (Q, P) of one epoch dominate, the first `released` of its steps done.

    taken: k, 2 <= k < epoch. With `replaced` the record's contributions change their sign, else P is with the record.
    """
    present = counts(epoch, taken, released)
    absent = present if replaced else [(0, 1.0)]
    kind, other, beyond = ("replace", -1, _REPLACED) if replaced else ("remove", 1, _REMOVED)
    missing = _left_out(epoch, taken, released)
    forward, backward = [], []
    for shift in beyond:
        odds = (taken - 1) / (epoch - taken + 1) * math.exp(min(max(shift / noise, -_FARTHEST), _FARTHEST))
        steps = _Steps(Pair(kind, odds / (1 + odds), noise), released, taken, replaced)
        there = _first(steps, 1, released, present), _second(steps, other, released, absent, 1)
        forward.append(_powers(*there, missing, 1))
        if not replaced:
            back = _first(steps, 1, released, absent), _second(steps, 1, released, present, -1)
            backward.append(_powers(*back, missing, -1))
    return _pair(forward), _pair(backward or forward)
