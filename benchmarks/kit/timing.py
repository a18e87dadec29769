"""Which of two is faster, from times taken in turns; and what a question costs that was not asked before."""

import math
import statistics
from collections.abc import Sequence

from dpzero_theory.privacy.certified import contour, sketch

__all__ = ["forget", "median_ratio"]


def forget() -> None:
    """Make the accountant keep nothing of earlier questions, so that one asked again takes the time of a new one."""
    contour.forget()
    sketch.forget()


def median_ratio(times: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """The median of the ratios of times taken in the same turn, and its standard error.

    The error is that of the median of a normal law with the quartiles seen, 0.93 times their distance over
    sqrt(turns). Raises ValueError for fewer than two turns.
    """
    if len(times) < 2:
        raise ValueError(f"times must be of at least 2 turns; got {len(times)}")
    ratios = [one / other for one, other in zip(times, others, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return median, 0.93 * (high - low) / math.sqrt(len(ratios))
