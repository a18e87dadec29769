"""Difference rules: how a record's change of loss along a random direction is computed.

A step of DPZero needs one number for each record and each of its K directions u_k: how fast the record's loss f changes
along u_k at the weights x. A rule says at which weights f is evaluated, with the smoothing lambda > 0:

    central   (f(x + lambda u_k) - f(x - lambda u_k))/(2 lambda)    2 K evaluations a step, the rule of the paper
    forward   (f(x + lambda u_k) - f(x))/lambda                     K + 1 evaluations: f(x) serves all directions
    exact     u_k^T grad f(x), by forward-mode differentiation      no lambda; f(x) and K derivatives

If f is ell-smooth, central and forward differences differ from u^T grad f(x) by at most (ell lambda/2)||u||^2. So one
theorem serves all rules; the exact rule is lambda = 0 in it. A record's K numbers are clipped jointly before they are
summed, so sensitivity, noise and privacy cost are the same for all rules.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.registry import Registry

Point = tuple[int, float | None]
"""A pair (index of a direction u, shift) requests the records' losses at the weights x + shift u. A pair (index, None)
requests the derivatives of the losses along u at x."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A difference rule: how a record's change of loss along a direction is computed.

    Attributes:
        name: the rule's name in plans, commands and result files.
        points: a function from the number K of directions to the number of evaluations of a record's loss in a step. A
            derivative along one direction counts as one evaluation, though it takes the time of one to two.
        at: a function of the K directions' indices in the run and the smoothing lambda. It returns what is to be
            computed, a list of `Point`: (index of u, shift) for the losses at x + shift u, where shift is lambda or
            -lambda, or 0 for the losses at x (with any index); (index, None) for the derivatives along u.
        combine: a function of the computed losses or derivatives, float64 of shape (entries of this list, records), and
            lambda. It returns the differences, already divided by lambda or 2 lambda, in an array of shape (records,
            K). NaN and infinities pass through; the algorithm's clip makes them finite.
        rounded: a function of lambda that returns the largest factor by which an error of a computed loss or derivative
            can grow in a difference: 1/lambda, 2/lambda, or 1 for derivatives.
        smoothing: True if the rule shifts the weights by lambda u; False for the exact rule, where lambda is 0.
    """

    name: str
    points: Callable[[int], int]
    at: Callable[[Sequence[int], float], list[Point]]
    combine: Callable[[Array, float], Array]
    rounded: Callable[[float], float]
    smoothing: bool = True

    def checked(self, smoothing: object) -> float:
        """Returns the smoothing lambda as a float if it is valid for this rule; else raises ValueError.

        It must be > 0 for a rule that shifts the weights, and 0 for the exact rule.
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
"""The difference rules by name: "central", "forward" and "exact"."""
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
