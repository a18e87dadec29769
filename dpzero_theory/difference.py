"""Difference rules: how a record's change of loss along a direction u is found, for the theory and for the optimiser.

A step of DPZero needs one number for each record and each of its K directions u_k: how fast the record's loss f changes
along u_k at the weights x. A rule says at which points f is evaluated to find it, with smoothing lambda > 0:

    central   (f(x + lambda u_k) - f(x - lambda u_k))/(2 lambda)    2 K points a step, the rule of the paper
    forward   (f(x + lambda u_k) - f(x))/lambda                     K + 1 points: f(x) serves all directions
    exact     u_k^T grad f(x), by forward-mode differentiation      no lambda; f(x) and K derivatives

Where f is ell-smooth, central and forward differences differ from u^T grad f(x) by at most (ell lambda/2)||u||^2, and
the exact rule does not differ at all. So all rules have one theorem, in which the exact one is lambda = 0.

Whatever the rule, a record's K numbers are functions of that record, the weights and public directions. They are
clipped jointly before anything is summed, so sensitivity, noise and cost are the same for all rules.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.registry import Registry

Point = tuple[int, float | None]
"""A pair (index of a direction u, shift), which asks for the records' losses at the weights x + shift u; or a pair
(index, None), which asks for the derivatives of the losses along u at x."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference rule: how a record's change of loss along a direction is found.

    Attributes:
        name: the rule's name in plans, commands and result files.
        points: a function of K that returns how many evaluations of a record's loss a step with K directions takes: the
            entries of `at`, and for derivatives the loss at x besides, which they compute too. A derivative along one
            direction counts as one evaluation, though it takes the time of one to two.
        at: a function of the K directions' indices in the run and lambda that returns what is to be computed, a list of
            `Point`: pairs (index of u, shift) for losses at x + shift u, where shift is lambda, -lambda or, with any
            index, 0 for the point x; and (index, None) for derivatives along u.
        combine: a function of what was computed for this list, losses or derivatives as float64 of shape (entries,
            records) in its order, and lambda, that returns the differences, already divided by lambda or 2 lambda,
            shape (records, K). NaN and infinities pass through; the clip of the algorithm makes them finite.
        rounded: a function of lambda that returns the factor by which an error of a computed loss or derivative, such
            as its rounding, can grow in a difference: 1/lambda, 2/lambda, or 1 for derivatives.
        smoothing: whether the rule shifts the weights by lambda u. The exact rule does not, and takes lambda = 0.
    """

    name: str
    points: Callable[[int], int]
    at: Callable[[Sequence[int], float], list[Point]]
    combine: Callable[[Array, float], Array]
    rounded: Callable[[float], float]
    smoothing: bool = True

    def checked(self, smoothing: object) -> float:
        """Return the smoothing lambda as a float if it fits this rule; else raise ValueError.

        The smoothing must be > 0 for a rule that shifts the weights, and 0 for a rule that does not.
        """
        if self.smoothing:
            return check.real("smoothing", smoothing, above=0)
        if check.real("smoothing", smoothing, at_least=0) != 0:
            rule = f"0 where difference is {self.name!r}, which shifts no weights"
            raise ValueError(f"smoothing must be {rule}; got {smoothing!r}")
        return 0.0


def _central(found: Array, smoothing: float) -> Array:
    # The rows of `found` are the losses at x + lambda u and at x - lambda u in turn, for one direction u after another
    with np.errstate(invalid="ignore", over="ignore"):
        return np.ascontiguousarray(((found[::2] - found[1::2]) / (2 * smoothing)).T)


def _forward(found: Array, smoothing: float) -> Array:
    # The first row of `found` has the losses at x, and each other row those at x + lambda u for one direction u
    with np.errstate(invalid="ignore", over="ignore"):
        return np.ascontiguousarray(((found[1:] - found[0]) / smoothing).T)


DIFFERENCES: Registry[Difference] = Registry("difference")
"""The difference rules by name."""
for _rule in (
    Difference(
        name="central",
        points=lambda k: 2 * k,
        at=lambda numbers, smoothing: [(number, shift) for number in numbers for shift in (smoothing, -smoothing)],
        combine=_central,
        rounded=lambda smoothing: 1 / smoothing,
    ),
    Difference(
        name="forward",
        points=lambda k: k + 1,
        at=lambda numbers, smoothing: [(numbers[0], 0.0), *((number, smoothing) for number in numbers)],
        combine=_forward,
        rounded=lambda smoothing: 2 / smoothing,
    ),
    Difference(
        name="exact",
        points=lambda k: k + 1,
        at=lambda numbers, smoothing: [(number, None) for number in numbers],
        combine=lambda found, smoothing: found.T,
        rounded=lambda smoothing: 1.0,
        smoothing=False,
    ),
):
    DIFFERENCES.register(_rule)
