"""Searches for the point at which a monotone condition changes, with the answer always on a stated side of that point.

The root finders of `scipy.optimize` return a number near the root. A certified bound must be on the safe side of it,
and some conditions answer only yes or no, so these searches are our own.
"""

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from dpzero_theory.check import Array

T = TypeVar("T", int, float)
X = TypeVar("X", float, Array)


def halved(holds: Callable[[X], object], low: X, high: X, times: int) -> tuple[X, X]:
    """Halve an interval around the point at which a condition, true at `low` and false at `high`, changes.

    For example `halved(lambda x: x * x < 2, 1.0, 2.0, 60)` returns the two floats around the square root of 2.

    Args:
        holds: the condition at a point; for arrays an array of booleans, and each entry is a search of its own.
        low, high: the ends of the interval; `holds` is not called at them, but taken to be true at low, false at high.
        times: how often the interval is halved. A search for one number ends early, without another result, where no
            float lies between the ends.

    Returns:
        The new ends. The first is `low` or a point where the condition was found to be true, the second is `high` or a
        point where it was found to be false.
    """
    for _ in range(times):
        middle = (low + high) / 2
        true = holds(middle)
        if isinstance(true, np.ndarray):
            low, high = np.where(true, middle, low), np.where(true, high, middle)  # type: ignore[assignment]
        elif middle in (low, high):
            break
        else:
            low, high = (middle, high) if true else (low, middle)
    return low, high


def narrowed(meets: Callable[[T], bool], miss: T, hit: T, middle: Callable[[T, T], T]) -> T:
    """Narrow down where a condition begins to hold; returns a point at which it holds.

    The bisection moves `miss`, where the condition does not hold, and `hit`, where it does, towards each other.

    Args:
        meets: the condition.
        miss, hit: where the bisection starts; `meets` is not called at them.
        middle: (miss, hit) -> the next point to try; the bisection ends where that is one of the two.
    """
    while (tried := middle(miss, hit)) not in (miss, hit):
        if meets(tried):
            hit = tried
        else:
            miss = tried
    return hit


def smallest_integer(meets: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest integer in [low, high] that meets the condition, for a condition that stays true once true.

    The search doubles from `low` > 0, then bisects. It returns None where `high` does not meet the condition.
    """
    return _smallest(meets, low, high, lambda miss, hit: (miss + hit) // 2)


def largest_integer(meets: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest integer in [low, high] that meets the condition, for a condition that stays false once false.

    Returns None where `low` does not meet it.
    """
    if not meets(low):
        return None
    beyond = smallest_integer(lambda value: not meets(value), low, high)
    return high if beyond is None else beyond - 1


def smallest_real(meets: Callable[[float], bool], low: float, high: float, tolerance: float = 1e-12) -> float | None:
    """A number in [low, high] that meets a condition which stays true once true, and is almost the smallest that does.

    It exceeds the smallest one by at most `tolerance` times itself. low must be positive. Returns None where `high`
    does not meet the condition.
    """
    return _smallest(meets, low, high, lambda miss, hit: miss if hit - miss <= tolerance * hit else (miss + hit) / 2)


def _smallest(meets: Callable[[T], bool], low: T, high: T, middle: Callable[[T, T], T]) -> T | None:
    if meets(low):
        return low
    miss, hit = low, min(2 * low, high)
    while not meets(hit):
        if hit == high:
            return None
        miss, hit = hit, min(2 * hit, high)
    return narrowed(meets, miss, hit, middle)


def last_integer(excess: Callable[[int], float], first: int, most: int, guess: float) -> int | None:
    """The largest integer in [first, most] at which the function `excess`, which never falls, is at most 0.

    Returns None where it is positive at `first`. The search starts from `guess` and continues by secants in the
    logarithm of the integer, so it calls the function, which may take seconds, only a few times where that is smooth
    and the guess is near. The function may return infinity.
    """
    low = high = round(min(max(guess, first), most))
    below = above = excess(low)
    reach = 1.2
    while above <= 0:
        if high == most:
            return most
        low, below = high, above
        high = min(math.ceil(high * reach) + 1, most)
        above, reach = excess(high), reach * reach
    while below > 0:
        if low == first:
            return None
        high, above = low, below
        low = max(math.floor(low / reach) - 1, first)
        below, reach = excess(low), reach * reach
    turn = 0
    while high - low > 1:
        share = 0.5
        if turn % 3 < 2 and math.isfinite(below) and math.isfinite(above):
            share = min(max(-below / (above - below), 0.01), 0.99)
        middle = min(max(round(low * (high / low) ** share), low + 1), high - 1)
        value = excess(middle)
        if value <= 0:
            low, below = middle, value
        else:
            high, above = middle, value
        turn += 1
    return low
