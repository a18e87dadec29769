"""`Interval`: a measured number with a lower and an upper end, and how certain these ends are."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from dpzero_theory import check

# The kinds of `Interval`, from the most certain to the least, and what each promises, apart from rounding
_KINDS = {
    "bound": "holds for certain: computed, not sampled",
    "probability": "holds with at least the stated probability over the random directions; no normality is assumed",
    "interval": "Student's t interval over random directions: approximate, exact only where the probes are normal",
    "estimate": "no coverage is claimed",
}


@dataclass(frozen=True)
class Interval:
    """A measured number with a lower and an upper end.

    Attributes:
        low, high: the ends, low <= estimate <= high.
        estimate: the measured number.
        kind: how certain it is that the true number lies between the ends. "bound": it does. "probability": it does
            with probability `level` or more. "interval": the ends are those of Student's t interval, which holds with
            probability `level` if the draws are normal. "estimate": nothing is known.
        level: the probability, in [0, 1], that `kind` speaks of; 1 for "bound" and 0 for "estimate".

    Raises:
        ValueError: the kind is another word, the level is outside [0, 1], or low <= estimate <= high does not hold.
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

        Draws may be known only up to bounds. The low end is then the low end of the t interval of the lower bounds, and
        the high end the high end of the t interval of the upper bounds.

        Args:
            values: N >= 2 draws, or the best guesses of them, shape (N,). The estimate is their mean plus `shift`.
            level: the coverage probability, in (0, 1), if the draws are normal.
            lows: a lower bound on each draw, shape (N,); `values` if None.
            highs: an upper bound on each draw, shape (N,); `values` if None. It is not checked that the values lie
                between their bounds; an end that is on the wrong side of the estimate is moved to it.
            shift: the constant that is added to the estimate and to both ends.

        Returns:
            An interval of kind "interval".

        Raises:
            ValueError: level is outside its range, there are fewer than 2 draws, or a number is not finite.
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
        """Return an interval of the quotient of two measured numbers, this one divided by `bottom`.

        The ends are low/bottom.high and high/bottom.low. `level` is the sum of both levels less 1, or 0 if that is
        negative, and `kind` the less certain of both kinds.

        Args:
            bottom: the interval of the divisor, with bottom.low > 0. The dividend must be >= 0.
            least, most: the quotient is known to lie in [least, most], to which the ends are cut.
        """
        kind = max(self.kind, bottom.kind, key=list(_KINDS).index)
        low, estimate, high = (
            min(max(value, least), most)
            for value in (self.low / bottom.high, self.estimate / bottom.estimate, self.high / bottom.low)
        )
        return Interval(low, min(max(estimate, low), high), high, kind, max(self.level + bottom.level - 1, 0.0))

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, for JSON; infinite ends become None."""
        return {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in asdict(self).items()
        }


def quantiles(values: ArrayLike, at: Sequence[float]) -> dict[str, float]:
    """Return the quantiles of finite numbers at the probabilities `at`, as a dictionary with keys such as "0.9" for
    0.9."""
    numbers = np.quantile(check.real_array("values", values), at)
    return {f"{p:g}": float(number) for p, number in zip(at, numbers, strict=True)}
