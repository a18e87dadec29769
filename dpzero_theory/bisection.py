"""Searches for the point at which a monotone condition changes, with the answer always on a stated side of that point.

The root finders of `scipy.optimize` return a number near the root. A certified bound must be on the safe side of it,
and some conditions answer only yes or no. `LogSecant` is for functions whose error differs from point to point.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from dpzero_theory import check
from dpzero_theory.check import Array

Number = TypeVar("Number", int, float)
X = TypeVar("X", int, float, Array)
_MOST_HALVINGS = 2200
"""More halvings than there can be between two float64, which have 2,098 powers of 2 and 52 binary digits."""
_SAME_X = 1e-5  # `LogSecant` measures no slope between two x whose logarithms differ by less
_FLATTEST = -1e-6  # it replaces a slope above this one by it


def integer_between(low: int, high: int) -> int:
    """The mean of the integers low and high, rounded down. As the argument `middle` of `halved` it makes that search
    try integers alone, and end when no integer is left between the ends."""
    return (low + high) // 2


def halved(
    holds: Callable[[X], object],
    low: X,
    high: X,
    times: int = _MOST_HALVINGS,
    middle: Callable[[X, X], X] | None = None,
) -> tuple[X, X]:
    """Narrow down an interval around the point at which a condition, true at `low` and false at `high`, changes.

    For example `halved(lambda x: x * x < 2, 1.0, 2.0)` returns the two floats around the square root of 2. The ends
    need not be in order: with low > high the condition holds to the right of the point.

    Args:
        holds: the condition at a point; for arrays an array of booleans, and each entry is a search of its own.
        low, high: the ends of the interval; `holds` is not called at them, but taken to be true at low, false at high.
        times: how often the interval is divided at most.
        middle: a function that takes the present ends (low, high) and returns the point that is tried next; None takes
            their mean. The search ends where that point is one of the ends, for arrays once that is so for every entry.

    Returns:
        The new ends. The first is `low` or a point where the condition was found to be true, the second is `high` or a
        point where it was found to be false.
    """
    for _ in range(times):
        # The sum low + high may be infinite.
        tried: X = low / 2 + high / 2 if middle is None else middle(low, high)  # type: ignore[assignment]
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
    meets: Callable[[Number], bool],
    start: Number,
    step: Number,
    *,
    growth: float = 2,
    most: Number | float | None = None,
) -> tuple[Number, Number]:
    """Go from a point in one direction, in steps of growing length, until a condition holds.

    For example `outward(lambda x: x > 5, 1.0, 1.0)` tries 1, 2, 4 and 8, and returns (4.0, 8.0).

    Args:
        meets: the condition, a function of a point.
        start: the first point that is tried.
        step: from the first point to the second; negative to go down.
        growth: how many times as long each step is as the one before; an integer where the points are integers.
        most: where the search ends in any case; None lets it go on until the condition holds.

    Returns:
        A pair (before, found). `found` is the first of the tried points that meets the condition or, if none before
        `most` does, `most`, which is not tried. `before` is the point before it, which does not meet the condition.
        Where `start` meets the condition, both are `start`.
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

    Of the two neighbouring floats between which the function changes its sign, it is the one at which the function is
    at most 0. The search halves [low, high] until no float is left between the ends. The function is called only where
    secants have not already told its sign, so that this takes few calls. Importing `scipy.optimize`, which has such
    searches too, would take as long as all else that the calculator does.

    Args:
        function: a function of an array, computed entry by entry; it rises or falls strictly, up to rounding errors.
        low, high: the ends of the intervals, 0 <= low, with a root in each. Where high is None and low is positive, the
            intervals are made as long as they must be, by a quarter of their end at a time.
        rising: whether the function rises.
    """
    if high is None:
        high = low
        while (short := (function(high) > 0) != rising).any():
            high = np.where(short, 1.25 * high, high)
    below, above = _enclosed(function, low, high, rising)

    def before(x: Array) -> NDArray[np.bool_]:
        """Whether the root of each interval is above the interval's entry of x."""
        beyond = x >= above
        if (unknown := (below < x) & ~beyond).any():
            beyond = np.where(unknown, (function(x) > 0) == rising, beyond)
        return ~beyond

    return np.asarray(halved(before, low, high)[0 if rising else 1])


def _enclosed(function: Callable[[Array], Array], low: Array, high: Array, rising: bool) -> tuple[Array, Array]:
    """Returns, for each interval, a bracket (low, high) of the root, found by the secant method.

    Its ends are about 2^-44 times the root away from the root. Where the secants did not end near the root, `low` or
    `high` stays as it was given. function, rising: as in `roots`.
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


@dataclass
class LogSecant:
    """A search by secants in log x for the x > 0 at which a falling function is 0.

    Attributes:
        x: where to evaluate the function; at first a guess of the answer.
        slope: the derivative of the function with respect to log x, at first a guess; negative.
        longest: the most by which one move changes log x.
        low, high: the function was found positive at low, or low is 0; it was not positive at high, or high is
            infinite.
    """

    x: float
    slope: float
    longest: float = 0.7
    low: float = field(default=0.0, init=False)
    high: float = field(default=math.inf, init=False)
    _last: tuple[float, float] | None = field(default=None, init=False)

    def run(
        self,
        function: Callable[[float], float | None],
        near: Callable[[float], bool],
        tries: int,
        error: float = 0.0,
    ) -> None:
        """Search until a value of the function is near enough to 0, and leave the answer in `x`. After `tries` values
        without one near enough, `x` is the point that would be tried next.

        Args:
            function: the function. Where it returns None the search ends; -inf says that the function cannot be
                evaluated at x but is known to be negative there.
            near: whether this value of the function is near enough to 0. When it is called, `slope` is already measured
                with the value.
            tries: how many values are computed at most.
            error: the absolute size of the errors of the values. From two values that differ by at most this no slope
                is measured.
        """
        for _ in range(tries):
            value = function(self.x)
            if value is None:
                return
            if value == -math.inf:
                self._retreat()
                continue
            self._measure(value, error)
            if near(value):
                return
            self._move(value)

    def _measure(self, value: float, error: float) -> None:
        """Set the slope from `value`, the function at `x`, and from the value at the x before it, unless the two values
        differ by at most `error`."""
        if self._last is None:
            return
        log_step, change = math.log(self.x / self._last[0]), value - self._last[1]
        if abs(log_step) > _SAME_X and abs(change) > error:
            self.slope = min(change / log_step, _FLATTEST)

    def _move(self, value: float) -> None:
        """Move `x` to where a line through the function at x, `value`, with the present slope is 0.

        Where that is outside of (low, high), x becomes the middle of it in log x or, as long as one of these ends is
        not found, is doubled or halved.
        """
        self.low, self.high = (self.x, self.high) if value > 0 else (self.low, self.x)
        self._last = self.x, value
        x = self.x * math.exp(min(max(-value / self.slope, -self.longest), self.longest))
        if not self.low < x < self.high:
            bounded = self.low > 0 and self.high < math.inf
            x = math.sqrt(self.low * self.high) if bounded else (2 * self.x if value > 0 else self.x / 2)
        self.x = x

    def _retreat(self) -> None:
        """Move `x` down from a point at which the function cannot be evaluated but is known to be negative."""
        self.high, self._last = self.x, None
        self.x = math.sqrt(self.low * self.high) if self.low > 0 else self.x / 1.6


def smallest_integer(meets: Callable[[int], bool], low: int, high: int) -> int | None:
    """The smallest integer in [low, high] that meets a condition, for a condition that stays true once true.

    The search for the condition `meets` doubles from `low` on, then bisects. It returns None where `high` does not
    meet it, and raises ValueError unless low > 0.
    """
    return _smallest(meets, low, high, integer_between)


def largest_integer(meets: Callable[[int], bool], low: int, high: int) -> int | None:
    """The largest integer in [low, high] that meets a condition, for a condition that stays false once false.

    `meets` is the condition. None is returned where `low` does not meet it, and ValueError is raised unless low > 0.
    """
    check.real("low", low, above=0)
    if not meets(low):
        return None
    beyond = smallest_integer(lambda value: not meets(value), low, high)
    return high if beyond is None else beyond - 1


def smallest_real(meets: Callable[[float], bool], low: float, high: float, tolerance: float = 1e-12) -> float | None:
    """A number in [low, high] that meets a condition which stays true once true, and is almost the smallest that does.

    The returned number meets the condition `meets`, and exceeds the smallest such number by at most `tolerance` times
    the returned number. None is returned where `high` does not meet the condition, and ValueError is raised unless low
    > 0.
    """
    return _smallest(meets, low, high, lambda miss, hit: miss if hit - miss <= tolerance * hit else (miss + hit) / 2)


def _smallest(
    meets: Callable[[Number], bool], low: Number, high: Number, middle: Callable[[Number, Number], Number]
) -> Number | None:
    check.real("low", low, above=0)
    miss, hit = outward(meets, low, low, most=high)
    if hit == high and not meets(high):
        return None
    return halved(lambda value: not meets(value), miss, hit, middle=middle)[1]


def last_integer(excess: Callable[[int], float], first: int, most: int, guess: float) -> int | None:
    """The largest integer in [first, most] at which `excess`, a function that never falls, is at most 0.

    None is returned where the function is positive at `first`. The search starts from `guess`, an integer or not, and
    continues by secants in the logarithm of the integer. It therefore calls the function, which may take seconds, only
    a few times where that is smooth and the guess is near. The function may return infinity.
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
