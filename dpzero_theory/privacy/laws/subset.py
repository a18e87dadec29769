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
from numpy.typing import NDArray

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.finite import FinitePair, dominated
from dpzero_theory.privacy.laws.fourier import Product, sums
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import Law, normal_mass

_GRID_POINTS, _EVENTS = 2**15, 2**10
"""The number of grid points for the sum of an epoch's losses, and the number of events {sum above a level} that are
used for the pair below."""
_FARTHEST_OF_GRID = 11.0
"""The grid reaches this far from the mean of the sum, and a step's outputs this far from theirs, in standard
deviations."""
_LOG_FOLDED, _LONGEST = -40.0, 2**20
"""The log of the share of a sum's law that is beyond the grid, and the most points of a grid."""
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
    kind, other, shifts = ("replace", -1, _REPLACED) if replaced else ("remove", 1, _REMOVED)
    missing = _left_out(epoch, taken, released)
    found: dict[int, list[tuple[Array, Array]]] = {1: [], -1: []}
    for shift in shifts:
        odds = (taken - 1) / (epoch - taken + 1) * math.exp(min(max(shift / noise, -_LARGEST_LOGIT), _LARGEST_LOGIT))
        pair = Gaussian(kind, odds / (1 + odds), noise)
        cells, width = _grid(pair, released, taken, replaced, points)
        masses = _masses(pair, cells, width)
        # The events are {sum above x} and, for (Q, P), {sum below x}, where the sum is that of an epoch's losses. P's
        # laws are not tilted, and Q's by e^{loss}, so that they are about P's.
        for way in (1,) if replaced else (1, -1):
            there, without = ((1, present), (other, absent))[::way]
            jobs: list[tuple[float, Product]] = []
            for tilt, sign, (mean, chances) in ((0.0, -1, there), (1.0, 1, without)):
                used, still = masses[mean, sign][::way], masses[0, sign][::way]
                jobs += [(tilt, [(used, j), (still, released - j)]) for j, _ in chances]
            laws = sums((way * cells)[::way], width, jobs, _LOG_FOLDED, _LONGEST)
            every = max(len(laws[0].at) // _EVENTS, 1)
            p = sum(chance * law.tails(-1)[::every] for (_, chance), law in zip(there[1], laws, strict=False))
            lost = zip(without[1], laws[len(there[1]) :], strict=True)
            q = sum(chance * law.tails(1)[::every] for (_, chance), law in lost)
            found[way].append((np.asarray(p), np.minimum(np.asarray(q) + missing, 1.0)))
    forward = _pair(found[1])
    return forward, forward if replaced else _pair(found[-1])


def _pair(powers: list[tuple[Array, Array]]) -> FinitePair:
    """The pair that is dominated, from lists of probabilities of events under P and under Q. Events for which another
    one has more P and less Q are dropped."""
    p, q = (np.concatenate([one[k] for one in powers]) for k in (0, 1))
    order = np.lexsort((-p, q))
    p, q = p[order], q[order]
    better = p > np.maximum.accumulate(np.concatenate([[0.0], p[:-1]]))
    nothing = np.zeros(0)
    return dominated((p[better][::-1], q[better][::-1]), (nothing, nothing))


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
