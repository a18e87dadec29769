"""delta and epsilon of a recorded history of releases, as certified brackets.

A history is a sequence of `pairs.Group`. Groups that are exactly Gaussian (full batch, fixed order, q = 1)
contribute mu^2 to one mu-GDP term; the others contribute their dominating pairs. Both directions of the
neighbouring relation are composed separately and delta is the larger of the two. A history of random allocations and
exactly Gaussian groups is answered by `allocation`; beside Poisson or fixed-size batches a random allocation counts as
one batch an epoch.
"""

import contextlib
import math
from collections.abc import Callable, Sequence

import numpy as np

from dpzero_theory import check
from dpzero_theory.privacy.certified.allocation import Run, allocation_curve, allocation_delta
from dpzero_theory.privacy.certified.contour import DeltaBracket, delta_bracket, delta_estimate
from dpzero_theory.privacy.certified.crossing import Curve, crossing
from dpzero_theory.privacy.certified.grid import grid_delta
from dpzero_theory.privacy.certified.pairs import Bracket, Group, Pair
from dpzero_theory.privacy.certified.tilting import cumulant
from dpzero_theory.privacy.gaussian import epsilon_from_gdp, log_delta_from_gdp

__all__ = [
    "allocations",
    "delta_of_history",
    "direction_curve",
    "direction_delta",
    "directions",
    "epsilon_of_history",
    "notes",
    "total_gdp",
]

Parts = tuple[tuple[Pair, int], ...]

_NARROW = 0.03
"""Relative width of a contour's bracket beyond which a grid is tried."""
_SEARCH_POINTS = 2**16

_CLOSED = "closed form"
_GDP_ACCURACY = 1e-11
"""Relative error of `log_delta_from_gdp`'s delta, as stated there."""


def _checked(history: Sequence[Group]) -> tuple[Group, ...]:
    groups = tuple(history)
    if not groups or not all(isinstance(g, Group) for g in groups):
        raise ValueError("history must be a non-empty sequence of pairs.Group")
    if len({g.relation for g in groups}) > 1:
        raise ValueError("history must have one relation; got both")
    return groups


def total_gdp(history: Sequence[Group]) -> float:
    """mu of the exactly Gaussian groups: the root of the sum of their squares."""
    return math.hypot(*(g.gdp for g in history))


def directions(history: Sequence[Group], *, attained: bool = False) -> tuple[Parts, ...]:
    """The compositions whose delta is the answer: one for each direction; equal pairs are merged.

    With `attained` the pairs that data attain at every step, so that their delta is a lower bound; for one single
    release it is the answer.
    """
    attained = attained or (len(history) == 1 and history[0].steps == 1)
    found: list[Parts] = []
    for index in (0, 1):
        steps: dict[Pair, int] = {}
        for g in history:
            pairs = g.attained() if attained else g.pairs()
            if pairs:
                pair = pairs[min(index, len(pairs) - 1)]
                steps[pair] = steps.get(pair, 0) + g.steps
        parts = tuple(steps.items())
        if parts not in found:
            found.append(parts)
    return tuple(found)


def _chernoff(epsilon: float, parts: Parts, gdp: float) -> float:
    """An upper bound on delta(epsilon): the least of prod M_j(tau) e^{-tau epsilon} over some tau (c(tau) <= 1)."""
    best = 0.0
    for tau in np.geomspace(1.0, 4.0**9, 10):
        total = gdp**2 * tau * (tau + 1) / 2 - tau * epsilon
        try:
            for pair, steps in parts:
                value, error = cumulant(pair, float(tau))
                total += steps * (value + error)
        except OverflowError:
            break
        best = min(best, total)
    return math.exp(best)


def _largest_loss(parts: Parts, gdp: float) -> float:
    """An upper bound on the total loss: finite for `add` alone, where L <= -log(1 - q)."""
    if gdp > 0 or any(pair.kind != "add" for pair, _ in parts):
        return math.inf
    return math.fsum(-steps * math.log1p(-pair.sample_rate) for pair, steps in parts)


def direction_delta(epsilon: float, parts: Parts, gdp: float, *, start: float | None = None) -> DeltaBracket:
    """delta(epsilon) of one composition, choosing the method; see `DeltaBracket`."""
    if not parts:
        log_delta = float(log_delta_from_gdp(epsilon, gdp))
        value = math.exp(log_delta)
        upper = min(value * (1 + _GDP_ACCURACY), 1.0)
        return DeltaBracket(value * (1 - _GDP_ACCURACY), value, upper, log_delta, math.nan, _CLOSED)
    if _largest_loss(parts, gdp) * (1 + 1e-12) <= epsilon:
        return DeltaBracket(0.0, 0.0, 0.0, -math.inf, math.nan, "largest loss")
    found = []
    methods: tuple[Callable[[], DeltaBracket], ...] = (
        lambda: delta_bracket(epsilon, parts, gdp, start=start),
        lambda: grid_delta(epsilon, parts, gdp),
    )
    for method in methods:
        with contextlib.suppress(OverflowError):
            found.append(method())
            if found[-1].upper <= (1 + _NARROW) * found[-1].lower:
                break
    if found:
        return min(found, key=lambda bracket: bracket.upper - bracket.lower)
    upper = _chernoff(epsilon, parts, gdp)
    return DeltaBracket(0.0, upper, upper, math.log(max(upper, 5e-324)), math.nan, "Chernoff bound")


def direction_curve(parts_at: Callable[[float], tuple[float, Parts, float]]) -> Curve:
    """The curve of delta over x, where parts_at(x) = (epsilon, composition, gdp)."""

    def bracket(x: float, tau: float | None) -> DeltaBracket:
        epsilon, parts, gdp = parts_at(x)
        return direction_delta(epsilon, parts, gdp, start=tau)

    def estimate(x: float, tau: float | None) -> tuple[float, float | None]:
        epsilon, parts, gdp = parts_at(x)
        if parts and epsilon < _largest_loss(parts, gdp):
            with contextlib.suppress(OverflowError):
                found = delta_estimate(epsilon, parts, gdp, start=tau)
                if found is not None:
                    return found
                point = grid_delta(epsilon, parts, gdp, points=_SEARCH_POINTS)
                if point.upper <= (1 + _NARROW) * point.lower:
                    return point.log_value, None
        point = direction_delta(epsilon, parts, gdp, start=tau)
        return point.log_value if point.lower > 0 else -math.inf, point.tau if point.tau > 0 else None

    return Curve(bracket, estimate)


def delta_of_history(history: Sequence[Group], epsilon: float) -> Bracket:
    """The smallest delta for which the history is (epsilon, delta)-DP.

    Args:
        history: groups of releases, all with one relation.
        epsilon: epsilon >= 0.

    Returns:
        A bracket; `value` is the estimate, `upper` is certified to hold.

    Raises:
        ValueError: an argument outside its range.
    """
    groups = _checked(history)
    eps = check.real("epsilon", epsilon, at_least=0)
    if runs := allocations(groups):
        found = allocation_delta(eps, runs, relation=groups[0].relation)
        return Bracket(found.lower, found.value, found.upper, found.method, notes(groups))
    gdp = total_gdp(groups)
    above = [direction_delta(eps, parts, gdp) for parts in directions(groups)]
    top = max(above, key=lambda b: b.upper)
    lower = max(b.lower for b in above)
    if directions(groups, attained=True) != directions(groups):
        lower = max(direction_delta(eps, parts, gdp).lower for parts in directions(groups, attained=True))
    return Bracket(lower, max(lower, top.value), top.upper, top.method, notes(groups))


def epsilon_of_history(history: Sequence[Group], delta: float) -> Bracket:
    """The smallest epsilon >= 0 for which the history is (epsilon, delta)-DP.

    Args:
        history: groups of releases, all with one relation.
        delta: 0 < delta < 1.

    Returns:
        A bracket with value = upper, the certified private side: delta(upper) <= delta.

    Raises:
        ValueError: an argument outside its range.
    """
    groups = _checked(history)
    target = check.real("delta", delta, above=0, below=1)
    if runs := allocations(groups):
        lower, upper, method = _allocated_epsilon(runs, groups[0].relation, target)
        if groups[0].relation == "replace-one":
            lower = _allocated_epsilon(runs, "add-remove", target)[0]
        return Bracket(lower, upper, upper, method, notes(groups))
    gdp = total_gdp(groups)
    above, below = directions(groups), directions(groups, attained=True)
    lower, upper, method = _epsilon(above, gdp, target)
    if below != above:
        lower = _epsilon(below, gdp, target)[0]
    return Bracket(lower, upper, upper, method, notes(groups))


def allocations(groups: Sequence[Group]) -> tuple[Run, ...]:
    """The history for `allocation`, its Gaussian groups as one run; none unless it has a random allocation alone or
    beside these."""
    allocated = [g for g in groups if g.allocated]
    others = [g for g in groups if not g.allocated]
    if not allocated or any(g.gdp == 0 for g in others):
        return ()
    gdp = total_gdp(others) / groups[0].sensitivity
    gaussian = [Run(1 / gdp, 1, 1)] if others else []
    return (*(Run(g.noise_multiplier, g.epoch, g.steps) for g in allocated), *gaussian)


def _allocated_epsilon(runs: tuple[Run, ...], relation: str, target: float) -> tuple[float, float, str]:
    at_zero = allocation_delta(0.0, runs, relation=relation)
    if at_zero.upper <= target:
        return 0.0, 0.0, at_zero.method
    if at_zero.value <= target:
        start = 1e-3 * at_zero.value
    else:
        start = at_zero.value * math.sqrt(2 * math.log(1 + at_zero.value / target))
    curve = allocation_curve(lambda epsilon: (epsilon, runs), relation)
    lower, upper, point = crossing([curve], start, -10.0, target)
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


def notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """What a reader must know about the certificate of this history."""
    kinds = {(g.sampling, g.relation) for g in groups if g.sample_rate < 1}
    found = []
    if ("fixed-size", "replace-one") in kinds:
        found.append(
            "fixed-size, replace-one: the upper end is certified for every adaptive use; the lower end is attained by"
            " data; the exact number is in between"
        )
    if any(sampling == "fixed-order" for sampling, _ in kinds):
        found.append("fixed order: no amplification; each record is in ceil(steps / floor(1/q)) batches at most")
    if any(sampling == "random-allocation" for sampling, _ in kinds):
        found.append(
            "random allocation: certified for epochs of floor(1/q) steps or more, from the first release on, each"
            " record in one uniformly random step of each epoch, independently of the other records"
            if allocations(groups)
            else "random allocation beside sampled batches: certified without amplification beyond one batch an epoch:"
            " both ends are of that certificate, the exact number is at most the upper one"
        )
        if allocations(groups) and groups[0].relation == "replace-one":
            found.append(
                "replace-one: the upper end by way of the data without the record, the lower end that of removing it;"
                " the exact number is in between"
            )
    return tuple(found)
