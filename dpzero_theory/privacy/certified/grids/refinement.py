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
"""Up to so many releases are few: their grids cost little, so that a narrower bracket is asked for, `_WIDTH_OF_FEW`."""
MOST_POINTS = 2**18
"""The longest transform: 0.1 s of one core, and 2^18 numbers of 16 bytes."""
_FIRST_POINTS, _LEAST_POINTS = 2**13, 2**9
"""Points of the first grid, and of the smallest one where rounding asks for fewer: each some milliseconds."""
_WIDTH, _WIDTH_OF_FEW = 1e-3, 1e-4
"""Relative width of a bracket of delta that is narrow enough: of many releases, and of at most `FEW_STEPS`."""
_USABLE = 0.03
"""A bracket whose relative width is below this is refined further only while that helps as `_HELP` says."""
_HELP = 0.8
"""Refining a bracket that is narrow already helps if it leaves at most this share of the width."""


class RefinedGrid:
    """delta(epsilon) of one composition by grids; each call of `up_to` goes on where the one before ended."""

    def __init__(self, epsilon: float, parts: Parts, gdp: float, wanted: float) -> None:
        """Take a question. A bracket of the relative width `wanted` is narrow enough, and one of `_WIDTH` always is."""
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
            # the width falls as the square of the number of points, or more slowly; faster where it is large
            needed = 2 ** math.ceil(math.log2(min(excess, 2.0**40)) / 2)
            self._points = min(points * (needed if excess * self._wanted < 1 else min(needed, 4)), MOST_POINTS)
        if best is None:
            raise OverflowError("no grid of so few points")
        return best

    def _grid(self, points: int) -> tuple[Bracket, float]:
        """The bracket of the grid with so many points, and its relative width as a multiple of the wanted one."""
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
