"""Time questions to the accountant with its caches emptied, and compare times that were taken in turns."""

import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Timed(NamedTuple, Generic[T]):
    """The value that a timed call returned, and how long the call took in wall seconds and in processor seconds."""

    found: T
    seconds: float
    cpu_seconds: float


def timed(ask: Callable[[], T]) -> Timed[T]:
    """Empty the caches of the accountant, then call `ask`, and return what it returned with the wall seconds and the
    processor seconds that the call took."""
    _forget()
    started, working = time.perf_counter(), time.process_time()
    found = ask()
    return Timed(found, time.perf_counter() - started, time.process_time() - working)


def _forget() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("dpzero_theory.privacy"):
            for kept in vars(module).values():
                if hasattr(kept, "cache_clear"):
                    kept.cache_clear()


def median_ratio(times: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Return the median over turns of times[i]/others[i], the ratio of two times of the same turn, and the median's
    standard error.

    The error is that of the median of normal values with the observed quartiles: 0.93 times the distance of the
    quartiles over the square root of the number of turns. Raises ValueError for fewer than two turns or for unequal
    numbers of them.
    """
    if len(times) < 2:
        raise ValueError(f"times must be of at least 2 turns; got {len(times)}")
    ratios = [one / other for one, other in zip(times, others, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return median, 0.93 * (high - low) / math.sqrt(len(ratios))
