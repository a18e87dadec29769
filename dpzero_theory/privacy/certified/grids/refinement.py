"""delta of a composition on grids of losses with more and more points, until its bracket is narrow enough.

The refinement also ends where more points do not help. The width of a grid's bracket falls about as the square of its
number of points, down to the rounding errors of the transform, which rise with that number.
"""

import math
from dataclasses import replace
from functools import lru_cache

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.grids.grid import grid_delta
from dpzero_theory.privacy.certified.laws.parts import Parts

FEW_STEPS = 10
"""For this many releases or fewer a grid takes little time, so that the narrower width `_WIDTH_OF_FEW` is asked for."""
MOST_POINTS = 2**18
"""The most points of a grid, which is the length of its Fourier transform. It takes 0.1 s of one core, and 2^18 numbers
of 16 bytes."""
_FIRST_POINTS, _LEAST_POINTS = 2**13, 2**9
"""The number of points of the first grid, and the smallest number to which it is halved if rounding errors grow with
the number of points. Either grid takes some milliseconds."""
_WIDTH, _WIDTH_OF_FEW = 1e-3, 1e-4
"""The relative widths of delta's bracket that are narrow enough, first for more than `FEW_STEPS` releases, then for
that many or fewer."""
_USABLE = 0.03
"""Once the relative width of the bracket is below this, the grid is refined further only while each refinement narrows
it by a fifth or more. A wider bracket is refined as long as it becomes any narrower."""
_HELP = 0.8
"""A refinement of a bracket that is already narrow helps if the new width is at most this share of the old width."""


@lru_cache(maxsize=64)
def _grid_delta(epsilon: float, parts: Parts, gdp: float, points: int) -> Bracket:
    """`grid_delta`, whose last results are cached. After a search for epsilon or the noise, delta is often asked for
    at the same epsilon and noise."""
    return grid_delta(epsilon, parts, gdp, points=points)


class RefinedGrid:
    """delta(epsilon) of one composition by grids with more and more points; each call of `up_to` goes on from the one
    before."""

    def __init__(self, epsilon: float, parts: Parts, gdp: float, wanted: float) -> None:
        """Take the epsilon and the composition whose delta is wanted.

        parts: the dominating pairs of single releases, each with its number of releases. gdp: the mu >= 0 of Gaussian
        DP of the full-batch releases in the same composition (0 for none). wanted: the refinement ends with a bracket
        of at most this relative width, upper/lower - 1, or of `_WIDTH`
        (`_WIDTH_OF_FEW` for few releases) if that is larger.
        """
        self._question = epsilon, parts, gdp
        few = sum(steps for _, steps in parts) <= FEW_STEPS
        self._wanted = max(wanted, _WIDTH_OF_FEW if few else _WIDTH)
        self._points, self._least = _FIRST_POINTS, math.inf
        self._last: int | None = None

    def up_to(self, most: int) -> Bracket:
        """The bracket of delta(epsilon) that is the intersection of those of all grids tried in this call, none with
        more than `most` points.

        Raises:
            OverflowError: earlier calls have tried all of these grids, or more points do not help.
        """
        best = None
        while self._points <= most:
            points, before = self._points, self._least
            bracket, excess = self._grid(points)
            best = bracket if best is None else _both(best, bracket)
            self._least = min(before, excess)
            # More points gave a wider bracket than before: rounding errors dominate, which are smaller for fewer
            # points.
            if before < excess < 1 / self._wanted:
                best = self._fewer(best)
            stuck = excess > (_HELP if before * self._wanted < _USABLE else 1.0) * before
            if excess <= 1 or stuck or points == MOST_POINTS:
                self._points = 2 * MOST_POINTS
                break
            # The width is taken to be proportional to 1/points^order, so that `needed` times as many points give the
            # wanted width. The order is measured from the last two grids, and 2 after the first one. A wide bracket
            # may narrow faster than that, so for wide brackets the number of points grows at most 4 times.
            order = 2.0
            if self._last is not None and before < math.inf:
                order = min(max(math.log(before / excess) / math.log(points / self._last), 1.0), 2.0)
            self._last = points
            needed = 2 ** math.ceil(math.log2(min(excess, 2.0**40)) / order)
            self._points = min(points * (needed if excess * self._wanted < 1 else min(needed, 4)), MOST_POINTS)
        if best is None:
            raise OverflowError("no grid of so few points")
        return best

    def _grid(self, points: int) -> tuple[Bracket, float]:
        """Return the bracket of delta(epsilon) from a grid of `points` losses, and its relative width divided by the
        width that is wanted, so that at most 1 is narrow enough."""
        bracket = _grid_delta(*self._question, points)
        return bracket, (bracket.upper / bracket.lower - 1) / self._wanted if bracket.lower > 0 else math.inf

    def _fewer(self, best: Bracket) -> Bracket:
        """The bracket `best` together with grids whose points are halved as long as each gives a narrower bracket."""
        points = _FIRST_POINTS
        while self._least > 1 and points > _LEAST_POINTS:
            points //= 2
            bracket, excess = self._grid(points)
            best = _both(best, bracket)
            if excess >= self._least:
                break
            self._least = excess
        return best


def _both(one: Bracket, other: Bracket) -> Bracket:
    """The intersection of the brackets `one` and `other` of the same number, with the estimate of the narrower one."""
    narrow = min(one, other, key=lambda bracket: bracket.upper - bracket.lower)
    lower, upper = max(one.lower, other.lower), min(one.upper, other.upper)
    return replace(narrow, lower=lower, value=min(max(narrow.value, lower), upper), upper=upper)
