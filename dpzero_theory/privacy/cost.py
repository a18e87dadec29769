"""What steps cost, in a form in which the costs of different steps add up."""

import math
from dataclasses import dataclass, replace

from dpzero_theory.privacy.laws.law import Law

Parts = tuple[tuple[Law, int], ...]
"""A composition: the law of one release of each kind, with the number of such releases."""
Directions = tuple[Parts, Parts]
"""Compositions for the two orders of neighbouring data sets: first with the record under P, then under Q."""
Curve = tuple[tuple[float, float], ...]
"""A bound on Renyi divergences: pairs (t, K) with rising t > 0, where t times the divergence of order 1 + t is at most
K."""


@dataclass(frozen=True)
class Cost:
    """What a number of steps cost. Costs are added with `+`, also of steps that were chosen adaptively.

    Attributes:
        above: laws that dominate the steps.
        below: laws that some data attain, for lower ends; nothing if none are known.
        squares: mu^2 of plain Gaussian releases, which are in neither: for upper ends, and for lower ends.
        ratio: G >= 0 such that probabilities of events are within a factor e^G of those of the laws.
        pure: (upper, lower) bounds on the pure epsilon of all steps; the first is infinite if there is none.
        apart: the pure epsilon of steps that are in no law.
        zcdp: (rho, xi) of steps whose Renyi divergence of order a is at most xi + rho a, of which nothing else is
            known.
        renyi: of steps of which only Renyi divergences at some orders are known, these divergences.
        unamplified: mu^2 of plain Gaussian releases that cost at least what all steps do; infinite if none are known.
    """

    above: Directions = ((), ())
    below: Directions = ((), ())
    squares: tuple[float, float] = (0.0, 0.0)
    ratio: float = 0.0
    pure: tuple[float, float] = (math.inf, 0.0)
    apart: float = 0.0
    zcdp: tuple[float, float] = (0.0, 0.0)
    renyi: tuple[Curve, ...] = ()
    unamplified: float = math.inf

    @classmethod
    def of(cls, first: Law, second: Law | None = None, *, count: int) -> "Cost":
        """The cost of `count` releases with these laws in the two directions, which data attain. None: the first."""
        made: Directions = (((first, count),), ((second or first, count),))
        return cls(made, made)

    @classmethod
    def plain(cls, mu: float) -> "Cost":
        """The cost of releases that are exactly mu-GDP."""
        return cls(squares=(mu * mu, mu * mu), unamplified=mu * mu)

    def bounding(self, below: "Cost | None" = None) -> "Cost":
        """The same cost as an upper bound only, with the lower ends of `below`, or none."""
        other = below or NOTHING
        return replace(self, below=other.below, squares=(self.squares[0], other.squares[1]))

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            above=(self.above[0] + other.above[0], self.above[1] + other.above[1]),
            below=(self.below[0] + other.below[0], self.below[1] + other.below[1]),
            squares=(_up(self.squares[0], other.squares[0]), self.squares[1] + other.squares[1]),
            ratio=self.ratio + other.ratio,
            pure=(_up(self.pure[0], other.pure[0]), self.pure[1] + other.pure[1]),
            apart=self.apart + other.apart,
            zcdp=(_up(self.zcdp[0], other.zcdp[0]), _up(self.zcdp[1], other.zcdp[1])),
            renyi=self.renyi + other.renyi,
            unamplified=_up(self.unamplified, other.unamplified),
        )

    @property
    def closed(self) -> bool:
        """Whether plain Gaussian releases are all that is composed."""
        return self.squares[0] < math.inf and not (any(self.above) or any(self.zcdp) or self.renyi)

    @property
    def method(self) -> str:
        """How delta and epsilon are computed."""
        return "closed form" if self.closed else "grid"


def _up(one: float, other: float) -> float:
    """The sum of two numbers, rounded up."""
    return math.nextafter(one + other, math.inf) if one and other else one + other


NOTHING = Cost(pure=(0.0, 0.0), unamplified=0.0)
"""The cost of no steps."""
UNKNOWN = Cost(squares=(math.inf, 0.0))
"""The cost of steps of which no upper bound is known."""
