"""delta and epsilon of a recorded history of releases, as certified brackets.

Each release is first reduced to what its mechanism says (`mechanism.Cost`): to Gaussian releases, up to a ratio e^G,
or to pure epsilon. With epsilon' the answer for the Gaussian releases at delta e^-G and epsilon_p the pure epsilon,
adaptive composition gives epsilon <= epsilon' + 2 G + epsilon_p (`discrete.py` for G).

Gaussian releases that amount to plain ones (full batch, fixed order, q = 1) contribute mu^2 to one mu-GDP term; the
others contribute their dominating pairs. Both directions of the relation are composed separately and delta is the
larger of the two. A history with a random allocation is answered by `mixture`.
"""

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpzero_theory import check
from dpzero_theory.privacy import truncation
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.contour import delta_bracket, delta_estimate
from dpzero_theory.privacy.certified.crossing import MARGIN, Curve, crossing
from dpzero_theory.privacy.certified.grid import FEW, grid_delta, rough_log_delta
from dpzero_theory.privacy.certified.mixture import Mixture, mixture_curve, mixture_delta
from dpzero_theory.privacy.certified.pairs import Pair
from dpzero_theory.privacy.certified.rare import rare_delta
from dpzero_theory.privacy.certified.single import single_delta
from dpzero_theory.privacy.certified.tilting import cumulant
from dpzero_theory.privacy.gaussian import epsilon_from_gdp, log_delta_from_gdp
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.release import Release
from dpzero_theory.privacy.sampling import SAMPLINGS

Parts = tuple[tuple[Pair, int], ...]

_NARROW = 0.03
"""Relative width of a contour's bracket beyond which a grid is tried."""
_SEARCH_POINTS = (2**12, 2**15)
"""Of grids that only guide a search."""

_FIRST_BUDGET = 5e7
"""Of the contour before the grid is tried."""
_LEAST_POINTS, _MOST_POINTS = 2**13, 2**18
_HELP = 0.8
"""Share of a bracket's width to which more points must bring it to be worth more still."""
_FAILURES = 2
"""Of a method at nearby questions, after which it is left out."""
_WANTED, _WANTED_OF_FEW, _FEW_STEPS = 1e-3, 1e-4, 10
"""Relative width of delta at which a grid has points enough: of many steps, and of few."""

_CLOSED = "closed form"
_GDP_ACCURACY = 1e-11
"""Relative error of `log_delta_from_gdp`'s delta, as stated there."""


@dataclass(frozen=True)
class _Reduced:
    """A history as Gaussian releases up to a ratio e^ratio, and pure epsilon; `least`: epsilon from below at delta."""

    gaussian: tuple[Release, ...]
    ratio: float
    epsilon: float
    least: float


def _reduced(history: Sequence[Release], delta: float) -> _Reduced:
    releases = tuple(history)
    if not all(isinstance(r, Release) for r in releases):
        raise ValueError("history must be a sequence of Release")
    relations = dict.fromkeys(str(r.relation) for r in releases)
    if len(relations) > 1:
        raise ValueError(f"history must have one relation; got {', '.join(relations)}")
    costs = [MECHANISMS[r.mechanism].cost(r, delta) for r in releases]
    return _Reduced(
        gaussian=tuple(r for r, cost in zip(releases, costs, strict=True) if cost.gaussian),
        ratio=math.fsum(cost.ratio for cost in costs),
        epsilon=_up(math.fsum(cost.epsilon for cost in costs)),
        least=max((cost.least for cost in costs), default=0.0),
    )


def gaussian_part(history: Sequence[Release]) -> tuple[tuple[Release, ...], float]:
    """The history as Gaussian releases and G, where that is all it is.

    Raises ValueError for a history with a mechanism that is no Gaussian one.
    """
    reduced = _reduced(history, 0.0)
    for r in history:
        if r not in reduced.gaussian:
            raise ValueError(f"history must have Gaussian noise only; got mechanism {r.mechanism}")
    return reduced.gaussian, reduced.ratio


def _up(x: float) -> float:
    return math.nextafter(x, math.inf) if x > 0 else x


def _down(x: float) -> float:
    return math.nextafter(x, 0.0)


def total_gdp(releases: Sequence[Release]) -> float:
    """mu of the plain Gaussian releases: the root of the sum of their squares."""
    return math.hypot(*(r.terms.gdp for r in releases))


def compositions(releases: Sequence[Release], *, attained: bool = False) -> tuple[Parts, ...]:
    """The compositions whose delta is the answer: one for each direction of the relation; equal pairs are merged.

    With `attained` the pairs that data attain at every step, so that their delta is a lower bound; for one single
    release it is the answer (zero-out aside, where other data may be worse).
    """
    single = len(releases) == 1 and releases[0].steps == 1 and releases[0].relation is not Relation.ZERO_OUT
    attained = attained or single
    found: list[Parts] = []
    for index in (0, 1):
        steps: dict[Pair, int] = {}
        for r in releases:
            pairs = r.terms.attained if attained else r.terms.pairs
            if pairs:
                pair = pairs[min(index, len(pairs) - 1)]
                steps[pair] = steps.get(pair, 0) + r.steps
        parts = tuple(steps.items())
        if parts not in found:
            found.append(parts)
    return tuple(found)


def _chernoff(epsilon: float, parts: Parts, gdp: float, enough: float = 0.0) -> float:
    """An upper bound on delta(epsilon): prod M_j(tau) e^{-tau epsilon} (c(tau) <= 1) at the best of some tau, or at
    the first that says less than `enough`."""
    best = 0.0
    for tau in np.geomspace(1.0, 4.0**9, 10):
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
        upper = min(value * (1 + _GDP_ACCURACY), 1.0)
        return Bracket(value * (1 - _GDP_ACCURACY), value, upper, _CLOSED)
    if _largest_loss(parts, gdp) * (1 + 1e-12) <= epsilon:
        return Bracket(0.0, 0.0, 0.0, "largest loss")
    if gdp == 0 and [(len(pair.branches), steps) for pair, steps in parts] == [(1, 1)]:
        with contextlib.suppress(OverflowError):
            single = single_delta(epsilon, parts[0][0])
            if single.upper <= (1 + _NARROW) * single.lower:
                return single
    methods: list[tuple[str, Callable[[], Bracket]]] = [
        ("contour", lambda: delta_bracket(epsilon, parts, gdp, contour=contour, budget=_FIRST_BUDGET)),
        ("grid", lambda: _grid(epsilon, parts, gdp, wanted)),
        ("long contour", lambda: delta_bracket(epsilon, parts, gdp, contour=contour)),
    ]
    if _many(parts):
        methods.insert(1, ("apart", lambda: rare_delta(epsilon, parts, gdp)))
    found = []
    failures = {} if failures is None else failures
    for name, method in methods:
        if failures.get(name, 0) >= _FAILURES:
            continue
        with contextlib.suppress(OverflowError):
            found.append(method())
            if found[-1].upper <= (1 + _NARROW) * found[-1].lower:
                break
        failures[name] = failures.get(name, 0) + 1
    if found:
        return min(found, key=lambda bracket: bracket.upper - bracket.lower)
    upper = _chernoff(epsilon, parts, gdp)
    return Bracket(0.0, upper, upper, "Chernoff bound")


def _rare(parts: Parts) -> bool:
    """Whether the record is seldom in a batch and there are many."""
    return _many(parts) and math.fsum(steps * pair.sample_rate for pair, steps in parts) < FEW


def _many(parts: Parts) -> bool:
    return sum(steps for _, steps in parts) > _FEW_STEPS


def _grid(epsilon: float, parts: Parts, gdp: float, wanted: float) -> Bracket:
    """The grid with as many points as `_WANTED` needs, or the most, or as help."""
    wanted = max(wanted, _WANTED if sum(steps for _, steps in parts) > _FEW_STEPS else _WANTED_OF_FEW)
    points, best, least = _LEAST_POINTS, None, math.inf
    while True:
        found = grid_delta(epsilon, parts, gdp, points=points)
        excess = (found.upper / found.lower - 1) / wanted if found.lower > 0 else math.inf
        stuck = excess > _HELP * least
        if best is None or excess < least:
            best, least = found, excess
        if excess <= 1 or points == _MOST_POINTS or stuck:
            return best
        # the width falls as the square of the number of points, or more slowly
        points = min(points * 2 ** math.ceil(math.log2(min(excess, 2.0**40)) / 2), _MOST_POINTS)


def direction_curve(parts_at: Callable[[float], tuple[float, Parts, float]]) -> Curve:
    """The curve of delta over x, where parts_at(x) = (epsilon, composition, gdp)."""

    failures: dict[str, int] = {}
    known: dict[float, tuple[float, float | None]] = {}

    def bracket(x: float, tau: float | None, wanted: float) -> Bracket:
        epsilon, parts, gdp = parts_at(x)
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
            for points in _SEARCH_POINTS:
                with contextlib.suppress(OverflowError):
                    point = grid_delta(epsilon, parts, gdp, points=points)
                    if point.upper <= 1.2 * point.lower:
                        return point.log_value, None
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


def delta_of_history(history: Sequence[Release], epsilon: float) -> Bracket:
    """The smallest delta for which the history is (epsilon, delta)-DP.

    Args:
        history: releases, all with one relation; none cost nothing.
        epsilon: epsilon >= 0.

    Returns:
        A bracket; `value` is the estimate, `upper` is certified to hold.

    Raises:
        ValueError: an argument outside its range.
    """
    eps = check.real("epsilon", epsilon, at_least=0)
    reduced = _reduced(history, 0.0)
    beyond, ratio = reduced.epsilon, reduced.ratio
    # delta(epsilon) <= e^G delta'(left), delta' without the ratio; delta'(left) <= delta'(0) + 1 - e^left for left < 0
    left = math.nextafter(eps - 2 * ratio, -math.inf) if ratio else eps
    # pure epsilon e alone costs at most (e^e - e^left)/(1 + e^e) at left < e, beside Gaussian releases at 0
    pure = -math.expm1(max(left, 0.0) - beyond) / (1 + math.exp(-beyond)) if beyond > left else 0.0
    pure = max(pure, 0.0) - math.expm1(min(left, 0.0))
    if not reduced.gaussian:
        return Bracket(0.0, pure, min(_up(pure), 1.0), _CLOSED, notes(history))
    found = _gaussian_delta(reduced.gaussian, max(_down(left - beyond) if beyond else left, 0.0))
    if ratio + beyond == 0:
        return found
    upper = min(_up((found.upper + pure) * math.exp(ratio)), 1.0)
    lower = _gaussian_delta(reduced.gaussian, _up(eps + 2 * ratio)).lower * math.exp(-ratio)
    return Bracket(_down(lower), min(found.value + pure, upper), upper, found.method, notes(history))


def epsilon_of_history(history: Sequence[Release], delta: float) -> Bracket:
    """The smallest epsilon >= 0 for which the history is (epsilon, delta)-DP.

    Args:
        history: releases, all with one relation; none cost nothing.
        delta: 0 < delta < 1; 0 is allowed where no noise is Gaussian.

    Returns:
        A bracket with value = upper, the certified private side: delta(upper) <= delta.

    Raises:
        ValueError: an argument outside its range.
    """
    target = check.real("delta", delta, at_least=0, below=1)
    reduced = _reduced(history, target)
    if not reduced.gaussian:
        lower = min(reduced.least, reduced.epsilon)
        return Bracket(lower, reduced.epsilon, reduced.epsilon, _CLOSED, notes(history))
    check.real("delta", delta, above=0, below=1)
    if reduced.ratio == 0:
        found = _gaussian_epsilon(reduced.gaussian, target)
    else:
        found = _gaussian_epsilon(reduced.gaussian, _down(target * math.exp(-reduced.ratio)))
    upper = found.upper
    if reduced.ratio + reduced.epsilon > 0:
        upper = _up(found.upper + 2 * reduced.ratio + reduced.epsilon)
    # the lower end holds at delta (1 + MARGIN) too, so at delta e^G
    below = _down(found.lower) - 2 * reduced.ratio if reduced.ratio < MARGIN / 2 else 0.0
    return Bracket(max(below, reduced.least, 0.0), upper, upper, found.method, notes(history))


def _gaussian_delta(releases: Sequence[Release], epsilon: float) -> Bracket:
    if truncation.truncated(releases):
        found = truncation.delta(releases, epsilon, _gaussian_delta)
        return replace(found, notes=notes(releases))
    if mixture := allocated(releases):
        found = mixture_delta(epsilon, mixture)
        return Bracket(found.lower, found.value, found.upper, found.method, notes(releases))
    gdp = total_gdp(releases)
    above = [direction_delta(epsilon, parts, gdp) for parts in compositions(releases)]
    top = max(above, key=lambda b: b.upper)
    lower = max(b.lower for b in above)
    if compositions(releases, attained=True) != compositions(releases):
        lower = max(direction_delta(epsilon, parts, gdp).lower for parts in compositions(releases, attained=True))
    return Bracket(lower, max(lower, top.value), top.upper, top.method, notes(releases))


def gaussian_curve(at: Callable[[float], tuple[Sequence[Release], float]]) -> Curve:
    """The curve of delta over x of any Gaussian releases, where at(x) = (history, epsilon)."""

    def bracket(x: float, _: float | None, __: float) -> Bracket:
        return _gaussian_delta(*at(x))

    return Curve(bracket, lambda x, _: (bracket(x, None, 0.0).log_value, None))


def _gaussian_epsilon(releases: Sequence[Release], delta: float) -> Bracket:
    if truncation.truncated(releases):
        at_zero = _gaussian_delta(releases, 0.0)
        if at_zero.upper <= delta:
            return Bracket(0.0, 0.0, 0.0, at_zero.method, notes(releases))
        curve = gaussian_curve(lambda epsilon: (releases, epsilon))
        start = at_zero.upper * math.sqrt(2 * math.log(1 + at_zero.upper / delta))
        lower, upper, point = crossing([curve], start, -10.0, delta)
        return Bracket(lower, upper, upper, point.method, notes(releases))
    if mixture := allocated(releases):
        lower, upper, method = _allocated_epsilon(mixture, delta)
        return Bracket(lower, upper, upper, method, notes(releases))
    gdp = total_gdp(releases)
    above, below = compositions(releases), compositions(releases, attained=True)
    lower, upper, method = _epsilon(above, gdp, delta)
    if below != above:
        lower = _epsilon(below, gdp, delta)[0]
    return Bracket(lower, upper, upper, method, notes(releases))


def allocated(releases: Sequence[Release]) -> Mixture | None:
    """The history for `mixture`, if it has a random allocation."""
    runs = tuple(r.terms.run for r in releases if r.terms.run)
    if not runs:
        return None
    others = [r for r in releases if r.terms.run is None]
    return Mixture(
        runs,
        compositions(others),
        compositions(others, attained=True),
        total_gdp(others),
        replaced=releases[0].relation is Relation.REPLACE_ONE,
    )


def _allocated_epsilon(mixture: Mixture, target: float) -> tuple[float, float, str]:
    at_zero = mixture_delta(0.0, mixture, target=target)
    if at_zero.upper <= target:
        return 0.0, 0.0, at_zero.method
    if at_zero.value <= target:
        start = 1e-3 * at_zero.value
    else:
        start = at_zero.value * math.sqrt(2 * math.log(1 + at_zero.value / target))
    lower, upper, point = crossing([mixture_curve(lambda epsilon: (epsilon, mixture), target)], start, -10.0, target)
    return lower, upper, point.method


def _epsilon(compositions: Sequence[Parts], gdp: float, target: float) -> tuple[float, float, str]:
    if not any(compositions):
        found = float(epsilon_from_gdp(gdp, target))
        slack = _GDP_ACCURACY * max(found, gdp * gdp)
        return max(found - slack, 0.0), found + (slack if found > 0 else 0.0), _CLOSED

    def curve(parts: Parts) -> Curve:
        return direction_curve(lambda epsilon: (epsilon, parts, gdp))

    curves, scale = [], 0.0
    for parts in compositions:
        at_zero = direction_delta(0.0, parts, gdp)
        if at_zero.upper > target:
            curves.append(curve(parts))
            scale = max(scale, at_zero.value)
    if not curves:
        return 0.0, 0.0, at_zero.method
    start = scale * math.sqrt(2 * math.log(1 + scale / target))
    lower, upper, point = crossing(curves, start, -10.0, target)
    return lower, upper, point.method


def notes(history: Sequence[Release]) -> tuple[str, ...]:
    """What a reader must know about the certificate of this history."""
    found = [SAMPLINGS[r.sampling].note(r.relation) for r in history if r.sample_rate < 1]
    return tuple(dict.fromkeys(note for note in found if note))
