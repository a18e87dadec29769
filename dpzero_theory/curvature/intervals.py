"""`Interval`: a measured number between two ends, with the kind of promise that the ends make."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from dpzero_theory import check

_KINDS = {
    "bound": "holds for certain: computed, not sampled",
    "probability": "holds with at least the stated probability over the random directions; no normality is assumed",
    "interval": "Student's t interval over random directions: approximate, exact only where the probes are normal",
    "estimate": "no coverage is claimed",
}
"""For each kind of `Interval`, from the strongest to the weakest, what its ends promise, apart from rounding."""


@dataclass(frozen=True)
class Interval:
    """A measured number and the ends of an interval around it.

    Attributes:
        low, high: the ends, low <= estimate <= high.
        estimate: the measured number.
        kind: what the ends promise, from the strongest kind to the weakest: "bound", the true number lies between them
            for certain; "probability", it does with probability `level` at least; "interval", they are ends of
            Student's t interval, whose probability is `level` only if draws are normal; "estimate", nothing.
        level: the probability of that promise: 1 for "bound", 0 for "estimate"; for "probability" a lower bound on the
            probability that the true number lies between the ends, and for "interval" this probability if draws are
            normal.

    Raises:
        ValueError: another kind, a level outside [0, 1], or ends in another order.
    """

    low: float
    estimate: float
    high: float
    kind: str
    level: float

    def __post_init__(self) -> None:
        check.choice("kind", self.kind, _KINDS)
        check.real("level", self.level, at_least=0, at_most=1)
        if not self.low <= self.estimate <= self.high:
            raise ValueError(f"low <= estimate <= high is required; got {self.low}, {self.estimate}, {self.high}")

    @classmethod
    def of_mean(
        cls,
        values: ArrayLike,
        level: float,
        *,
        lows: ArrayLike | None = None,
        highs: ArrayLike | None = None,
        shift: float = 0.0,
    ) -> Self:
        """Make Student's t interval for the expectation of independent draws, plus a constant.

        If each draw is known only between a lower and an upper bound, the low end is the low end of the t interval of
        the lower bounds, and the high end is the high end of the t interval of the upper bounds.

        Args:
            values: N >= 2 draws, or the best guesses of them, shape (N,). The estimate is their mean plus `shift`.
            level: the interval's coverage probability, in (0, 1), if the draws are normal.
            lows: a lower bound on each draw, shape (N,); `values` if None, as if all draws were known.
            highs: an upper bound on each draw, shape (N,); `values` if None. That values lie between their bounds is
                not checked; an end beyond the estimate is moved to it.
            shift: a constant that is added to the estimate and to both ends.

        Returns:
            An interval of kind "interval".

        Raises:
            ValueError: a level outside its range, fewer than 2 draws, or a number that is not finite.
        """
        wanted = check.real("level", level, above=0, below=1)
        ends = [check.real_array("values", values if end is None else end) for end in (lows, values, highs)]
        count = ends[1].size
        if count < 2:
            raise ValueError(f"values must hold at least 2 draws; got {count}")
        quantile = float(stats.t.ppf((1 + wanted) / 2, count - 1))
        means = [float(end.mean()) + shift for end in ends]
        errors = [quantile * float(stats.sem(end)) for end in ends]
        low, estimate, high = means[0] - errors[0], means[1], means[2] + errors[2]
        return cls(min(low, estimate), estimate, max(high, estimate), "interval", wanted)

    def over(self, bottom: "Interval", least: float, most: float) -> "Interval":
        """Return an interval of the quotient of this interval's number, which is >= 0, and a positive number.

        Both intervals hold with probability at least self.level + bottom.level - 1, which is the result's `level`, or 0
        if that is negative. The quotient then lies between self.low/bottom.high and self.high/bottom.low.

        Args:
            bottom: the interval of the positive number; bottom.low > 0. The result is of the weaker of both kinds, in
                the order "bound", "probability", "interval", "estimate".
            least, most: the quotient is known to lie in [least, most], to which the ends are cut.
        """
        kind = max(self.kind, bottom.kind, key=list(_KINDS).index)
        low, estimate, high = (
            min(max(value, least), most)
            for value in (self.low / bottom.high, self.estimate / bottom.estimate, self.high / bottom.low)
        )
        return Interval(low, min(max(estimate, low), high), high, kind, max(self.level + bottom.level - 1, 0.0))

    def as_dict(self) -> dict[str, Any]:
        """Return the interval's fields by name, for JSON; infinite ends become None."""
        return {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in asdict(self).items()
        }


def quantiles(values: ArrayLike, at: Sequence[float]) -> dict[str, float]:
    """Return the quantiles of finite `values` at the probabilities `at`, by the probability as text, such as "0.9"."""
    numbers = np.quantile(check.real_array("values", values), at)
    return {f"{p:g}": float(number) for p, number in zip(at, numbers, strict=True)}
