"""Grids of losses with more and more points, until their bracket of delta is narrow enough or more points do not help.

The width of a grid's bracket falls about as the square of its number of points, down to the rounding errors of the
transform, which rise with that number.
"""

import math
from dataclasses import replace

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.grids.grid import grid_delta
from dpzero_theory.privacy.certified.laws.pairs import Parts

FEW_STEPS = 10
"""For at most so many releases a grid takes little time, so that the narrower width `_WIDTH_OF_FEW` is asked for."""
MOST_POINTS = 2**18
"""The most points of a grid, which is the length of its Fourier transform: 0.1 s of one core, and 2^18 numbers of 16
bytes."""
_FIRST_POINTS, _LEAST_POINTS = 2**13, 2**9
"""The number of points of the first grid, and the smallest number to which it is halved where rounding errors are the
larger the more points there are; either grid takes some milliseconds."""
_WIDTH, _WIDTH_OF_FEW = 1e-3, 1e-4
"""The relative width of delta's bracket that is narrow enough: for more than `FEW_STEPS` releases, and for at most so
many."""
_USABLE = 0.03
"""Once the relative width of the bracket is below this, the grid is refined further only while each refinement helps,
see `_HELP`; a wider bracket is refined as long as it becomes any narrower."""
_HELP = 0.8
"""A refinement of a bracket that is already narrow helps if the new width is at most this share of the old one."""


class RefinedGrid:
    """delta(epsilon) of one composition by grids; each call of `up_to` goes on where the one before ended."""

    def __init__(self, epsilon: float, parts: Parts, gdp: float, wanted: float) -> None:
        """Take the epsilon and the composition (`parts`, and a `gdp`-GDP mechanism) whose delta is wanted. A bracket of
        the relative width `wanted` is narrow enough, or of `_WIDTH` (`_WIDTH_OF_FEW`) if that is larger."""
        self._question = epsilon, parts, gdp
        few = sum(steps for _, steps in parts) <= FEW_STEPS
        self._wanted = max(wanted, _WIDTH_OF_FEW if few else _WIDTH)
        self._points, self._least = _FIRST_POINTS, math.inf

    def up_to(self, most: int) -> Bracket:
        """The bracket that all grids tried in this call, none with more than `most` points, give together.

        Raises:
            OverflowError: earlier calls have tried all of these, or more points do not help.
        """
        best = None
        while self._points <= most:
            points, before = self._points, self._least
            found, excess = self._grid(points)
            best = found if best is None else _both(best, found)
            self._least = min(before, excess)
            if before < excess < 1 / self._wanted:  # rounding errors have taken over, and fewer points have less
                best = self._fewer(best)
            stuck = excess > (_HELP if before * self._wanted < _USABLE else 1.0) * before
            if excess <= 1 or stuck or points == MOST_POINTS:
                self._points = 2 * MOST_POINTS
                break
            # the points for the wanted width, if it falls as their square; a wide one may fall faster: at most 4 times
            needed = 2 ** math.ceil(math.log2(min(excess, 2.0**40)) / 2)
            self._points = min(points * (needed if excess * self._wanted < 1 else min(needed, 4)), MOST_POINTS)
        if best is None:
            raise OverflowError("no grid of so few points")
        return best

    def _grid(self, points: int) -> tuple[Bracket, float]:
        """Return the bracket of delta from a grid of `points` losses, and its relative width over the wanted width."""
        found = grid_delta(*self._question, points=points)
        return found, (found.upper / found.lower - 1) / self._wanted if found.lower > 0 else math.inf

    def _fewer(self, best: Bracket) -> Bracket:
        """The bracket `best` together with grids whose points are halved as long as each gives a narrower bracket."""
        points = _FIRST_POINTS
        while self._least > 1 and points > _LEAST_POINTS:
            points //= 2
            found, excess = self._grid(points)
            best = _both(best, found)
            if excess >= self._least:
                break
            self._least = excess
        return best


def _both(one: Bracket, other: Bracket) -> Bracket:
    """The intersection of two brackets of the same number, with the estimate of the narrower one."""
    narrow = min(one, other, key=lambda bracket: bracket.upper - bracket.lower)
    lower, upper = max(one.lower, other.lower), min(one.upper, other.upper)
    return replace(narrow, lower=lower, value=min(max(narrow.value, lower), upper), upper=upper)
