"""Two types for a number that is known to lie in an interval: `Bracket` for users, `Bounds` inside the package."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bracket:
    """An interval [lower, upper] that is proved to contain an exact number, all errors of its computation included.

    Attributes:
        lower: the lower end of the interval.
        value: the number to use: the end of the interval that is safe for privacy. Only in an answer of
            `delta_of_history` it is an estimate between the two ends; there `upper` is the safe number.
        upper: the upper end of the interval.
        method: how the number was computed: "closed form", "grid" (sums over a grid of privacy losses), "search" (of a
            parameter that meets a target), or "one record after another" (for a group, from a single record).
        notes: sentences to show together with the number.
    """

    lower: float
    value: float
    upper: float
    method: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """A lower and an upper bound on a number, `lower` <= `upper`, which hold for certain."""

    lower: float
    upper: float

    def within(self, other: "Bounds") -> "Bounds":
        """Returns the intersection of this interval and `other`, which must bound the same number. If rounding makes
        the two disjoint, both bounds of the result are the larger one of the two lower bounds."""
        lower = max(self.lower, other.lower)
        return Bounds(lower, max(min(self.upper, other.upper), lower))
