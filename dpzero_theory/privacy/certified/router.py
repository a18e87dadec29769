"""delta(epsilon) of one composition of dominating pairs: the choice of the method that computes it, and curves for
searches.

A relation between data sets has two directions, (P, Q) with the record under P and (Q, P) without it. A question here
is an epsilon and a composition whose delta is wanted, for one of the two directions. If delta has a closed form, that
is used. For every other question the methods in `METHODS` are tried, from the cheapest on, until a bracket is narrow
enough. Any method gives a bracket that holds, so the order and all constants below decide the time and the width only,
never whether an answer is right. The constants were chosen by timing the accountant on random settings and on the
corners of their range.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.analytic.bounds import by_use, chernoff
from dpzero_theory.privacy.certified.analytic.contour import delta_bracket, delta_estimate
from dpzero_theory.privacy.certified.analytic.rare import rare_delta
from dpzero_theory.privacy.certified.analytic.single import single_delta
from dpzero_theory.privacy.certified.crossing import Curve
from dpzero_theory.privacy.certified.grids.grid import grid_delta
from dpzero_theory.privacy.certified.grids.refinement import FEW_STEPS, MOST_POINTS, RefinedGrid
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.laws.parts import Parts
from dpzero_theory.privacy.certified.laws.sketch import FEW, rare_log_delta, rough_log_delta
from dpzero_theory.privacy.gaussian import GDP_ACCURACY, log_delta_from_gdp

CLOSED, CHERNOFF = "closed form", "Chernoff bound"
"""The `method` of a bracket that is exact but for rounding, and of one that is from `bounds.chernoff`."""


@dataclass(frozen=True)
class _Method:
    """One line of `METHODS`: a method that computes delta, with its limits.

    name: how the method is called, such as "contour" or "grid".
    enough: if the bracket of delta has at most this relative width, no further method is tried.
    products: for a contour, which sums over frequencies t and outputs x, the most pairs (t, x); 5e7 of them take 0.04 s
    of one core. It is 0 for other methods.
    long: `products` is divided by this for a composition of more than 20,000 releases, because each pair then takes
    about that many times longer (`characteristic.log_far`).
    points: for a grid, the most points of its Fourier transform; 2^15 of them take 0.02 s, 2^18 take 0.1 s. It is 0 for
    other methods.
    """

    name: str
    enough: float
    products: float = 0.0
    long: float = 1.0
    points: int = 0


_NARROW, _SHARP = 0.03, 2e-3
"""The relative widths of delta's bracket with which no further method is tried. The first is for contours, whose
brackets are about 1e-11 wide or useless. The second is for grids: to narrow such a bracket by a contour with more nodes
is not worth its time."""

METHODS = (
    _Method("contour", _NARROW, products=5e7),
    _Method("apart", _NARROW),
    _Method("longer contour", _NARROW, products=1e8, long=2.5),
    _Method("grid", _SHARP, points=2**15),
    _Method("long contour", _NARROW, products=5e8),
    _Method("fine grid", _SHARP, points=MOST_POINTS),
    _Method("longest contour", _NARROW, products=1e9),
)
"""The methods that compute delta, in the order in which they are tried. A contour (module `contour`) answers many
releases in milliseconds; `apart` is `rare.rare_delta`, for more than ten releases if the record is seldom in a batch; a
grid (module `grid`) answers few releases."""
_LONG_STEPS = 20_000
"""If a composition has more releases than this, the limit on a contour's products is divided by `_Method.long`."""
_FAILURES = 2
"""A method is left out after it was of no use (its bracket was not the one returned) at this many nearby questions in a
row."""
_NEARBY = 2.0
"""Two questions of a root search are nearby if the ratio of their x is at most this."""

_UNRESOLVED = 1e-300
"""If delta is certainly below this, the bracket from 0 to this is returned: no method resolves such small numbers."""
_CLOSE, _LARGE = 0.25, 200.0
"""Chernoff's bound is computed, to see whether delta is below `_UNRESOLVED`, if epsilon is above the second number or
above the first number times the largest possible privacy loss; for smaller epsilon delta is not so small."""
_SKETCH_POINTS = 2**12
"""The points of a grid that takes some milliseconds, and shows the order of magnitude of delta."""
_SAME = 1e-9
"""If the bracket by `bounds.by_use` (the probability that the record is in any batch) has at most this relative width,
it is returned without trying another method."""


def _largest_loss(parts: Parts, gdp: float) -> float:
    """An upper bound on the total privacy loss of the pairs in `parts`; infinite if a `gdp`-GDP mechanism is beside
    them."""
    return math.inf if gdp > 0 else math.fsum(steps * pair.largest_loss for pair, steps in parts)


def _few(parts: Parts) -> bool:
    """Whether the record is in fewer than `FEW` batches on average, over all releases in `parts`."""
    return math.fsum(steps * pair.sample_rate for pair, steps in parts) < FEW


def _many(parts: Parts) -> bool:
    """Whether there are more than `FEW_STEPS` releases in `parts`."""
    return sum(steps for _, steps in parts) > FEW_STEPS


def _closed(epsilon: float, parts: Parts, gdp: float, small: float) -> Bracket | None:
    """The bracket of delta at `epsilon` if a closed form or a simple bound gives one that no method would narrow, or
    one below `small`; else None.

    parts: the dominating pairs of single releases, each with its number of releases. gdp: the mu >= 0 of Gaussian DP of
    the full-batch releases in the same composition (0 for none). small: a bracket whose upper end is below this number
    is not narrowed further.
    """
    if not parts:
        value = math.exp(float(log_delta_from_gdp(epsilon, gdp)))
        upper = min(value * (1 + GDP_ACCURACY) + 5e-324, 1.0)
        return Bracket(value * (1 - GDP_ACCURACY), value, upper, CLOSED)
    largest = _largest_loss(parts, gdp)
    if largest * (1 + 1e-12) <= epsilon:
        return Bracket(0.0, 0.0, 0.0, "largest loss")
    below = max(small, _UNRESOLVED)
    maybe = epsilon > min(_CLOSE * largest, _LARGE) or (small > 0 and _few(parts))
    if maybe and chernoff(epsilon, parts, gdp, below) < below:
        return Bracket(0.0, below, below, CHERNOFF)
    first = parts[0][0]
    if gdp == 0 and [steps for _, steps in parts] == [1] and isinstance(first, Pair) and len(first.branches) == 1:
        with contextlib.suppress(OverflowError):
            single = single_delta(epsilon, first)
            if single.upper <= (1 + _NARROW) * single.lower:
                return single
    least, most = by_use(epsilon, parts, gdp)
    return Bracket(least, least, most, "use of the record") if most <= (1 + _SAME) * least else None


@lru_cache(maxsize=64)
def _summed(method: _Method, epsilon: float, parts: Parts, gdp: float, contour: float | None) -> Bracket:
    """The bracket of delta at `epsilon` by a method that uses no grid.

    The last results are cached: after a search for epsilon or the noise, delta is often asked for at the same epsilon
    and noise. Raises OverflowError where the method gives no bracket.
    """
    if not method.products:
        return rare_delta(epsilon, parts, gdp)
    steps = sum(count for _, count in parts)
    budget = method.products / (method.long if steps > _LONG_STEPS else 1.0)
    return delta_bracket(epsilon, parts, gdp, contour=contour, budget=budget)


class Router:
    """Computes delta of one composition after another, and leaves out methods that were of no use twice in a row.

    The epsilons and compositions should be near each other: those of a root search, or histories that differ in a few
    releases.
    """

    def __init__(self) -> None:
        """Start with no method left out."""
        self._failures: Counter[str] = Counter()

    def useless(self, name: str) -> bool:
        """Whether the method called `name` has been of no use so often that it is left out."""
        return self._failures[name] >= _FAILURES

    def failed(self, name: str, times: int = 1) -> None:
        """Note that the method called `name` was of no use at a question, and count that as `times` questions."""
        self._failures[name] += times

    @property
    def fresh(self) -> bool:
        """Whether no method has been of no use since it was last of use."""
        return not self._failures

    def settle(self) -> None:
        """From now on leave out every method that was of no use at the last question to which it was applied."""
        for name in self._failures:
            self._failures[name] = _FAILURES

    def delta(
        self,
        epsilon: float,
        parts: Parts,
        gdp: float,
        *,
        contour: float | None = None,
        wanted: float = 0.0,
        small: float = 0.0,
    ) -> Bracket:
        """The certified bracket of delta(epsilon), by the methods that are not left out.

        parts: the dominating pairs of single releases, each with its number of releases. gdp: the mu >= 0 of Gaussian
        DP of the full-batch releases in the same composition (0 for none). contour: the tilt tau of a contour that was
        used for a nearby question, or None. wanted: a relative width, upper/lower - 1; a grid's bracket of at most this
        width, or of that in `METHODS` if larger, is not narrowed further. small: nor is any bracket whose upper end is
        below this number.
        """
        known = _closed(epsilon, parts, gdp, small)
        if known is not None:
            return known
        grid = RefinedGrid(epsilon, parts, gdp, wanted)

        def ask(method: _Method) -> Bracket:
            if method.points:
                return grid.up_to(method.points)
            return _summed(method, epsilon, parts, gdp, contour)

        brackets: dict[str, Bracket] = {}
        for method in METHODS:
            name = method.name
            if self.useless(name) or (name == "apart" and not _many(parts)):
                continue
            self.failed(name)
            with contextlib.suppress(OverflowError):
                brackets[name] = ask(method)
                enough = max(method.enough, wanted) if method.points else method.enough
                if brackets[name].upper <= max((1 + enough) * brackets[name].lower, small):
                    break
        if not brackets:
            upper = chernoff(epsilon, parts, gdp)
            brackets[CHERNOFF] = Bracket(0.0, upper, upper, CHERNOFF)
        used = min(brackets, key=lambda name: brackets[name].upper - brackets[name].lower)
        self._failures.pop(used, None)
        best = brackets[used]
        if best.upper <= (1 + _NARROW) * best.lower:
            return best
        least, most = by_use(epsilon, parts, gdp)
        lower, upper = max(least, best.lower), min(most, best.upper)
        return Bracket(lower, min(max(best.value, lower), upper), upper, best.method)


def direction_delta(
    epsilon: float,
    parts: Parts,
    gdp: float,
    *,
    contour: float | None = None,
    small: float = 0.0,
) -> Bracket:
    """Certified bracket of delta(epsilon) of one composition of dominating pairs and a `gdp`-GDP mechanism.

    If no method gives a bracket, that from 0, or from a lower bound by `bounds.by_use`, to Chernoff's bound is
    returned.

    Args:
        epsilon: epsilon >= 0.
        parts: the pairs with their numbers of releases, none or more.
        gdp: the mu >= 0 of Gaussian DP of the full-batch releases in the same composition (0 for none).
        contour: the tilt tau of a contour that was used for a nearby epsilon or composition, which saves a search, or
            None.
        small: a bracket whose upper end is below this number is not narrowed further.
    """
    return Router().delta(epsilon, parts, gdp, contour=contour, small=small)


def surely_above(epsilon: float, parts: Parts, gdp: float, number: float) -> bool:
    """Whether a quick lower bound on delta(epsilon) is above `number`. False says nothing: delta may still be above it.

    parts: the dominating pairs of single releases, each with its number of releases. gdp: the mu >= 0 of Gaussian DP of
    the full-batch releases in the same composition (0 for none).
    """
    if by_use(epsilon, parts, gdp)[0] > number:
        return True
    with contextlib.suppress(OverflowError):
        return bool(parts) and grid_delta(epsilon, parts, gdp, points=_SKETCH_POINTS).lower > number
    return False


def _sketched(points: int) -> Callable[[float, Parts, float], Bracket]:
    """A function that computes delta on a grid with `points` points, as a certified bracket whose ends may be far
    apart.

    Its `value` is set at a sixteenth of the way from the lower end to the upper end, where delta typically is.
    """

    def sketch(epsilon: float, parts: Parts, gdp: float) -> Bracket:
        bracket = grid_delta(epsilon, parts, gdp, points=points)
        return replace(bracket, value=bracket.lower + (bracket.upper - bracket.lower) / 16)

    return sketch


def _long_sketch(epsilon: float, parts: Parts, gdp: float) -> Bracket:
    """The bracket of delta(epsilon) by a contour with as many nodes as the largest method allows, whose nodes are
    chosen for an error of about 1e-6 of delta.

    parts: the dominating pairs of single releases, each with its number of releases. gdp: the mu >= 0 of Gaussian DP of
    the full-batch releases in the same composition (0 for none).
    """
    error = rough_log_delta(epsilon, parts, gdp) - 14.0
    return delta_bracket(epsilon, parts, gdp, budget=METHODS[-1].products, log_error=error)


_GUIDES: tuple[tuple[str, float, Callable[[float, Parts, float], Bracket]], ...] = (
    ("apart", 1 + _NARROW, rare_delta),
    ("sketch", 1.2, _sketched(_SKETCH_POINTS)),
    ("fine sketch", 1.2, _sketched(2**15)),
    ("long sketch", 1.5, _long_sketch),
    ("wide sketch", 10.0, _sketched(2**15)),
)
"""Methods that estimate delta for a root search where the estimate on a contour fails, in the order in which they are
tried. Each has a name, the largest ratio of its bracket's upper end to the lower end with which the estimate is used,
and the function of (epsilon, composition, gdp) that computes the bracket."""


class _DirectionCurve:
    """The five functions of `crossing.Curve` for a composition that depends on x, which is epsilon or the noise.

    Two things are remembered between calls: which methods were of no use near the last x, so that a search does not try
    them at every step; and estimates that `rough` computed, which `estimate` then returns.
    """

    def __init__(self, parts_at: Callable[[float], tuple[float, Parts, float]]) -> None:
        """Take the function from x to what it stands for: epsilon, the pairs with their numbers of releases, and mu of
        the full-batch releases beside them."""
        self._at = parts_at
        self._router = Router()
        self._x = 0.0
        self._known: dict[float, tuple[float, float | None]] = {}

    def _move(self, x: float) -> None:
        """Try all methods again if x is more than a factor `_NEARBY` from the x at which this was last done."""
        if not self._x / _NEARBY < x < self._x * _NEARBY:
            self._router = Router()
            self._x = x

    def bracket(self, x: float, wanted: float) -> Bracket:
        """The certified bracket of delta at x, for which all methods are tried; those that were of no use are left out
        afterwards.

        wanted: as in `Router.delta`, a relative width at which a grid's bracket is not narrowed further.
        """
        self._router = Router()
        found = self._router.delta(*self._at(x), wanted=wanted)
        self._router.settle()
        return found

    def nearby(self, x: float, tau: float | None, wanted: float) -> Bracket:
        """A certified bracket of delta at x, without the methods that were of no use at nearby x.

        tau: the tilt of a contour that was used for a nearby x, or None. wanted: as in `Router.delta`, a relative width
        at which a grid's bracket is not narrowed further.
        """
        return self._router.delta(*self._at(x), contour=tau, wanted=wanted)

    def estimate(self, x: float, tau: float | None) -> tuple[float, float | None]:
        """An estimate of log delta at x, and the tilt of the contour that was used, or None if none was. Log delta is
        -inf if no lower bound above 0 is found.

        tau: the tilt of a contour that was used for a nearby x, or None. The estimate is by a contour if possible, and
        else by the first of `_GUIDES` that is of use.
        """
        if x in self._known:
            return self._known.pop(x)
        self._move(x)
        epsilon, parts, gdp = self._at(x)
        if parts and epsilon < _largest_loss(parts, gdp):
            if not self._router.useless("contour"):
                with contextlib.suppress(OverflowError):
                    found = delta_estimate(epsilon, parts, gdp, contour=tau)
                    if found is not None:
                        return found
                self._router.failed("contour")
            for name, ratio, guide in _GUIDES:
                if self._router.useless(name) or (name == "apart" and not _many(parts)):
                    continue
                with contextlib.suppress(OverflowError):
                    point = guide(epsilon, parts, gdp)
                    if point.upper <= ratio * point.lower:
                        return point.log_value, None
                self._router.failed(name)
            with contextlib.suppress(OverflowError):
                return rough_log_delta(epsilon, parts, gdp), None
        point = direction_delta(epsilon, parts, gdp, contour=tau)
        return point.log_value if point.lower > 0 else -math.inf, tau

    def bound(self, x: float, enough: float) -> float:
        """An upper bound on delta at x. enough: where the bound is below this number, it may be far above delta."""
        return direction_delta(*self._at(x), small=enough).upper

    def rough(self, x: float) -> float | None:
        """The log of a rough delta at x if there are more than `FEW_STEPS` releases and the record is in fewer than
        `FEW` batches on average; else None.

        In other cases `estimate` itself takes little time. In this one the estimate on a contour often fails. Where it
        succeeds, it is kept for the next call of `estimate` at this x, and None is returned here.
        """
        self._move(x)
        epsilon, parts, gdp = self._at(x)
        if not (parts and _many(parts) and _few(parts) and epsilon < _largest_loss(parts, gdp)):
            return None
        rare = rare_log_delta(epsilon, parts, gdp)
        if rare is not None:
            return rare
        if self._router.fresh:
            with contextlib.suppress(OverflowError):
                estimate = delta_estimate(epsilon, parts, gdp)
                if estimate is not None:
                    self._known[x] = estimate
                    return None
            self._router.failed("contour", _FAILURES)
        return rough_log_delta(epsilon, parts, gdp)


def direction_curve(parts_at: Callable[[float], tuple[float, Parts, float]]) -> Curve:
    """The curve of delta over x, which is epsilon or the noise, for a root search.

    parts_at: a function from x to what it stands for: epsilon, the pairs with their numbers of releases, and mu of the
    full-batch releases beside them.
    """
    curve = _DirectionCurve(parts_at)
    return Curve(curve.bracket, curve.estimate, curve.bound, curve.rough, curve.nearby)
