"""delta(epsilon) of one composition of dominating pairs: which method answers, and the curve for a root search."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.special import log_ndtr

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.contour import delta_bracket, delta_estimate
from dpzero_theory.privacy.certified.crossing import Curve
from dpzero_theory.privacy.certified.grid import FEW, grid_delta, rough_log_delta
from dpzero_theory.privacy.certified.pairs import Pair
from dpzero_theory.privacy.certified.rare import rare_delta
from dpzero_theory.privacy.certified.single import single_delta
from dpzero_theory.privacy.certified.tilting import cumulant
from dpzero_theory.privacy.gaussian import log_delta_from_gdp

Parts = tuple[tuple[Pair, int], ...]

CLOSED = "closed form"
GDP_ACCURACY = 1e-11
"""Relative error of `log_delta_from_gdp`'s delta, as stated there."""
_NARROW = 0.03
"""Relative width of a contour's bracket beyond which a grid is tried."""
_SHARP = 2e-3
"""Relative width of a grid's bracket beyond which a long contour is tried."""
_SEARCH_POINTS = {2**12: 1.2, 2**15: 10.0}
"""Of grids that only guide a search, and how far apart their ends may be."""

_BUDGETS = (5e7, 3e8, 1e9)
"""Of the contour: before a grid is tried, before a fine one is, and last."""
_LEAST_POINTS, _COARSE_POINTS, _MOST_POINTS = 2**13, 2**15, 2**18
_HELP = 0.8
"""Share of a bracket's width to which more points must bring it to be worth more still."""
_SAME = 1e-9
"""Relative width at which whether the record is used is all there is to say."""
_SIDE = {"add": "remove", "remove": "remove", "replace": "replace", "fixed-size": "remove"}
_FAILURES = 2
"""Of a method at nearby questions, after which it is left out."""
_WANTED, _WANTED_OF_FEW, _FEW_STEPS = 1e-3, 1e-4, 10
"""Relative width of delta at which a grid has points enough: of many steps, and of few."""


def _chernoff(epsilon: float, parts: Parts, gdp: float, enough: float = 0.0) -> float:
    """An upper bound on delta(epsilon): prod M_j(tau) e^{-tau epsilon} (c(tau) <= 1) at the best of some tau, or at
    the first that says less than `enough`."""
    best = 0.0
    for tau in np.geomspace(1.0, 4.0**8, 9):
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
    failures: dict[str, int] | None = None,
) -> Bracket:
    """delta(epsilon) of one composition, choosing the method.

    contour: that of a nearby question, for speed. wanted: a relative width that is narrow enough, beyond what is so for
    everyone. failures: of each method at nearby questions, added to; one that failed before is left out.
    """
    if not parts:
        value = math.exp(float(log_delta_from_gdp(epsilon, gdp)))
        upper = min(value * (1 + GDP_ACCURACY), 1.0)
        return Bracket(value * (1 - GDP_ACCURACY), value, upper, CLOSED)
    if _largest_loss(parts, gdp) * (1 + 1e-12) <= epsilon:
        return Bracket(0.0, 0.0, 0.0, "largest loss")
    if gdp == 0 and [(len(pair.branches), steps) for pair, steps in parts] == [(1, 1)]:
        with contextlib.suppress(OverflowError):
            single = single_delta(epsilon, parts[0][0])
            if single.upper <= (1 + _NARROW) * single.lower:
                return single
    least, most = _by_use(epsilon, parts, gdp)
    if most <= (1 + _SAME) * least:
        return Bracket(least, least, most, "use of the record")
    methods = _methods(epsilon, parts, gdp, contour, wanted)
    found = []
    failures = {} if failures is None else failures
    for name, enough, method in methods:
        if failures.get(name, 0) >= _FAILURES:
            continue
        with contextlib.suppress(OverflowError):
            found.append(method())
            if found[-1].upper <= (1 + enough) * found[-1].lower:
                break
        failures[name] = failures.get(name, 0) + 1
    if not found:
        upper = _chernoff(epsilon, parts, gdp)
        found.append(Bracket(0.0, upper, upper, "Chernoff bound"))
    best = min(found, key=lambda bracket: bracket.upper - bracket.lower)
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
    first, second, last = map(line, _BUDGETS)
    return [
        ("contour", _NARROW, first),
        *([("apart", _NARROW, lambda: rare_delta(epsilon, parts, gdp))] if _many(parts) else []),
        ("grid", sharp, lambda: grid.up_to(_COARSE_POINTS)),
        ("longer contour", _NARROW, second),
        ("fine grid", sharp, lambda: grid.up_to(_MOST_POINTS)),
        ("long contour", _NARROW, last),
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
    return _many(parts) and math.fsum(steps * pair.sample_rate for pair, steps in parts) < FEW


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
        """The narrowest with at most so many points.

        Raises:
            OverflowError: they are too few, or more points do not help.
        """
        best = None
        while self._points <= most:
            found = grid_delta(*self._question, points=self._points)
            excess = (found.upper / found.lower - 1) / self._wanted if found.lower > 0 else math.inf
            stuck = excess > _HELP * self._least and self._least * self._wanted < _NARROW
            if best is None or found.upper - found.lower < best.upper - best.lower:
                best, self._least = found, min(self._least, excess)
            if excess <= 1 or stuck or self._points == _MOST_POINTS:
                self._points = 2 * _MOST_POINTS
                break
            # the width falls as the square of the number of points, or more slowly
            needed = self._points * 2 ** math.ceil(math.log2(min(excess, 2.0**40)) / 2)
            self._points = min(needed, _MOST_POINTS)
        if best is None:
            raise OverflowError("no grid of so few points")
        return best


def direction_curve(parts_at: Callable[[float], tuple[float, Parts, float]]) -> Curve:
    """The curve of delta over x, where parts_at(x) = (epsilon, composition, gdp)."""

    failures: dict[str, int] = {}
    known: dict[float, tuple[float, float | None]] = {}

    def bracket(x: float, tau: float | None, wanted: float) -> Bracket:
        epsilon, parts, gdp = parts_at(x)
        if tau is None:  # the end to be used: by the methods that answer whoever asks for delta there
            return direction_delta(epsilon, parts, gdp, wanted=wanted)
        return direction_delta(epsilon, parts, gdp, contour=tau, wanted=wanted, failures=failures)

    def estimate(x: float, tau: float | None) -> tuple[float, float | None]:
        if x in known:
            return known.pop(x)
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
            for points, enough in _SEARCH_POINTS.items():
                with contextlib.suppress(OverflowError):
                    point = grid_delta(epsilon, parts, gdp, points=points)
                    if point.upper <= enough * point.lower:
                        return (math.log(point.lower) + math.log(point.upper)) / 2, None
            with contextlib.suppress(OverflowError):
                return rough_log_delta(epsilon, parts, gdp), None
        point = direction_delta(epsilon, parts, gdp, contour=tau)
        return point.log_value if point.lower > 0 else -math.inf, tau

    def bound(x: float, enough: float) -> float:
        epsilon, parts, gdp = parts_at(x)
        few = math.fsum(steps * pair.sample_rate for pair, steps in parts) < FEW
        return _chernoff(epsilon, parts, gdp, enough) if parts and few else math.inf

    def rough(x: float) -> float | None:
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

    return Curve(bracket, estimate, bound, rough)
