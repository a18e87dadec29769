"""The smallest or largest value that meets a monotone condition, always returned on the side that meets it."""

import math
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T", int, float)


def smallest_integer(meets: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest integer in [low, high] that meets the condition, for a condition that stays true once true.

    Doubles from `low`, then bisects. None where nothing tried up to `high` meets it.
    """
    return _smallest(meets, low, high, lambda miss, hit: (miss + hit) // 2)


def largest_integer(meets: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest integer in [low, high] that meets the condition, for a condition that stays false once false.

    None where `low` does not meet it.
    """
    if not meets(low):
        return None
    beyond = smallest_integer(lambda value: not meets(value), low, high)
    return high if beyond is None else beyond - 1


def last_integer(excess: Callable[[int], float], first: int, most: int, guess: float) -> int | None:
    """The largest integer in [first, most] with excess <= 0, for an excess that grows; None where first has none.

    Starts from the guess and looks between by secants in the integer's logarithm: few trials where the excess is
    smooth in it and the guess is near. An excess may be infinite.
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
        found = excess(middle)
        if found <= 0:
            low, below = middle, found
        else:
            high, above = middle, found
        turn += 1
    return low


def smallest_real(meets: Callable[[float], bool], low: float, high: float, tolerance: float = 1e-12) -> float | None:
    """The smallest real in [low, high], up to the relative tolerance, that meets the condition (see above)."""
    return _smallest(meets, low, high, lambda miss, hit: miss if hit - miss <= tolerance * hit else (miss + hit) / 2)


def _smallest(meets: Callable[[T], bool], low: T, high: T, middle: Callable[[T, T], T]) -> T | None:
    """middle: of two values, the next to try, or one of them where they are close enough."""
    if meets(low):
        return low
    miss, hit = low, min(2 * low, high)
    while not meets(hit):
        if hit == high:
            return None
        miss, hit = hit, min(2 * hit, high)
    while (tried := middle(miss, hit)) not in (miss, hit):
        if meets(tried):
            hit = tried
        else:
            miss = tried
    return hit
