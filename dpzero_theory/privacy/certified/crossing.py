"""Where a decreasing curve of certified delta brackets crosses a target, as a certified bracket."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dpzero_theory.privacy.bracket import Bracket

MARGIN = 1e-14
"""Relative, of the target, by which a curve exceeds it at the lower end of `crossing`."""


_TRIES = 60
"""Evaluations after which a search for an end gives up."""
_MENDS = 6
"""Evaluations that hold, and are not far from the target, after which an end is near enough."""
_ROUGH, _LOOKS = 2.0, 20
"""In log delta, of a first search, and its most evaluations."""
_FINE = 5e-10
_NEXT = 1e-11
"""Relative in x, of an end and where it does not hold, between which a curve falls at once."""
_NEAR = 0.2
"""In log delta, of questions that can have the same contour."""
_SHARE = 0.1
_NOISE = 0.5
"""Share of a bracket's width by which ends must differ to say what the slope is."""
_SECANT = 1e-6
"""In log delta, of a first search by estimates."""
_JUMP = 1e-3
"""How near, relative in x, a search by rough estimates, which may jump, gets to the target."""
_AIM, _AIM_CLOSE = 0.03, 0.5
"""Share of how near an end is sought by which it is aimed at on the side that holds; without other room."""
_WANTED, _WIDEST = 2e-4, 0.02
"""Width that an end's bracket may have: relative in x, and at most, relative in delta."""
_RELATIVE = 1e-8
"""How near to the target an end is sought: in log delta, as a share of its bracket's width, or relative in x."""


@dataclass(frozen=True)
class Curve:
    """A curve of delta, decreasing in x > 0; `tau` is the contour of a nearby x, for speed, or None.

    bracket(x, wanted) is certified, the one that whoever asks for delta at x finds, and need not be narrower than
    `wanted`, relative; nearby(x, tau, wanted) is certified too, and may cost less; estimate(x, tau) gives (log delta,
    tau) without a certificate, -inf for a delta that is too small to be resolved, and no tau where it is a rough one;
    bound(x, enough) is a certified upper end that may cost less and need not be sharper than `enough`; rough(x) is log
    delta to a factor, for little, or None where `estimate` costs little.
    """

    bracket: Callable[[float, float], Bracket]
    estimate: Callable[[float, float | None], tuple[float, float | None]]
    bound: Callable[[float, float], float] | None = None
    rough: Callable[[float], float | None] = lambda _: None
    nearby: Callable[[float, float | None, float], Bracket] | None = None

    def exceeds(self, x: float, target: float) -> bool:
        """Whether delta may exceed the target there."""
        return (self.bound(x, target) if self.bound is not None else self.bracket(x, 0.0).upper) > target

    def below(self, x: float, tau: float | None, wanted: float) -> Bracket:
        """A bracket whose lower end alone will be used."""
        return self.nearby(x, tau, wanted) if self.nearby is not None else self.bracket(x, wanted)


def _secant(curve: Curve, start: float, slope: float, log_target: float) -> tuple[float, float, float, float | None]:
    """(x, log delta(x), d log delta / d log x, tau), log delta within 1e-6 of the target (0.01 where it is a rough
    estimate) or as near as it gets."""
    low, high = 0.0, math.inf
    x, slope = _roughly(curve, start, slope, log_target)
    previous: tuple[float, float] | None = None
    tau: float | None = None
    miss = math.inf
    for _ in range(100):
        log_delta, tau = curve.estimate(x, tau if abs(miss) < _NEAR else None)
        if log_delta == -math.inf:
            high, previous = x, None
            x = math.sqrt(low * high) if low > 0 else x / 1.6
            continue
        miss = log_delta - log_target
        if previous is not None and abs(x / previous[0] - 1) > 1e-5:
            chord = (miss - previous[1]) / math.log(x / previous[0])
            slope = chord if chord < -1e-6 else -1e-6
        rough = tau is None
        if abs(miss) < (0.01 if rough else _SECANT) or low > high * (1 - (_JUMP if rough else 1e-8)):
            break
        low, high = (x, high) if miss > 0 else (low, x)
        previous = (x, miss)
        x = _next(x, miss, slope, low, high)
    return x, log_target + miss, slope, tau


def _roughly(curve: Curve, start: float, slope: float, log_target: float) -> tuple[float, float]:
    """(x, slope) where `rough` is near the target; the start where it does not say."""
    x, low, high = start, 0.0, math.inf
    previous: tuple[float, float] | None = None
    for _ in range(_LOOKS):
        found = curve.rough(x)
        if found is None:
            return x, slope
        miss = found - log_target
        if previous is not None and abs(miss - previous[1]) > _ROUGH:
            chord = (miss - previous[1]) / math.log(x / previous[0])
            slope = chord if chord < 0 else slope
        if abs(miss) < _ROUGH:
            break
        low, high = (x, high) if miss > 0 else (low, x)
        previous = (x, miss)
        x = _next(x, miss, slope, low, high)
    return x, slope


def _next(x: float, miss: float, slope: float, low: float, high: float) -> float:
    """Where the secant of this slope has no miss, not far off; the middle where that is outside (low, high)."""
    new = x * math.exp(min(max(-miss / slope, -0.7), 0.7))
    if low < new < high:
        return new
    return math.sqrt(low * high) if low > 0 and high < math.inf else (2 * x if miss > 0 else x / 2)


def _width(point: Bracket) -> float:
    """Of log delta; at most `_WIDEST`: what two laws are apart says nothing of how near an end can be sought."""
    return min(math.log(point.upper / point.lower), _WIDEST) if point.lower > 0 else _WIDEST


def _end(
    bracket: Callable[[float], Bracket],
    start: float,
    slope: float,
    excess: Callable[[Bracket], float],
    fine: float,
) -> tuple[float, Bracket, float] | None:
    """(x, bracket there, slope) with excess <= 0 and nearly 0 (`fine`), from a start near it; None if there is none.

    `excess` is in log delta and has about the slope `slope` in log x.
    """
    x, good, bad = start, None, None
    least, factor, mends = 1e-10, 1.0, 0
    previous: tuple[float, float] | None = None
    for _ in range(_TRIES):
        point = bracket(x)
        found = excess(point)
        near = fine + _SHARE * _width(point)
        measured = previous is not None and abs(found - previous[1]) > 1e-8 + _NOISE * _width(point)
        if previous is not None and measured:
            chord = (found - previous[1]) / math.log(x / previous[0])
            slope *= min(max(chord / slope, 0.05), 20.0) if chord / slope > 0 else 1.0
        if found <= 0:
            good, mends = (x, point, slope), mends + (found > -_WIDEST)
            if found >= -near or mends >= _MENDS:
                return good
        else:
            bad = x
        previous = (x, found)
        # beyond the root by a little, more each time it was not enough
        aim = least + fine / 8 + 0.02 * _width(point)
        change = -(factor * found + aim) / slope if found > 0 else -(found + near / 2) / slope
        new = x * math.exp(min(max(change, -1.0), 1.0))
        if good is not None and bad is not None and not min(good[0], bad) < new < max(good[0], bad):
            new = math.sqrt(good[0] * bad)
            if abs(good[0] / bad - 1) < _NEXT:
                return good
        if found > 0:
            least, factor = 2 * least, 1.0 if measured else 1.3 * factor
        x = new
    return good


@dataclass(frozen=True)
class _Top:
    """Where delta is certainly at most the target, about as near to it as that can be; what is known from there."""

    x: float
    point: Bracket
    slope: float
    tau: float | None


def _top(curve: Curve, start: float, slope: float, target: float, *, roomy: bool) -> _Top:
    log_target = math.log(target)
    x, log_delta, slope, tau = _secant(curve, start, slope, log_target)

    def above(point: Bracket) -> float:
        if point.upper <= 0:
            return -1.0
        room = 2 * _FINE + 2 * _SHARE * _width(point) if roomy else 0.0
        return max(math.log(point.upper) - log_target + room, -math.inf if point.upper <= target else 5e-324)

    fine = _near(slope) if roomy else _FINE
    room = 2 * _FINE + _AIM * fine if roomy else _AIM_CLOSE * fine
    x *= math.exp(min(max((log_target - room - log_delta) / slope, -0.7), 0.7))
    # from its own start, so that anyone who evaluates delta at `upper` again finds the same bracket
    wanted = min(_WANTED * abs(slope), _WIDEST)
    end = _end(lambda x: curve.bracket(x, wanted), x, slope, above, fine)
    if end is None:
        raise OverflowError("no certified end")
    return _Top(*end, tau)


def _near(slope: float) -> float:
    """How near to the target, in log delta, an end is sought."""
    return max(_RELATIVE * abs(slope), _FINE)


def _below(curve: Curve, top: _Top, target: float) -> float:
    """An x close below the top at which delta certainly exceeds the target, 0 if there is none."""
    change = (_short(top.point, target) + _AIM * _near(top.slope)) / top.slope
    return _bottom(curve, top.x * math.exp(min(max(change, -1.0), 0.0)), top.slope, target, top.tau)


def _short(point: Bracket, target: float) -> float:
    """By how much, in log delta, a lower end misses being above the target."""
    if point.lower <= 0:
        return 1.0
    enough = point.lower > target * (1 + MARGIN)
    return max(math.log(target) - math.log(point.lower), -math.inf if enough else 1e-15)


def _bottom(curve: Curve, start: float, slope: float, target: float, tau: float | None) -> float:
    """An x, from a start near it, at which delta certainly exceeds the target, 0 if there is none."""
    wanted = min(_WANTED * abs(slope), _WIDEST)
    near = _near(slope)
    end = _end(lambda x: curve.below(x, tau, wanted), start, -slope, lambda point: _short(point, target), near)
    return end[0] if end is not None else 0.0


def crossing(
    curves: Sequence[Curve],
    start: float,
    slope: float,
    target: float,
    *,
    roomy: bool = False,
    below: bool = True,
) -> tuple[float, float, Bracket]:
    """Bracket of the least x at which every curve is at most `target`.

    Args:
        curves: decreasing curves; those that are below the target where another one crosses it cost one evaluation.
        start: a guess of x > 0.
        slope: a guess of d log delta / d log x < 0 there.
        target: 0 < target < 1, above the limit of every curve at infinity and below that of one of them at 0.
        roomy: leave room at `upper`, so that a search along another variable through the same point, which stops
            when it is this near to the target, does not go beyond the point.
        below: whether the lower end is sought; else it is 0, for less.

    Returns:
        (lower, upper, bracket at upper); every curve's upper end is at most `target` at `upper`, and one curve's
        lower end exceeds it at `lower`, by `MARGIN` at least.
    """
    tops = list(_tops(curves, start, slope, target, roomy=roomy))
    last = max((top for _, top in tops), key=lambda top: top.x)
    lower = max(_below(curve, top, target) for curve, top in tops) if below else 0.0
    return lower, last.x, last.point


def upper_crossing(
    curves: Sequence[Curve], start: float, slope: float, target: float, *, roomy: bool = False
) -> tuple[float, Bracket, float]:
    """What `crossing` says of the upper end, for less: (upper, bracket at upper, slope there)."""
    last = max((top for _, top in _tops(curves, start, slope, target, roomy=roomy)), key=lambda top: top.x)
    return last.x, last.point, last.slope


def _tops(
    curves: Sequence[Curve], start: float, slope: float, target: float, *, roomy: bool
) -> Iterator[tuple[Curve, _Top]]:
    """Of the first curve, and of those that exceed the target at the largest so far."""
    last: _Top | None = None
    for curve in curves:
        if last is None or curve.exceeds(last.x, target):
            top = _top(curve, last.x if last else start, last.slope if last else slope, target, roomy=roomy)
            last = top if last is None or top.x > last.x else last
            yield curve, top


def lower_crossing(curves: Sequence[Curve], start: float, slope: float, target: float) -> float:
    """The first of what `crossing` returns, for less: an x at which one curve certainly exceeds the target."""
    lower = 0.0
    for curve in curves:
        if lower > 0 and (not curve.exceeds(lower, target) or curve.below(lower, None, 0.0).lower <= target):
            continue
        x, log_delta, steep, tau = _secant(curve, start, slope, math.log(target))
        near = _AIM * _near(steep)
        x *= math.exp(min(max((math.log(target) + near - log_delta) / steep, -0.7), 0.7))
        lower = max(lower, _bottom(curve, x, steep, target, tau))
    return lower
