"""What every certified answer of the accounting is."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Bracket:
    """A certified answer: the exact number lies in [lower, upper].

    `value` is the number to use: the private side for noise multipliers and epsilon, the estimate for delta.
    `method` says how it was obtained, `notes` what holds beyond it.
    """

    lower: float
    value: float
    upper: float
    method: str
    notes: tuple[str, ...] = ()

    @property
    def log_value(self) -> float:
        """Log of `value`, -inf where that is 0."""
        return math.log(self.value) if self.value > 0 else -math.inf
