"""The types of a certified answer: two ends between which the exact number lies."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bracket:
    """A certified answer: the exact number lies in [lower, upper], all errors of its computation included.

    Attributes:
        lower, upper: the ends.
        value: the number to use: the end that is safe for privacy. Only `delta_of_history` returns as `value` an
            estimate of delta between the two ends; `upper` is then the safe number.
        method: how the answer was computed: "closed form", "grid" (sums over a grid of privacy losses), "search" (by a
            calibration), or "one record after another" (for a group, by the cost of a single record).
        notes: sentences that a reader of the answer must know.
    """

    lower: float
    value: float
    upper: float
    method: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """Two certified ends of a number, `lower` <= `upper`: the exact number lies in [lower, upper]."""

    lower: float
    upper: float

    def within(self, other: "Bounds") -> "Bounds":
        """Return the narrowest bounds that follow from these and from `other` bounds on the same number. If rounding
        makes the two disjoint, both ends are the larger lower end."""
        lower = max(self.lower, other.lower)
        return Bounds(lower, max(min(self.upper, other.upper), lower))
