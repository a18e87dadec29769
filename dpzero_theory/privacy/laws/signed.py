"""Sums of independent real variables on a grid of the points 0 and +-g e^{kh}, k = 0, ..., N - 1.

The smallest positive point is g and the ratio of neighbours is e^h. The sum of two grid points lies between two
neighbours of the grid. Spread to both so that its mean is kept, it gives a law that is larger in the convex order, for
upper bounds of divergences; moved to one of them, it gives the probabilities of certain sets of outputs, each of which
bounds a divergence from below. Where the sum lies between its
neighbours depends only on the difference of the two points' indices k, so that an addition of laws is a loop over
differences. All terms are positive, so errors stay relative, however small a weight is. The statements are derived in
derivation.md, section 7.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpzero_theory.check import Array

_SHARE_ERROR = 1e-14
"""A bound on the rounding error of the share of a weight that moves to the higher of two grid points. It is added to
each share, so that the mean is never lowered."""


@dataclass(frozen=True)
class Weights:
    """The weights of one or several laws on a `SignedGrid`.

    at[k, 0] is the weight at the k-th positive point, at[k, 1] that at the k-th negative one, and `zero` that at 0. If
    there are several laws, further axes of both arrays number them.
    """

    at: Array
    zero: Array

    @classmethod
    def of(cls, rising: Array) -> "Weights":
        """Make the weights from the array `rising`, whose first axis runs from the lowest grid point to the highest."""
        n = len(rising) // 2
        return cls(np.ascontiguousarray(np.stack([rising[n + 1 :], rising[:n][::-1]], axis=1)), rising[n])

    def __add__(self, other: "Weights") -> "Weights":
        return Weights(self.at + other.at, self.zero + other.zero)

    def __mul__(self, factor: Array) -> "Weights":
        return Weights(self.at * factor, self.zero * factor)

    def __getitem__(self, laws: slice) -> "Weights":
        """The weights of those laws that the slice `laws` selects, along the first of the axes that number laws."""
        return Weights(self.at[:, :, laws], self.zero[laws])

    def rising(self) -> Array:
        """One array of all weights, whose first axis runs from the lowest grid point to the highest."""
        return np.concatenate([self.at[::-1, 1], self.zero[None], self.at[:, 0]])


@dataclass(frozen=True)
class SignedGrid:
    """The grid of the points 0 and +-g e^{kh}, k = 0, ..., N - 1, where g = `least`, h = `ratio` and N = `count`."""

    least: float
    ratio: float
    count: int

    @cached_property
    def points(self) -> Array:
        """The positive points of the grid, from the smallest on."""
        return np.asarray(self.least * np.exp(self.ratio * np.arange(self.count)), dtype=np.float64)

    def _shares(self, sign: int) -> list[tuple[int, float]]:
        """For each d the place of the sum 1 + sign e^{-dh} between two points e^{kh}. The sum of any two grid points
        whose indices differ by d is this number times the larger of the two.

        An entry is the k for which the sum is between e^{kh} and e^{(k+1)h}, and the share of its weight that moves to
        e^{(k+1)h}. d runs from 0 on for sign 1 and from 1 on for sign -1, until the sum is within half a step of 1.
        """
        found = []
        for d in range(0 if sign > 0 else 1, self.count):
            value = math.log1p(sign * math.exp(-d * self.ratio)) / self.ratio
            if abs(value) < 0.5:
                break
            low = math.floor(value)
            found.append((low, math.expm1((value - low) * self.ratio) / math.expm1(self.ratio)))
        return found

    @cached_property
    def _same(self) -> list[tuple[int, float]]:
        return self._shares(1)

    @cached_property
    def _opposite(self) -> list[tuple[int, float]]:
        return self._shares(-1)

    def add(self, a: Weights, b: Weights, *, nearest: bool = False) -> tuple[Weights, Array]:
        """The law of the sum of two independent variables with the laws a and b.

        Each sum of two points is spread to its two neighbours on the grid, with its mean kept or raised a little. With
        `nearest` it goes to one neighbour, which depends on the two points only. A sum above the last grid point goes
        to that point, which lowers the mean.

        Returns the law, and the amount by which its mean is lowered so. Raises OverflowError if that amount is beyond
        floating-point numbers.
        """
        n, h, both = self.count, self.ratio, a is b
        at: Array = a.at * b.zero + b.at * a.zero
        # 0 is the sum of 0 and 0, and the sum of any point and its negative.
        zero: Array = a.zero * b.zero + (a.at * b.at[:, ::-1]).sum(axis=(0, 1))
        lost = np.zeros(zero.shape)
        signs = np.array([_SHARE_ERROR, -_SHARE_ERROR]).reshape(2, *[1] * zero.ndim)
        # lowered[k] is the amount by which a sum falls that moves to the last grid point from k points beyond it.
        with np.errstate(over="ignore"):
            lowered = self.points[-1] * np.expm1(h * np.arange(2 * n + 2 + math.ceil(math.log(2) / h)))
        # Every product below is written into one of these arrays, because allocating new ones takes longer.
        room, more, moved = np.empty(at.shape), np.empty(at.shape), np.empty(at.shape)

        def put(index: int, weight: Array) -> None:
            inside = min(max(n - index, 0), len(weight))
            if inside < len(weight):
                first = max(index - (n - 1), 1)
                for value, row in zip(lowered[first : first + len(weight) - inside], weight[inside:], strict=True):
                    at[n - 1] += row
                    if not nearest:
                        if value == math.inf:
                            raise OverflowError("a sum of density ratios is beyond floating-point numbers")
                        lost[...] += value * row[0]
            at[index : index + inside] += weight[:inside]

        def spread(index: int, weight: Array, share: Array | float) -> None:
            higher = np.multiply(weight, np.minimum(np.maximum(share + signs, 0.0), 1.0), out=moved[: len(weight)])
            weight -= higher
            put(index, weight)
            put(index + 1, higher)

        pairs = ((a.at, b.at),) if both else ((a.at, b.at), (b.at, a.at))
        for sign, shares in ((1, self._same), (-1, self._opposite)):
            for d, (low, share) in enumerate(shares, start=(1 - sign) // 2):
                weight = np.multiply(a.at[d:], b.at[: n - d, ::sign], out=room[: n - d])
                if d and both:
                    weight *= 2
                elif d:
                    weight += np.multiply(b.at[d:], a.at[: n - d, ::sign], out=more[: n - d])
                # The sum of the point i + d and of `sign` times the point i is between the points i + d + low and
                # i + d + low + 1. For the first `under` of the i it is between 0 and the smallest positive point, and
                # its weight goes to these two, or to the nearer of them with `nearest`.
                under = min(max(-low - d, 0), n - d)
                if under:
                    value = np.exp(h * np.arange(d, d + under)) * -math.expm1(-d * h)
                    value = value.reshape(under, *[1] * (at.ndim - 1))
                    near = weight[:under] * (np.rint(value) if nearest else np.clip(value + signs, 0.0, 1.0))
                    at[0] += near.sum(axis=0)
                    zero += np.maximum(weight[:under] - near, 0.0).sum(axis=(0, 1))
                if nearest:
                    put(d + under + low + round(share), weight[under:])
                else:
                    spread(d + under + low, weight[under:], share)
            far = (1 - sign) // 2 + len(shares)
            if far >= n:
                continue
            scale = np.exp(h * np.arange(n - far)).reshape(n - far, *[1] * (at.ndim - 1))
            for one, other in pairs:
                # This adds all pairs of points whose indices differ by `far` or more: their sums are next to the larger
                # point.
                others = other[: n - far, ::sign] * (1 + both)
                total = np.cumsum(others, axis=0)
                weight = np.multiply(one[far:], total, out=room[: n - far])
                if nearest:
                    put(far, weight)
                    continue
                ratio = np.cumsum(others * scale, axis=0) / (scale * math.exp(far * h))
                ratio = np.divide(ratio, total, out=np.zeros_like(ratio), where=total > 0)
                if sign > 0:
                    spread(far, weight, ratio / math.expm1(h))
                else:
                    spread(far - 1, weight, 1 + ratio / math.expm1(-h))
        return Weights(at, zero), lost
