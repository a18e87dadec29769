"""Bounds a pair of distributions (P, Q) from both sides by pairs with finitely many outcomes.

One pair dominates another one if its delta is at least as large at every epsilon. For an upper bound, take the
divergences P(A) - a Q(A), maximised over events A, at finitely many ratios a, and join them by straight lines: these
are the divergences of a finite pair that dominates (P, Q). For a lower bound, take the points (Q(A), P(A)) of finitely
many events A: joined by straight lines they are the power function of a finite pair that (P, Q) dominates, because
tests may be randomised. Derived in derivation.md, section 4.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from scipy.special import ndtr

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.law import EVERY, UNIT, Cells, Law, Span, log_law, sketched

_ROUNDING = 1e-12
"""A bound on the relative rounding error of a finite pair's probabilities."""
_MOST_CELLS = 2**20  # the most cells of a grid over which the losses of a pair may spread


Ends: TypeAlias = Literal["both", "lower", "upper"]
"""Which bounds on a number the caller uses. With "lower" or "upper" the other bound is true but may be trivial, such as
0 or infinity."""


@dataclass(frozen=True, eq=False)
class FinitePair(Law):
    """Two pairs of discrete distributions that bound the delta of a release, whose output has the distribution P or Q
    on two neighbouring data sets: the first pair from above, the second one from below.

    Attributes:
        loss, mass: the finite privacy losses of the first pair, in rising order, and their probabilities under its
            first distribution.
        infinite: the probability of an infinite loss under the first distribution of the first pair.
        p, q: the probabilities > 0 of outcomes of the second pair under its two distributions.
    """

    loss: Array
    mass: Array
    infinite: float
    p: Array
    q: Array
    # Attributes of `grid._Curve`, in whose place a single release can stand: no tilt, bounds at every epsilon.
    tau, known = 0.0, -math.inf

    def upper(self, epsilon: float) -> float:
        """Returns an upper bound on the delta, at `epsilon`, of the release that this object bounds."""
        beyond = self.loss > epsilon
        shares = -np.expm1(epsilon - self.loss[beyond]) + 8 * UNIT * (abs(epsilon) + np.abs(self.loss[beyond]))
        return min((self.infinite + float(self.mass[beyond] @ shares)) * (1 + 2 * _ROUNDING) + 5e-324, 1.0)

    def lower(self, epsilon: float) -> float:
        """Returns a lower bound on the delta, at `epsilon`, of the release that this object bounds."""
        with np.errstate(over="ignore"):
            more = self.q * math.exp(min(epsilon, 700.0)) * (1 + 2 * _ROUNDING)
        return float(np.sum(np.maximum(self.p * (1 - 2 * _ROUNDING) - more, 0.0))) if epsilon < 700 else 0.0

    def largest(self, z: float) -> float:
        most = float(np.max(self._within(z)[0], initial=-math.inf))
        return most + 1e-12 * abs(most) if math.isfinite(most) else most

    def _within(self, z: float) -> tuple[Array, Array, Array, Array]:
        # `loss`, `mass`, `p` and `q` without the outcomes with the largest losses, whose `mass` is at most Phi(-z) in
        # all, Phi being the normal distribution function
        kept = max(int(np.sum(np.cumsum(self.mass[::-1])[::-1] > float(ndtr(-z)))), 1)
        near = np.log(self.p) - np.log(self.q) <= (self.loss[kept - 1] if kept < len(self.loss) else math.inf)
        return self.loss[:kept], self.mass[:kept], self.p[near], self.q[near]

    def sketch(self, z: float) -> tuple[Array, Array]:
        loss, mass, _, _ = self._within(z)
        loss, mass = sketched(loss, mass)
        return loss, log_law(mass)

    def cells(self, z: float, tau: float, width: float, lowest: float, span: Span = EVERY) -> Cells:
        loss, mass, p, q = self._within(z)
        ratio, inside = np.log(p) - np.log(q), (span[0] < loss) & (loss <= span[1])
        p, q = (one[(span[0] < ratio) & (ratio <= span[1])] for one in (p, q))
        loss, mass = np.maximum(loss[inside], lowest), mass[inside]
        low = np.floor(loss / width).astype(np.int64)
        share = np.clip(np.expm1(low * width - loss) / math.expm1(-width) + 4 * UNIT, 0.0, 1.0)
        log_p, log_q = np.log(p), np.log(q)
        nearest = np.rint(np.maximum(log_p - log_q, lowest) / width).astype(np.int64)
        terms = (
            (low, log_law(mass * (1 - share)) + tau * width * low),
            (low + 1, log_law(mass * share) + tau * width * (low + 1)),
            (nearest, log_p + tau * width * nearest),
            (nearest, log_q + (1 + tau) * width * nearest),
        )
        first = min(int(at.min(initial=0)) for at, _ in terms)
        count = max(int(at.max(initial=0)) for at, _ in terms) - first + 1
        if count > _MOST_CELLS:
            raise OverflowError("too many cells")
        # The scale depends on `mass` alone, so that upper bounds do not depend on whether there are `p` and `q`.
        log_scale = max(float(np.max(log_weight, initial=-math.inf)) for _, log_weight in terms[:2])
        log_scale = log_scale if log_scale > -math.inf else 0.0
        below, above, kept_p, kept_q = (
            np.asarray(np.bincount(at - first, np.exp(log_weight - log_scale), count), dtype=np.float64)
            for at, log_weight in terms
        )
        largest = width * max(abs(first), abs(first + count))
        error = _ROUNDING + UNIT * (16 + 8 * (1 + tau) * largest)
        return Cells(first, below + above, kept_p, kept_q, 0.0, error, log_scale)


def partitioned(p: Array, q: Array, least: Array, most: Array, p_error: Array, q_error: Array) -> FinitePair:
    """Returns a `FinitePair` that bounds the delta of a pair (P, Q) of distributions, from a partition of the outputs
    into sets.

    Args:
        p, q: the probabilities of the sets under P and under Q.
        least, most: the smallest and the largest loss log dP/dQ in each set. If `least` is -inf, all of P's probability
            in the set counts at the largest loss; if `most` is inf, all of it counts as an infinite loss.
        p_error, q_error: bounds on the absolute errors of p and q.
    """
    # The probabilities of the sets are a pair that (P, Q) dominates, as an observer who sees only the set knows less.
    # Split between the least and the largest loss in each set, with P's and Q's mass kept, they dominate (P, Q).
    more_p, less_q = p + p_error, np.maximum(q - q_error, 0.0)
    split = np.isfinite(least) & np.isfinite(most) & (most > least)
    bottom, width = np.where(split, least, 0.0), np.where(split, most - least, 1.0)
    at_bottom = np.exp(np.minimum(log_law(less_q) + bottom, 0.0))
    rounding = 8 * UNIT * (1 + np.abs(bottom)) * (more_p + at_bottom)
    up = np.where(split, (more_p - at_bottom + rounding) / -np.expm1(-width), more_p)
    up = np.clip(up, 0.0, more_p)
    ends = np.isfinite(most)
    low = ends & split
    loss = np.concatenate([least[low], most[ends]])
    mass = np.concatenate([(more_p - up)[low], up[ends]])
    order = np.argsort(loss, kind="stable")
    order = order[mass[order] > 0]
    less_p, more_q = p - p_error, q + q_error
    seen = (less_p > 0) & (more_q > 0)
    infinite = float(np.sum(more_p[~ends]))
    return FinitePair(loss[order], mass[order], infinite, less_p[seen], more_q[seen])


def _convex(points_x: Array, points_y: Array) -> list[int]:
    # The indices of the corners of the lower convex hull of points, in rising order of x; `points_x` must rise.
    kept: list[int] = []
    x, y = points_x.tolist(), points_y.tolist()  # Python's floats are several times as fast in a loop
    for k in range(len(x)):
        while len(kept) > 1:
            i, j = kept[-2:]
            if (y[j] - y[i]) * (x[k] - x[j]) < (y[k] - y[j]) * (x[j] - x[i]):
                break
            kept.pop()
        kept.append(k)
    return kept


def _weights(loss: Array, above: Array, at_zero: float) -> tuple[Array, Array, Array, float]:
    """Returns the half with positive losses of a finite pair that dominates (P, Q): its losses > 0, their probabilities
    under its first and under its second distribution, and the probability of an infinite loss under the first. `above`
    has for each l of `loss`, which rises from 0, an upper bound on P(A) - e^l Q(A) for every event A; at 0 `at_zero` is
    used."""
    ratio, height = np.exp(loss), np.concatenate([[at_zero], np.minimum.accumulate(above[1:])])
    kept = _convex(ratio, height)
    ratio, height, loss = ratio[kept], height[kept], loss[kept]
    slope = np.append(np.diff(height) / np.diff(ratio), 0.0)
    q = np.diff(slope)
    return loss[1:], q * ratio[1:], q, float(height[-1])


def dominating(forward: tuple[Array, Array], backward: tuple[Array, Array]) -> FinitePair:
    """Returns a finite pair whose delta is at least that of a pair (P, Q) at every epsilon. Use only its method
    `upper`: `lower` does not bound the delta of (P, Q).

    Args:
        forward: two arrays of the same shape: losses l that rise from 0, and for each l an upper bound on P(A) - e^l
            Q(A) that holds for every event A.
        backward: two such arrays with P and Q exchanged.
    """
    at_zero = min(float(forward[1][0]), float(backward[1][0]))
    loss, p, _, infinite = _weights(*forward, at_zero)
    loss_back, _, p_back, _ = _weights(*backward, at_zero)
    middle = max(1.0 - float(np.sum(p) + np.sum(p_back)) - infinite, 0.0)
    losses = np.concatenate([-loss_back[::-1], [0.0], loss])
    mass = np.concatenate([p_back[::-1], [middle], p])
    losses, mass = losses[mass > 0], mass[mass > 0]
    return FinitePair(losses, mass, infinite, mass, mass * np.exp(-losses))


def dominated(p: Array, q: Array) -> FinitePair:
    """Returns a finite pair whose delta is at most that of a pair (P, Q) at every epsilon. Use only its method `lower`:
    `upper` does not bound the delta of (P, Q).

    Args:
        p: lower bounds on the probabilities under P of some events, such as rejection regions of tests, in any order.
        q: upper bounds on the probabilities of the same events under Q, an array of the same shape.
    """
    order = np.lexsort((-p, q))
    p = np.concatenate([[0.0], p[order] * (1 - _ROUNDING), [1.0]])
    q = np.concatenate([[0.0], np.minimum(q[order] * (1 + _ROUNDING), 1.0), [1.0]])
    # A point inside the hull is left out. That merges two outcomes, which tells less: (P, Q) dominates that pair too.
    kept = _convex(q, -p)
    p, q = np.diff(p[kept]), np.diff(q[kept])
    seen = (p > 0) & (q > 0)
    p, q = p[seen], q[seen]
    return FinitePair((np.log(p) - np.log(q))[::-1], p[::-1], 0.0, p, q)
