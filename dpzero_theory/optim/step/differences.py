"""The points that a step asks for under each difference rule of `dpzero_theory.difference`, and what it makes of them.

A point is a pair (number of a direction u, shift): the losses at x + shift u. In place of a shift, None asks for the
derivatives of the losses along u at the weights x. The points of the K directions of a step, and a record's K numbers:

    central   x + lambda u_k and x - lambda u_k     (f(x + lambda u_k) - f(x - lambda u_k))/(2 lambda)
    forward   x, then x + lambda u_k                (f(x + lambda u_k) - f(x))/lambda
    exact     the derivatives along u_k at x        u_k^T grad f(x)

**Privacy.** Whatever the rule, a record's K numbers are functions of that record, the weights and public directions.
They are clipped jointly before anything is summed, so that sensitivity, noise and cost are the same for all rules.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.difference import DIFFERENCES
from dpzero_theory.optim.step.estimator import two_point_difference
from dpzero_theory.registry import Registry

Point = tuple[int, float | None]
"""(number of a direction, shift along it), where None asks for the derivative along it."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A difference rule as a run applies it: the points that it evaluates, and the differences from the results.

    Attributes:
        name: a name of `dpzero_theory.difference.DIFFERENCES`.
        points: (numbers of the K directions, lambda) -> the points that a step asks for.
        combine: (what was found at these points, shape (points, records); lambda) -> the differences, shape
            (records, K).
        rounded: lambda -> the factor by which an error in what is found, such as the rounding of a loss, can grow in a
            difference: 1/lambda, 2/lambda, or 1 for derivatives.
    """

    name: str
    points: Callable[[Sequence[int], float], list[Point]]
    combine: Callable[[Array, float], Array]
    rounded: Callable[[float], float]


def _both_sides(numbers: Sequence[int], smoothing: float) -> list[Point]:
    return [(number, shift) for number in numbers for shift in (smoothing, -smoothing)]


def _one_side(numbers: Sequence[int], smoothing: float) -> list[Point]:
    return [(numbers[0], 0.0), *((number, smoothing) for number in numbers)]


def _here(numbers: Sequence[int], smoothing: float) -> list[Point]:
    return [(number, None) for number in numbers]


def _central(found: Array, smoothing: float) -> Array:
    pairs = zip(found[::2], found[1::2], strict=True)
    return np.stack([two_point_difference(plus, minus, smoothing) for plus, minus in pairs], axis=1)


def _forward(found: Array, smoothing: float) -> Array:
    base, *shifted = found
    return np.stack([two_point_difference(plus, base, smoothing / 2) for plus in shifted], axis=1)


def _exact(found: Array, smoothing: float) -> Array:
    columns: Array = found.T
    return columns


RULES: Registry[Rule] = Registry("difference")
"""The rules by name, one for each of `dpzero_theory.difference.DIFFERENCES`."""
for _rule in (
    Rule(name="central", points=_both_sides, combine=_central, rounded=lambda smoothing: 1 / smoothing),
    Rule(name="forward", points=_one_side, combine=_forward, rounded=lambda smoothing: 2 / smoothing),
    Rule(name="exact", points=_here, combine=_exact, rounded=lambda smoothing: 1.0),
):
    RULES.register(_rule)


def require_smoothing(difference: str, smoothing: object) -> None:
    """Raise ValueError unless the smoothing lambda fits a difference rule, which is given by its name.

    It must be > 0 for a rule that shifts the weights, and 0 for one that does not. An unknown rule is refused too.
    """
    if DIFFERENCES[difference].smoothing:
        check.real("smoothing", smoothing, above=0)
    elif check.real("smoothing", smoothing, at_least=0) != 0:
        raise ValueError(
            f"smoothing must be 0 where difference is {difference!r}, which shifts no weights; got {smoothing!r}"
        )
