"""`Interval`: a measured number between two ends, with the kind of promise that the ends make."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from dpzero_theory import check

_KINDS = {
    "bound": "holds for every model parameter: derived, not sampled",
    "probability": "holds with at least the stated probability over the random directions; no normality is assumed",
    "interval": "Student's t interval over random directions: approximate, exact only where the probes are normal",
    "estimate": "no coverage is claimed",
}
"""For each kind of `Interval`, what its ends promise, apart from rounding in the products it was computed from."""


@dataclass(frozen=True)
class Interval:
    """A measured number (`estimate`) and the ends of an interval around it, low <= estimate <= high.

    `kind` says what the ends promise: "bound", "probability", "interval" or "estimate", see `_KINDS`. `level` is the
    probability with which the number lies between them, 1 for bounds and 0 for estimates. Another kind, or ends in
    another order, raise ValueError.
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

    def as_dict(self) -> dict[str, Any]:
        """Return the interval's fields by name, for JSON; infinite ends become None."""
        return {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in asdict(self).items()
        }


def mean_interval(
    values: ArrayLike,
    level: float,
    *,
    lows: ArrayLike | None = None,
    highs: ArrayLike | None = None,
    shift: float = 0.0,
) -> Interval:
    """Student's t interval for the mean of independent draws, plus a constant.

    Where each draw is known only between a lower and an upper bound, the lower end is the one-sided lower end for the
    lower bounds and the upper end is that for the upper bounds. So the interval covers the mean whatever the draws are
    within their brackets.

    Args:
        values: at least 2 draws, or the best guesses of them.
        level: the interval's coverage probability, in (0, 1).
        lows, highs: a lower and an upper bound on each draw, where draws are not known exactly.
        shift: a constant that is added to the mean.

    Raises:
        ValueError: fewer than 2 draws, or a value that is not finite.
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
    return Interval(min(low, estimate), estimate, max(high, estimate), "interval", wanted)


def quotient(top: Interval, bottom: Interval, least: float, most: float) -> Interval:
    """The interval of the quotient top/bottom of two measured numbers, for a positive bottom.

    The quotient is known to lie in [least, most], and the interval is cut to that. Its kind is the weaker one of the
    two kinds. Both intervals, `top` and `bottom`, hold together with probability at least 1 - (1 - top.level) - (1 -
    bottom.level). The quotient then lies between top.low/bottom.high and top.high/bottom.low.
    """
    kinds = list(_KINDS)
    kind = max(top.kind, bottom.kind, key=kinds.index)
    low, estimate, high = (
        min(max(value, least), most)
        for value in (top.low / bottom.high, top.estimate / bottom.estimate, top.high / bottom.low)
    )
    return Interval(low, min(max(estimate, low), high), high, kind, max(top.level + bottom.level - 1, 0.0))


def quantiles(values: ArrayLike, at: Sequence[float]) -> dict[str, float]:
    """Return the quantiles of `values` at the probabilities `at`, by the probability as text, such as "0.9"."""
    numbers = np.quantile(check.real_array("values", values), at)
    return {f"{p:g}": float(number) for p, number in zip(at, numbers, strict=True)}
