"""Where decreasing curves of delta, known by certified brackets, cross a target: a certified bracket of that point x.

x is epsilon or the noise, for example. A search has two stages. Uncertified estimates find x to about the digits that
are wanted; then certified brackets of delta on both sides of it prove that x is between: at the lower end delta exceeds
the target, at the upper end it is at most the target. The "miss" of an x is log delta there minus the log of the
target; a "slope" is d log delta / d log x, which is negative. The tau of an x is the real part of the complex numbers
(a contour) over which the integral for its delta was computed; a nearby x may use the same. The constants were chosen
so that a search takes few certified brackets, which cost most; none of them decides whether the answer holds.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from dpzero_theory.bisection import LogSecant, halved, outward
from dpzero_theory.privacy.bracket import Bracket

MARGIN = 1e-14
"""At the lower end that `crossing` returns, delta exceeds the target by at least this share of the target."""

_ROUGH_MISS, _MOST_LOOKS = 2.0, 20
"""A search by `Curve.rough` ends where delta is within a factor e^2 of the target, or after 20 evaluations."""
_SECANT_MISS, _SECANT_MISS_OF_ROUGH = 1e-6, 0.01
"""A search by `Curve.estimate` ends where the absolute difference of log delta and the log of the target is below the
first number, or below the second one if the estimate is a rough one."""
_ROUGH_STEP = 1e-3
"""A search by rough estimates, which may jump, also ends where x is bracketed to this relative width."""
_SAME_CONTOUR = 0.2
"""If log delta at the last x differs from the log of the target by less than this, the estimate at the next x uses the
same contour parameter tau; else a new one is sought."""
_LEAST_MISS, _FINE_STEP = 5e-10, 1e-8
"""An x is near enough to be an end of the bracket of x if log delta differs there from the log of the target by less
than the first number, or if moving x to the target would change x by less than the second number, relative."""
_MISS_SHARE = 0.1
"""The difference that is near enough (`_LEAST_MISS`) is raised by this share of the width, in log delta, of delta's
bracket at x. An upper end that is to leave room leaves twice as much."""
_TELLING_SHARE = 0.5
"""The slope is measured anew from two certified brackets of delta if they differ by more than this share of the width
of one of them; if they differ by less, the difference may be mere error."""
_AIM_SHARE, _AIM_WITHOUT_ROOM = 0.03, 0.5
"""The first x tried for an end is aimed at a delta a little on the safe side of the target, by this share of the miss
that is near enough. The second number is for an upper end that leaves no other room."""
_MOST_TRIES = 60
"""A search for an end of the bracket of x gives up after this many certified brackets of delta, unless the curve says
fewer."""
_MOST_MENDS = 6
"""A search for an end of the bracket of x that has found this many valid x close to the target, none of them near
enough, returns the last of them."""
_MOST_DOUBLINGS, _BISECTED = 10, 1e-4
"""A search by bisection first looks for the smallest valid x among the guess times 2^k, |k| at most the first number,
and then bisects x down to the second number, relative."""
_ASTRAY, _RESOLVED_SHARE = 3.0, 0.01
"""The upper end is sought again by bisection if it is more than this many times the guess, and if the lower end of
delta's bracket there is below this share of its upper end: such a bracket is wide because of rounding errors."""
_TELLING = 0.1
"""If the lower end of delta's bracket at the upper end of x is below this share of its upper end, it says nothing, and
the search for the lower end of x begins there."""
_SAYS_NOTHING = 1.0
"""The excess of an x as a lower end whose bracket of delta begins at 0. The moves away from such x double in length."""
_SAME_X_AT_NOTHING = 1e-3
"""As `_SAME_X`, where the bracket of delta at the other x begins at 0: such curves jump, and are far from sharp."""
_SAME_X = 1e-11
"""If one x can be an end and another x this near to it, relative, cannot, the curve jumps there and the search ends."""
_WANTED_STEP, _WIDEST_WANTED = 2e-4, 0.02
"""An end is asked for a bracket of delta whose relative width corresponds, by the slope, to the first number as a
relative change of x. The second number is the largest width that is asked for."""


@dataclass(frozen=True)
class Curve:
    """A curve of delta that decreases in x > 0, given by five functions of x.

    The argument tau is the contour parameter that was used at a nearby x, which saves time, or None.

    Attributes:
        bracket: (x, wanted) -> the certified bracket of delta at x, the same that other callers get who ask for delta
            there. Its relative width, upper/lower - 1, need not be less than `wanted`.
        estimate: (x, tau) -> an estimate of log delta without a certificate, and the contour parameter that was used.
            Log delta is -inf if delta is too small to be resolved; the parameter is None if the estimate is a rough
            one.
        bound: (x, enough) -> a certified upper bound on delta, which may take less time than `bracket`. Where it is
            below `enough` it may be many times delta.
        rough: x -> log delta with an error of about 1, in little time, or None where `estimate` itself takes little
            time.
        nearby: (x, tau, wanted) -> a certified bracket of delta at x that may take less time than that of `bracket`,
            and may differ from it.
        share: the difference of log delta from the log of the target that is near enough at an end (`_LEAST_MISS`) is
            raised by this share of the width, in log delta, of delta's bracket there.
        tries: a search for an end of the bracket of x gives up after so many certified brackets of delta.
        miss: a search by rough estimates ends where log delta is nearer to the log of the target than this.
    """

    bracket: Callable[[float, float], Bracket]
    estimate: Callable[[float, float | None], tuple[float, float | None]]
    bound: Callable[[float, float], float] | None = None
    rough: Callable[[float], float | None] = lambda _: None
    nearby: Callable[[float, float | None, float], Bracket] | None = None
    share: float = _MISS_SHARE
    tries: int = _MOST_TRIES
    miss: float = _SECANT_MISS_OF_ROUGH

    def exceeds(self, x: float, target: float) -> bool:
        """Whether delta at x may exceed `target`; if False, it certainly does not."""
        return (self.bound(x, target) if self.bound is not None else self.bracket(x, 0.0).upper) > target

    def below(self, x: float, tau: float | None, wanted: float) -> Bracket:
        """A certified bracket of delta at x, of which only the lower end will be used.

        tau: the contour parameter of a nearby x, or None. wanted: the relative width, upper/lower - 1, at which the
        bracket need not be narrowed further; the returned one may be wider.
        """
        return self.nearby(x, tau, wanted) if self.nearby is not None else self.bracket(x, wanted)


def _secant(curve: Curve, start: float, slope: float, log_target: float) -> tuple[float, float, float, float | None]:
    """An x at which the curve's uncertified estimate of log delta is near `log_target`, found by the secant method.

    start: a guess of x. slope: a guess of d log delta / d log x. It returns x, log delta there, the slope there, and
    the contour parameter tau with which delta was estimated there, None if the estimate is a rough one.
    """
    search = LogSecant(*_roughly(curve, start, slope, log_target))
    tau: float | None = None
    miss = math.inf

    def missed(x: float) -> float:
        nonlocal miss, tau
        log_delta, tau = curve.estimate(x, tau if abs(miss) < _SAME_CONTOUR else None)
        if log_delta > -math.inf:
            miss = log_delta - log_target
        return log_delta - log_target

    def near(value: float) -> bool:
        enough, step = (curve.miss, _ROUGH_STEP) if tau is None else (_SECANT_MISS, _FINE_STEP)
        return abs(value) < enough or search.low > search.high * (1 - step)

    search.run(missed, near, 100)
    return search.x, log_target + miss, search.slope, tau


def _roughly(curve: Curve, start: float, slope: float, log_target: float) -> tuple[float, float]:
    """An x at which the curve's rough values of log delta are near `log_target`, and the slope there.

    start: a guess of x. slope: a guess of d log delta / d log x. The search ends where log delta is within 2 of
    `log_target`, or at an x for which there is no rough value.
    """
    search = LogSecant(start, slope)

    def missed(x: float) -> float | None:
        log_delta = curve.rough(x)
        return None if log_delta is None else log_delta - log_target

    search.run(missed, lambda value: abs(value) < _ROUGH_MISS, _MOST_LOOKS, _ROUGH_MISS)
    return search.x, search.slope


def _width(point: Bracket) -> float:
    """The smaller of log(upper/lower) for the bracket `point` of delta, and `_WIDEST_WANTED`, which is also returned if
    `lower` is 0.

    A bracket is wider than that if different laws give its two ends, and then its width does not limit how near to the
    target an end can be sought.
    """
    return min(math.log(point.upper / point.lower), _WIDEST_WANTED) if point.lower > 0 else _WIDEST_WANTED


def _end(
    bracket: Callable[[float], Bracket],
    start: float,
    slope: float,
    excess: Callable[[Bracket], float],
    fine: float,
    curve: Curve,
) -> tuple[float, Bracket, float] | None:
    """A search for one end of the bracket of x: an x that can be this end, the bracket of delta at x, and the slope of
    the excess.

    None is returned if no such x is found. The excess at the returned x is at most 0, and near 0 if the search
    succeeded.

    bracket: the function from x to the certified bracket of delta at x.
    start: a guess of x.
    slope: about d excess / d log x.
    excess: the function from a bracket of delta to the amount, in log delta, by which x fails to be a valid end. It is
    positive if x cannot be the end, and far below 0 if x is farther from the target than it need be.
    fine: x is near enough if the excess is above -fine, less the share `curve.share` of the bracket's width.
    curve: the curve whose delta is sought; it says how many tries are made.
    """
    # The functions of `bisection` are not used here: the width of delta's bracket at x decides how far beyond the root
    # to aim.
    x, good, bad, jump = start, None, None, _SAME_X
    least, factor, mends = 1e-10, 1.0, 0
    previous: tuple[float, float] | None = None
    for _ in range(curve.tries):
        point = bracket(x)
        failed = excess(point)
        near = fine + curve.share * _width(point)
        measured = previous is not None and abs(failed - previous[1]) > 1e-8 + _TELLING_SHARE * _width(point)
        if previous is not None and measured:
            chord = (failed - previous[1]) / math.log(x / previous[0])
            slope *= min(max(chord / slope, 0.05), 20.0) if chord / slope > 0 else 1.0
        if failed <= 0:
            good, mends = (x, point, slope), mends + (failed > -_WIDEST_WANTED)
            if failed >= -near or mends >= _MOST_MENDS:
                return good
        else:
            bad, jump = x, _SAME_X_AT_NOTHING if failed == _SAYS_NOTHING else _SAME_X
        previous = (x, failed)
        # The next x aims a little past the x where the excess is 0, and farther past it each time that the bracket
        # showed the x not to be a valid end.
        aim = least + fine / 8 + 0.02 * _width(point)
        change = -(factor * failed + aim) / slope if failed > 0 else -(failed + near / 2) / slope
        new = x * math.exp(min(max(change, -1.0), 1.0))
        if good is not None and bad is not None and not min(good[0], bad) < new < max(good[0], bad):
            new = math.sqrt(good[0] * bad)
            if abs(good[0] / bad - 1) < jump:
                return good
        if failed > 0:
            least, factor = 2 * least, 1.0 if measured else factor * (2.0 if failed == _SAYS_NOTHING else 1.3)
        x = new
    return good


@dataclass(frozen=True)
class _Top:
    """The upper end of the bracket of x: there delta is certainly at most the target, and nearly equal to it.

    x: that end. point: the bracket of delta at x. slope: d log delta / d log x there. tau: the contour parameter of the
    last estimate, or None.
    """

    x: float
    point: Bracket
    slope: float
    tau: float | None


def _top(curve: Curve, start: float, slope: float, target: float, *, roomy: bool) -> _Top:
    """The upper end of the bracket of x for one curve.

    start: a guess of x. slope: a guess of d log delta / d log x there. roomy: whether to leave some room between delta
    and the target. Raises OverflowError if no upper end is found.
    """
    log_target = math.log(target)
    x, log_delta, slope, tau = _secant(curve, start, slope, log_target)

    def above(point: Bracket) -> float:
        if point.upper <= 0:
            return -1.0
        room = 2 * _LEAST_MISS + 2 * _MISS_SHARE * _width(point) if roomy else 0.0
        return max(math.log(point.upper) - log_target + room, -math.inf if point.upper <= target else 5e-324)

    fine = _near(slope) if roomy else _LEAST_MISS
    room = 2 * _LEAST_MISS + _AIM_SHARE * fine if roomy else _AIM_WITHOUT_ROOM * fine
    x *= math.exp(min(max((log_target - room - log_delta) / slope, -0.7), 0.7))
    # `Curve.bracket` is used, not `Curve.nearby`, so that whoever later asks for delta at this x gets the same bracket.
    wanted = min(_WANTED_STEP * abs(slope), _WIDEST_WANTED)

    def certified(x: float) -> Bracket:
        return curve.bracket(x, wanted)

    end = _end(certified, x, slope, above, fine, curve)
    if end is None or (end[0] > _ASTRAY * start and end[1].lower < _RESOLVED_SHARE * end[1].upper):
        other = _bisected(certified, start, slope, above)
        end = min(filter(None, (end, other)), key=lambda found: found[0], default=None)
    if end is None:
        raise OverflowError("no certified end")
    return _Top(*end, tau)


def _bisected(
    bracket: Callable[[float], Bracket], start: float, slope: float, excess: Callable[[Bracket], float]
) -> tuple[float, Bracket, float] | None:
    """A valid end of the bracket of x, found by bisection; the bracket of delta there, and `slope`. None if no end is
    found.

    bracket: the function from x to the certified bracket of delta. start: a guess of x. excess: the function from a
    bracket of delta to the amount, in log delta, by which x fails to be a valid end; at most 0 if it is one. Bisection
    is used where brackets of delta are narrow near the target alone. At larger x delta is too small to be resolved, and
    there wide brackets mislead secants.
    """
    brackets: dict[float, Bracket] = {}

    def meets(x: float) -> bool:
        brackets[x] = bracket(x)
        return excess(brackets[x]) <= 0

    def middle(miss: float, hit: float) -> float:
        return math.sqrt(miss * hit) if hit / miss - 1 > _BISECTED else hit

    least, most = start * 2.0**-_MOST_DOUBLINGS, start * 2.0**_MOST_DOUBLINGS
    held = outward(meets, least, least, most=2 * most)[1]
    if held > most:
        return None
    x = halved(lambda x: not meets(x), held / 2, held, middle=middle)[1]
    return x, brackets[x], slope


def _near(slope: float) -> float:
    """The largest difference between log delta and the log of the target at an end that is near enough.

    An end is one of the bracket of x, which is what is searched for. slope: d log delta / d log x there.
    """
    return max(_FINE_STEP * abs(slope), _LEAST_MISS)


def _below(curve: Curve, top: _Top, target: float) -> float:
    """An x at which delta on the curve certainly exceeds the target; 0 if none is found.

    It is the lower end of the bracket of the x at which delta is the target. top: the upper end of this bracket, a
    little below which the lower end is sought.
    """
    short = _short(top.point, target) if top.point.lower > _TELLING * top.point.upper else 0.0
    change = (short + _AIM_SHARE * _near(top.slope)) / top.slope
    return _bottom(curve, top.x * math.exp(min(max(change, -1.0), 0.0)), top.slope, target, top.tau)


def _short(point: Bracket, target: float) -> float:
    """The amount, in log delta, by which the lower end of the bracket `point` fails to exceed `target`; at most 0 if it
    exceeds it."""
    if point.lower <= 0:
        return _SAYS_NOTHING
    enough = point.lower > target * (1 + MARGIN)
    return max(math.log(target) - math.log(point.lower), -math.inf if enough else 1e-15)


def _bottom(curve: Curve, start: float, slope: float, target: float, tau: float | None) -> float:
    """An x near the guess `start` at which delta of the curve certainly exceeds the target; 0 if none is found.

    slope: d log delta / d log x there, < 0. tau: the contour parameter of a nearby x, or None.
    """
    wanted = min(_WANTED_STEP * abs(slope), _WIDEST_WANTED)
    near = _near(slope)
    end = _end(lambda x: curve.below(x, tau, wanted), start, -slope, lambda point: _short(point, target), near, curve)
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
    """A certified bracket of the least x at which every curve is at most `target`.

    Args:
        curves: decreasing curves. One that is below the target where another one crosses it takes one evaluation only.
        start: a guess of x > 0.
        slope: a guess of d log delta / d log x < 0 there.
        target: 0 < target < 1, above the limit of every curve at infinity and below that of one of them at 0.
        roomy: leave some room between delta at `upper` and the target. If the noise is calibrated with it for an
            epsilon, a later search for the epsilon of that noise then returns no more than that epsilon.
        below: whether the lower end is sought; else it is 0, which takes half the time.

    Returns:
        (lower, upper, bracket). At `upper` the upper end of every curve's bracket is at most `target`. At `lower` the
        lower end of one curve's bracket exceeds it by at least the share `MARGIN` of it; it is 0 if no such point was
        found. `bracket` is that of delta at `upper`, of the curve that crosses the target last.

    Raises:
        OverflowError: no x is found at which delta is certainly at most the target.
    """
    tops = list(_tops(curves, start, slope, target, roomy=roomy))
    last = max((top for _, top in tops), key=lambda top: top.x)
    lower = max(_below(curve, top, target) for curve, top in tops) if below else 0.0
    return lower, last.x, last.point


def upper_crossing(
    curves: Sequence[Curve], start: float, slope: float, target: float, *, roomy: bool = False
) -> tuple[float, Bracket, float]:
    """A certified x at which every one of the decreasing `curves` is at most `target`, and nearly the least such x.

    start, slope: guesses of x and of d log delta / d log x there. roomy: whether to leave some room between delta and
    the target. It returns x, the bracket of delta there, and the slope; it takes less time than `crossing`, because no
    lower end is sought. Raises OverflowError if no such x is found.
    """
    last = max((top for _, top in _tops(curves, start, slope, target, roomy=roomy)), key=lambda top: top.x)
    return last.x, last.point, last.slope


def _tops(
    curves: Sequence[Curve], start: float, slope: float, target: float, *, roomy: bool
) -> Iterator[tuple[Curve, _Top]]:
    """Yield the curves that need a search, each with the upper end of its bracket of x. Raises OverflowError if one has
    no such end.

    They are the first curve, and every later one whose delta may exceed the target at the largest upper end so far.
    start, slope: guesses of x and of d log delta / d log x there. roomy: whether to leave some room between delta and
    the target.
    """
    last: _Top | None = None
    for curve in curves:
        if last is None or curve.exceeds(last.x, target):
            top = _top(curve, last.x if last else start, last.slope if last else slope, target, roomy=roomy)
            last = top if last is None or top.x > last.x else last
            yield curve, top


def lower_crossing(curves: Sequence[Curve], start: float, slope: float, target: float) -> float:
    """An x at which one of the decreasing `curves` certainly exceeds `target`, near the largest such x; 0 if none is
    found.

    start: a guess of x. slope: a guess of d log delta / d log x there. It takes less time than `crossing`.
    """
    lower = 0.0
    for curve in curves:
        if lower > 0 and (not curve.exceeds(lower, target) or curve.below(lower, None, 0.0).lower <= target):
            continue
        x, log_delta, steep, tau = _secant(curve, start, slope, math.log(target))
        near = _AIM_SHARE * _near(steep)
        x *= math.exp(min(max((math.log(target) + near - log_delta) / steep, -0.7), 0.7))
        lower = max(lower, _bottom(curve, x, steep, target, tau))
    return lower
