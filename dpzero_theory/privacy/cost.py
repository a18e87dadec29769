"""What steps cost, in a form in which the costs of different steps add up."""

import math
from dataclasses import dataclass, replace

from dpzero_theory.privacy.grid import Parts
from dpzero_theory.privacy.laws.concentrated import MOST_RHO, Curve, concentrated_pair, curve_pair, summed
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import Law

Directions = tuple[Parts, Parts]
"""Compositions for the two orders of neighbouring data sets: first with the record under P, then under Q."""


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
    """mu^2 of plain Gaussian releases that cost at least what all steps do; infinite if none are known."""

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

    def times(self, count: int) -> "Cost":
        """The cost of `count` times as many steps, of laws alone."""
        above, below = (
            tuple(tuple((law, n * count) for law, n in parts) for parts in each) for each in (self.above, self.below)
        )
        return replace(self, above=above, below=below, unamplified=self.unamplified * count)  # type: ignore[arg-type]  # both have two directions

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            above=_both(self.above, other.above),
            below=_both(self.below, other.below),
            squares=_sum(self.squares, other.squares),
            ratio=self.ratio + other.ratio,
            pure=_sum(self.pure, other.pure),
            apart=self.apart + other.apart,
            zcdp=_sum(self.zcdp, other.zcdp),
            renyi=self.renyi + other.renyi,
            unamplified=_up(self.unamplified, other.unamplified),
        )

    @property
    def exact(self) -> bool:
        """Whether the upper and the lower end come from the same laws."""
        return self.above == self.below and self.squares[0] == self.squares[1] and not (any(self.zcdp) or self.renyi)

    @property
    def closed(self) -> bool:
        """Whether plain Gaussian releases are all that is composed."""
        return self.squares[0] < math.inf and not (any(self.above) or any(self.zcdp) or self.renyi)

    def directions(self, *, attained: bool = False) -> list[Parts]:
        """The compositions whose larger delta is that of all steps, or with `attained` is at most that."""
        known = self.below if attained else self.above
        extra: list[tuple[Law, int]] = []
        if square := self.squares[attained]:
            extra.append((Gaussian("remove", 1.0, 1 / math.sqrt(square)), 1))
        if not attained and (law := self._concentrated()) is not None:
            extra.append((law, 1))
        found = []
        for parts in dict.fromkeys(known):
            counts: dict[Law, int] = {}
            for law, count in (*parts, *extra):
                counts[law] = counts.get(law, 0) + count
            found.append(tuple(counts.items()))
        return found

    def moments(self) -> tuple[Curve, float, float] | None:
        """The arguments with which `concentrated.direct_delta` bounds the steps; None if laws tell more of some."""
        if any(self.above) or not (any(self.zcdp) or self.renyi):
            return None
        rho, xi = self.zcdp[0] + self.squares[0] / 2, self.zcdp[1]
        return (summed(self.renyi, rho, xi) if self.renyi else ()), rho, xi

    def _concentrated(self) -> Law | None:
        rho, xi = self.zcdp
        if not rho <= MOST_RHO:
            raise ValueError(f"rho must be at most {MOST_RHO:g} for all zCDP steps of a history; got {rho!r}")
        if self.renyi:
            return curve_pair(summed(self.renyi, rho, xi))
        return concentrated_pair(rho, xi) if rho > 0 else None


def _both(one: Directions, other: Directions) -> Directions:
    return (one[0] + other[0], one[1] + other[1])


def _sum(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return (_up(one[0], other[0]), one[1] + other[1])


def _up(one: float, other: float) -> float:
    """The sum of two numbers, rounded up."""
    return math.nextafter(one + other, math.inf) if one and other else one + other


NOTHING = Cost(pure=(0.0, 0.0), unamplified=0.0)
"""The cost of no steps."""
UNKNOWN = Cost(squares=(math.inf, 0.0))
"""The cost of steps of which no upper bound is known."""
