"""delta(epsilon) of one composition of dominating pairs: which method answers, and the curve for a root search."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import log_ndtr

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.analytic.contour import delta_bracket, delta_estimate
from dpzero_theory.privacy.certified.analytic.rare import rare_delta
from dpzero_theory.privacy.certified.analytic.single import single_delta
from dpzero_theory.privacy.certified.analytic.tilting import cumulant
from dpzero_theory.privacy.certified.crossing import Curve
from dpzero_theory.privacy.certified.grids.grid import grid_delta
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.laws.sketch import FEW, rough_log_delta
from dpzero_theory.privacy.gaussian import log_delta_from_gdp

Parts = tuple[tuple[Pair, int], ...]

CLOSED = "closed form"
GDP_ACCURACY = 1e-11
"""Relative error of `log_delta_from_gdp`'s delta, as stated there."""
_NARROW = 0.03
"""Relative width of a contour's bracket beyond which a grid is tried."""
_SHARP = 2e-3
"""Relative width of a grid's bracket beyond which a long contour is tried."""
_ABOVE, _LONG_ERROR = 1 / 16, -14.0
"""Where in a coarse grid's bracket delta is, about; log of the error of a contour that guides, over a rough delta."""

_BUDGETS = (5e7, 1e8, 5e8, 1e9)
"""Of the contour: before large losses are taken apart, before a grid is tried, before a fine one is, and last."""
_LONG_STEPS, _PRICE = 20_000, 2.5
"""Steps from which a contour costs so much more (`characteristic.log_far`) than a grid."""
_FEWEST_POINTS, _LEAST_POINTS, _COARSE_POINTS, _MOST_POINTS = 2**9, 2**13, 2**15, 2**18
_HELP = 0.8
"""Share of a bracket's width to which more points must bring it to be worth more still."""
_CLOSE, _LARGE, _NEXT_TO_NOTHING = 0.25, 200.0, 1e-300
"""Share of the largest loss, and epsilon, from which delta may be as small as that, which no other method resolves."""
_SAME = 1e-9
"""Relative width at which whether the record is used is all there is to say."""
_SIDE = {"add": "remove", "remove": "remove", "replace": "replace", "fixed-size": "remove"}
_FAILURES = 2
"""Of a method at nearby questions, after which it is left out."""
_FAR_OFF = 2.0
"""A question this many times further is not nearby."""
_WANTED, _WANTED_OF_FEW, _FEW_STEPS = 1e-3, 1e-4, 10
"""Relative width of delta at which a grid has points enough: of many steps, and of few."""


def _chernoff(epsilon: float, parts: Parts, gdp: float, enough: float = 0.0) -> float:
    """An upper bound on delta(epsilon): prod M_j(tau) e^{-tau epsilon} (c(tau) <= 1) at the best of some tau, or at
    the first that says less than `enough`."""
    best = 0.0
    for tau in np.geomspace(1.0, 4.0**16, 17):
        total = gdp**2 * tau * (tau + 1) / 2 - tau * epsilon
        try:
            for pair, steps in parts:
                value, error = cumulant(pair, float(tau))
                total += steps * (value + error)
        except OverflowError:
            break
        if total > best:  # convex in tau
            break
        best = total
        if math.exp(best) < enough:
            break
    return min(math.exp(best) + 5e-324, 1.0)


def _largest_loss(parts: Parts, gdp: float) -> float:
    """An upper bound on the total loss."""
    return math.inf if gdp > 0 else math.fsum(steps * pair.largest_loss for pair, steps in parts)


def direction_delta(
    epsilon: float,
    parts: Parts,
    gdp: float,
    *,
    contour: float | None = None,
    wanted: float = 0.0,
    small: float = 0.0,
    failures: dict[str, int] | None = None,
) -> Bracket:
    """delta(epsilon) of one composition, choosing the method.

    contour: that of a nearby question, for speed. wanted: a relative width that is narrow enough, beyond what is so for
    everyone. small: a delta below which it is enough to know that it is. failures: how often each method was of no use
    at nearby questions, added to; `_FAILURES` leave one out.
    """
    if not parts:
        value = math.exp(float(log_delta_from_gdp(epsilon, gdp)))
        upper = min(value * (1 + GDP_ACCURACY) + 5e-324, 1.0)
        return Bracket(value * (1 - GDP_ACCURACY), value, upper, CLOSED)
    largest = _largest_loss(parts, gdp)
    if largest * (1 + 1e-12) <= epsilon:
        return Bracket(0.0, 0.0, 0.0, "largest loss")
    below = max(small, _NEXT_TO_NOTHING)
    maybe = epsilon > min(_CLOSE * largest, _LARGE) or (small > 0 and _few(parts))
    if maybe and _chernoff(epsilon, parts, gdp, below) < below:
        return Bracket(0.0, below, below, "Chernoff bound")
    if gdp == 0 and [(len(pair.branches), steps) for pair, steps in parts] == [(1, 1)]:
        with contextlib.suppress(OverflowError):
            single = single_delta(epsilon, parts[0][0])
            if single.upper <= (1 + _NARROW) * single.lower:
                return single
    least, most = _by_use(epsilon, parts, gdp)
    if most <= (1 + _SAME) * least:
        return Bracket(least, least, most, "use of the record")
    methods = _methods(epsilon, parts, gdp, contour, wanted)
    found: dict[str, Bracket] = {}
    failures = {} if failures is None else failures
    for name, enough, method in methods:
        if failures.get(name, 0) >= _FAILURES:
            continue
        failures[name] = failures.get(name, 0) + 1
        with contextlib.suppress(OverflowError):
            found[name] = method()
            if found[name].upper <= max((1 + enough) * found[name].lower, small):
                break
    if not found:
        upper = _chernoff(epsilon, parts, gdp)
        found["Chernoff bound"] = Bracket(0.0, upper, upper, "Chernoff bound")
    used = min(found, key=lambda name: found[name].upper - found[name].lower)
    failures.pop(used, None)
    best = found[used]
    if best.upper <= (1 + _NARROW) * best.lower:
        return best
    lower, upper = max(least, best.lower), min(most, best.upper)
    return Bracket(lower, min(max(best.value, lower), upper), upper, best.method)


def _methods(
    epsilon: float, parts: Parts, gdp: float, contour: float | None, wanted: float
) -> list[tuple[str, float, Callable[[], Bracket]]]:
    """(name, relative width of delta that is narrow enough, method), in the order in which they are tried."""

    def line(budget: float) -> Callable[[], Bracket]:
        return lambda: delta_bracket(epsilon, parts, gdp, contour=contour, budget=budget)

    grid = _Grid(epsilon, parts, gdp, wanted)
    sharp = max(_SHARP, wanted)
    price = _PRICE if sum(steps for _, steps in parts) > _LONG_STEPS else 1.0
    first, second, third, last = map(line, (_BUDGETS[0], _BUDGETS[1] / price, *_BUDGETS[2:]))
    return [
        ("contour", _NARROW, first),
        *([("apart", _NARROW, lambda: rare_delta(epsilon, parts, gdp))] if _many(parts) else []),
        ("longer contour", _NARROW, second),
        ("grid", sharp, lambda: grid.up_to(_COARSE_POINTS)),
        ("long contour", _NARROW, third),
        ("fine grid", sharp, lambda: grid.up_to(_MOST_POINTS)),
        ("longest contour", _NARROW, last),
    ]


def _by_use(epsilon: float, parts: Parts, gdp: float) -> tuple[float, float]:
    """(lower, upper) end of delta(epsilon) by whether the record is used: sharp where the noise hides nothing.

    Where it is not used both laws are the same, so delta is at most the chance that it is (and the plain releases'
    delta). From below: the outputs that are, or are not, all on the far side of the middle between the two means.
    """
    unused, low_p, low_q = 0.0, 0.0, 0.0
    for pair, steps in parts:
        near = float(log_ndtr(0.5 / pair.noise))
        log_p, log_q = (
            steps * math.log1p(-math.exp(tail)) for tail in replace(pair, kind=_SIDE[pair.kind]).beyond(0.5)
        )
        unused += steps * math.log1p(-pair.sample_rate)
        low_p, low_q = (low_p + steps * near, low_q + log_p) if pair.kind == "add" else (low_p + log_p, low_q + log_q)
    upper = -math.expm1(unused) * (1 + 1e-12)
    if gdp > 0:
        upper += math.exp(float(log_delta_from_gdp(epsilon, gdp))) * (1 + GDP_ACCURACY)
    if parts[0][0].kind == "add":
        lower = math.exp(low_p) - math.exp(min(epsilon + low_q, 700.0))
    else:
        lower = -math.expm1(low_p) + math.exp(min(epsilon, 700.0)) * math.expm1(low_q)
    return max(lower - 1e-12, 0.0), min(upper, 1.0)


def _rare(parts: Parts) -> bool:
    """Whether the record is seldom in a batch and there are many."""
    return _many(parts) and _few(parts)


def _few(parts: Parts) -> bool:
    return math.fsum(steps * pair.sample_rate for pair, steps in parts) < FEW


def _many(parts: Parts) -> bool:
    return sum(steps for _, steps in parts) > _FEW_STEPS


class _Grid:
    """Grids with as many points as `_WANTED` needs, or as help; a later call goes on where an earlier one ended."""

    def __init__(self, epsilon: float, parts: Parts, gdp: float, wanted: float) -> None:
        self._question = epsilon, parts, gdp
        few = sum(steps for _, steps in parts) <= _FEW_STEPS
        self._wanted = max(wanted, _WANTED_OF_FEW if few else _WANTED)
        self._points, self._least = _LEAST_POINTS, math.inf

    def up_to(self, most: int) -> Bracket:
        """What those with at most so many points say.

        Raises:
            OverflowError: they are too few, or more points do not help.
        """
        best = None
        while self._points <= most:
            points, before = self._points, self._least
            found, excess = self._found(points)
            best = found if best is None else _both(best, found)
            self._least = min(before, excess)
            if before < excess < 1 / self._wanted:  # of rounding: fewer points have less
                best = self._fewer(best)
            stuck = excess > (_HELP if before * self._wanted < _NARROW else 1.0) * before
            if excess <= 1 or stuck or points == _MOST_POINTS:
                self._points = 2 * _MOST_POINTS
                break
            # the width falls as the square of the number of points, or more slowly; faster where it is large
            needed = 2 ** math.ceil(math.log2(min(excess, 2.0**40)) / 2)
            self._points = min(points * (needed if excess * self._wanted < 1 else min(needed, 4)), _MOST_POINTS)
        if best is None:
            raise OverflowError("no grid of so few points")
        return best

    def _found(self, points: int) -> tuple[Bracket, float]:
        """The bracket, and its relative width over what is wanted."""
        found = grid_delta(*self._question, points=points)
        return found, (found.upper / found.lower - 1) / self._wanted if found.lower > 0 else math.inf

    def _fewer(self, best: Bracket) -> Bracket:
        """What those with fewer and fewer points say besides, as long as they are narrower."""
        points = _LEAST_POINTS
        while self._least > 1 and points > _FEWEST_POINTS:
            points //= 2
            found, excess = self._found(points)
            best = _both(best, found)
            if excess >= self._least:
                break
            self._least = excess
        return best


def _both(one: Bracket, other: Bracket) -> Bracket:
    """What both say; the value of the narrower one."""
    narrow = min(one, other, key=lambda bracket: bracket.upper - bracket.lower)
    lower, upper = max(one.lower, other.lower), min(one.upper, other.upper)
    return replace(narrow, lower=lower, value=min(max(narrow.value, lower), upper), upper=upper)


def _sketched(points: int) -> Callable[[float, Parts, float], Bracket]:
    def sketch(epsilon: float, parts: Parts, gdp: float) -> Bracket:
        found = grid_delta(epsilon, parts, gdp, points=points)
        return replace(found, value=found.lower + _ABOVE * (found.upper - found.lower))

    return sketch


def _long_sketch(epsilon: float, parts: Parts, gdp: float) -> Bracket:
    error = rough_log_delta(epsilon, parts, gdp) + _LONG_ERROR
    return delta_bracket(epsilon, parts, gdp, budget=_BUDGETS[-1], log_error=error)


_SEARCHES = (
    ("sketch", 1.2, _sketched(2**12)),
    ("fine sketch", 1.2, _sketched(2**15)),
    ("long sketch", 1.5, _long_sketch),
    ("wide sketch", 10.0, _sketched(2**15)),
)
"""Methods that only guide a search, and how far apart their ends may be."""


def direction_curve(parts_at: Callable[[float], tuple[float, Parts, float]]) -> Curve:
    """The curve of delta over x, where parts_at(x) = (epsilon, composition, gdp)."""

    failures: dict[str, int] = {}
    known: dict[float, tuple[float, float | None]] = {}
    place = 0.0  # where the failures were

    def move(x: float) -> None:
        nonlocal place
        if not place / _FAR_OFF < x < place * _FAR_OFF:
            failures.clear()
            place = x

    def bracket(x: float, wanted: float) -> Bracket:
        useless: dict[str, int] = {}
        found = direction_delta(*parts_at(x), wanted=wanted, failures=useless)
        failures.clear()
        failures.update(dict.fromkeys(useless, _FAILURES))
        return found

    def nearby(x: float, tau: float | None, wanted: float) -> Bracket:
        return direction_delta(*parts_at(x), contour=tau, wanted=wanted, failures=failures)

    def estimate(x: float, tau: float | None) -> tuple[float, float | None]:
        if x in known:
            return known.pop(x)
        move(x)
        epsilon, parts, gdp = parts_at(x)
        if parts and epsilon < _largest_loss(parts, gdp):
            if failures.get("contour", 0) < _FAILURES:
                with contextlib.suppress(OverflowError):
                    found = delta_estimate(epsilon, parts, gdp, contour=tau)
                    if found is not None:
                        return found
                failures["contour"] = failures.get("contour", 0) + 1
            if failures.get("apart", 0) < _FAILURES and _many(parts):
                with contextlib.suppress(OverflowError):
                    point = rare_delta(epsilon, parts, gdp)
                    if point.upper <= (1 + _NARROW) * point.lower:
                        return point.log_value, None
                failures["apart"] = failures.get("apart", 0) + 1
            for name, enough, sketch in _SEARCHES:
                if failures.get(name, 0) < _FAILURES:
                    with contextlib.suppress(OverflowError):
                        point = sketch(epsilon, parts, gdp)
                        if point.upper <= enough * point.lower:
                            return point.log_value, None
                    failures[name] = failures.get(name, 0) + 1
            with contextlib.suppress(OverflowError):
                return rough_log_delta(epsilon, parts, gdp), None
        point = direction_delta(epsilon, parts, gdp, contour=tau)
        return point.log_value if point.lower > 0 else -math.inf, tau

    def bound(x: float, enough: float) -> float:
        return direction_delta(*parts_at(x), small=enough).upper

    def rough(x: float) -> float | None:
        move(x)
        epsilon, parts, gdp = parts_at(x)
        if not (parts and _rare(parts) and epsilon < _largest_loss(parts, gdp)):
            return None
        if not failures:
            with contextlib.suppress(OverflowError):
                found = delta_estimate(epsilon, parts, gdp)
                if found is not None:
                    known[x] = found
                    return None
            failures["contour"] = _FAILURES
        return rough_log_delta(epsilon, parts, gdp)

    return Curve(bracket, estimate, bound, rough, nearby)
