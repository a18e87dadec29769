"""The smallest or largest value that meets a monotone condition, always returned on the side that meets it."""

from collections.abc import Callable

__all__ = ["largest_integer", "smallest_integer", "smallest_real"]


def smallest_integer(meets: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest integer in [low, high] that meets the condition, for a condition that stays true once true.

    Doubles from `low`, then bisects. None where nothing tried up to `high` meets it.
    """
    if meets(low):
        return low
    miss, hit = low, min(2 * low, high)
    while not meets(hit):
        if hit == high:
            return None
        miss, hit = hit, min(2 * hit, high)
    while hit - miss > 1:
        middle = (miss + hit) // 2
        if meets(middle):
            hit = middle
        else:
            miss = middle
    return hit


def largest_integer(meets: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest integer in [low, high] that meets the condition, for a condition that stays false once false.

    None where `low` does not meet it.
    """
    if not meets(low):
        return None
    beyond = smallest_integer(lambda value: not meets(value), low, high)
    return high if beyond is None else beyond - 1


def smallest_real(meets: Callable[[float], bool], low: float, high: float, tolerance: float = 1e-12) -> float | None:
    """The smallest real in [low, high], up to the relative tolerance, that meets the condition (see above)."""
    if meets(low):
        return low
    miss, hit = low, min(2 * low, high)
    while not meets(hit):
        if hit == high:
            return None
        miss, hit = hit, min(2 * hit, high)
    while hit - miss > tolerance * hit:
        middle = (miss + hit) / 2
        if middle in (miss, hit):
            break
        if meets(middle):
            hit = middle
        else:
            miss = middle
    return hit
