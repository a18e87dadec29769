"""The types of a certified answer: two ends between which the exact number lies."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Bracket:
    """A certified answer: the exact number lies in [lower, upper], all errors of its computation included.

    `value` is the number to use. For epsilon, noise multipliers and numbers of steps or records it is the end that is
    safe for privacy; for delta it is an estimate between the two ends, and `upper` is the safe number. `method` names
    the way the answer was computed, and `notes` are sentences that a reader of the answer must know.
    """

    lower: float
    value: float
    upper: float
    method: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bounds:
    """A number between two ends. `lower` and `upper` are certified."""

    lower: float
    upper: float

    def within(self, other: "Bounds") -> "Bounds":
        lower = max(self.lower, other.lower)
        return Bounds(lower, max(min(self.upper, other.upper), lower))
