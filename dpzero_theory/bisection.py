"""Searches for the point at which a monotone condition changes. The answer is always on a stated side of that point."""

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dpzero_theory import check
from dpzero_theory.check import Array

_Number = TypeVar("_Number", int, float)
_X = TypeVar("_X", int, float, Array)
_MOST_HALVINGS = 2200  # An interval of float64 allows no more: they have 2,098 powers of 2 and 52 binary digits.


def halved(
    holds: Callable[[_X], object],
    low: _X,
    high: _X,
    times: int = _MOST_HALVINGS,
    middle: Callable[[_X, _X], _X] | None = None,
) -> tuple[_X, _X]:
    """Narrows an interval around the point at which a condition, true at `low` and false at `high`, changes.

    For example `halved(lambda x: x * x < 2, 1.0, 2.0)` returns the two floats around the square root of 2. `low` may be
    larger than `high`.

    Args:
        holds: a function from a point to the truth of the condition. For arrays it returns an array of booleans, and
            each entry is searched independently.
        low, high: the ends of the interval. `holds` is not called at them; it is taken to be true at `low` and false at
            `high`.
        times: the most divisions of the interval. By default the search ends only as `middle` says.
        middle: a function from the present ends (low, high) to the point to try next, or None for their mean as a
            float. The search ends once that point equals one of the ends; for arrays, once this is so for every entry.

    Returns:
        The new ends. The first is `low` or a point at which the condition is true; the second is `high` or a point at
        which the condition is false.
    """
    for _ in range(times):
        # Each end is halved before they are added, since low + high may overflow.
        tried: _X = low / 2 + high / 2 if middle is None else middle(low, high)  # type: ignore[assignment]
        inside = (tried != low) & (tried != high)
        if not (inside.any() if isinstance(inside, np.ndarray) else inside):
            break
        true = holds(tried)
        if isinstance(true, np.ndarray):
            low, high = np.where(true, tried, low), np.where(true, high, tried)  # type: ignore[assignment]
        else:
            low, high = (tried, high) if true else (low, tried)
    return low, high


def outward(
    meets: Callable[[_Number], bool],
    start: _Number,
    step: _Number,
    *,
    growth: float = 2,
    most: _Number | float | None = None,
) -> tuple[_Number, _Number]:
    """Goes from a point in one direction, in steps of growing length, until a condition holds.

    For example `outward(lambda x: x > 5, 1.0, 1.0)` tries 1, 2, 4 and 8, and returns (4.0, 8.0).

    Args:
        meets: a function from a point to the truth of the condition.
        start: the first point that is tried.
        step: the distance from the first point to the second; negative to go down.
        growth: the length of each step over that of the step before; an integer if the points are integers.
        most: the point at which the search ends in any case; None for infinity (-infinity if step < 0), which floats
            reach and integers never do.

    Returns:
        A pair (before, found). `found` is the first tried point that meets the condition, or `most`, which is not
        tried, if none does. `before` is the tried point before `found`, which does not meet the condition; it is
        `start` if `start` meets it.
    """
    end = math.copysign(math.inf, step) if most is None else most
    before = here = start
    while here != end and not meets(here):
        before, here, step = here, here + step, step * growth  # type: ignore[assignment]
        if here > end if end > before else here < end:
            here = end  # type: ignore[assignment]
    return before, here


def roots(function: Callable[[Array], Array], low: Array, high: Array | None = None, *, rising: bool) -> Array:
    """Returns the root of a monotone function in each of several intervals.

    Of the two neighbouring floats between which the function changes its sign, the root is the one at which the
    function is at most 0.

    Args:
        function: a function of an array, computed entry by entry; it rises or falls strictly, up to rounding errors.
        low, high: arrays of the same shape, the ends of the intervals, 0 <= low. Each interval must have a root; this
            is not checked. If `high` is None, `low` must be positive, and is multiplied by 1.25 until there is a root
            below it.
        rising: True if the function rises, False if it falls.

    Returns:
        The roots, an array of the shape of `low`.
    """
    # [low, high] is halved until no float is left between the ends, but the function is called only where secants have
    # not already told its sign. Importing scipy.optimize, which has such searches, takes as long as the calculator.
    if high is None:
        high = low
        while (short := (function(high) > 0) != rising).any():
            high = np.where(short, 1.25 * high, high)
    below, above = _enclosed(function, low, high, rising)

    def root_is_above(x: Array) -> NDArray[np.bool_]:
        beyond = x >= above
        if (unknown := (below < x) & ~beyond).any():
            beyond = np.where(unknown, (function(x) > 0) == rising, beyond)
        return ~beyond

    return np.asarray(halved(root_is_above, low, high)[0 if rising else 1])


def _enclosed(function: Callable[[Array], Array], low: Array, high: Array, rising: bool) -> tuple[Array, Array]:
    """Returns ends (low, high) around the root of `function` in each interval [low, high], by the secant method.

    `function` is monotone and computed entry by entry; it rises if `rising` is True. The new ends are about 2^-44 times
    the root away from the root. Where the secant method fails, they are the given `low` or `high`.
    """
    below, above, before, x = low, high, low, high
    value = function(x)
    change = value - function(before)
    for _ in range(16):
        with np.errstate(all="ignore"):
            step = value * ((x - before) / change)
            settled = ~(np.abs(step) > 2.0**-46 * x)
            if settled.all():
                break
            x, before = np.where(settled, x, x - step), x
        x = np.where((below <= x) & (x <= above), x, below + (above - below) / 2)
        last, value = value, function(x)
        change = value - last
        over = (value > 0) == rising
        below, above = np.where(over, below, x), np.where(over, x, above)
    with np.errstate(over="ignore"):
        near, far = x * (1 - 2.0**-44), np.minimum(x * (1 + 2.0**-44), high)
    over_near, over_far = ((function(end) > 0) == rising for end in (near, far))
    return np.where((low < near) & ~over_near, near, low), np.where((far < high) & over_far, far, high)


def smallest(meets: Callable[[_Number], bool], low: _Number, high: _Number, tolerance: float = 1e-12) -> _Number | None:
    """Returns the smallest number in [low, high] that meets a condition that stays true, once true, as numbers grow.

    Args:
        meets: a function from a number to the truth of the condition.
        low, high: the ends of the search, low > 0. If both are integers, only integers are tried.
        tolerance: for floats, the largest relative amount by which the returned number, which meets the condition, may
            exceed the smallest one. For integers it is ignored.

    Returns:
        The number, or None if `high` does not meet the condition.

    Raises:
        ValueError: low <= 0.
    """

    def middle(miss: _Number, hit: _Number) -> _Number:
        if isinstance(miss, int) and isinstance(hit, int):
            return (miss + hit) // 2
        return miss if hit - miss <= tolerance * hit else (miss + hit) / 2

    check.real("low", low, above=0)  # From 0 or below, the doubling that follows would never reach `high`
    miss, hit = outward(meets, low, low, most=high)
    if hit == high and not meets(high):
        return None
    return halved(lambda value: not meets(value), miss, hit, middle=middle)[1]


def largest(meets: Callable[[int], bool], low: int, high: int) -> int | None:
    """Returns the largest integer in [low, high] that meets a condition that stays false, once false, as integers grow.

    `meets` is a function from an integer to the truth of the condition. Returns None if `low` does not meet it. Raises
    ValueError unless low > 0.
    """
    check.real("low", low, above=0)
    if not meets(low):
        return None
    beyond = smallest(lambda value: not meets(value), low, high)
    return high if beyond is None else beyond - 1
