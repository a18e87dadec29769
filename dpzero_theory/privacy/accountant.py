"""delta and epsilon of a recorded history of releases, as certified brackets.

Each release is first reduced to what its mechanism says (`mechanism.Cost`): to Gaussian releases, up to a ratio e^G,
or to pure epsilon. With epsilon' the answer for the Gaussian releases at delta e^-G and epsilon_p the pure epsilon,
adaptive composition gives epsilon <= epsilon' + 2 G + epsilon_p (`discrete.py` for G).

Gaussian releases that amount to plain ones (full batch, fixed order, q = 1) contribute mu^2 to one mu-GDP term; the
others contribute their dominating pairs. Both directions of the relation are composed separately and delta is the
larger of the two. A history with a random allocation is answered by `mixture`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpzero_theory import check
from dpzero_theory.privacy import truncation
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.crossing import MARGIN, Curve, crossing
from dpzero_theory.privacy.certified.direction import CLOSED, GDP_ACCURACY, Parts, direction_curve, direction_delta
from dpzero_theory.privacy.certified.mixture import Mixture, mixture_curve, mixture_delta
from dpzero_theory.privacy.certified.pairs import Pair
from dpzero_theory.privacy.gaussian import epsilon_from_gdp
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.release import Release
from dpzero_theory.privacy.sampling import SAMPLINGS


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
        return Bracket(0.0, pure, min(_up(pure), 1.0), CLOSED, notes(history))
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
        return Bracket(lower, reduced.epsilon, reduced.epsilon, CLOSED, notes(history))
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
        slack = GDP_ACCURACY * max(found, gdp * gdp)
        return max(found - slack, 0.0), found + (slack if found > 0 else 0.0), CLOSED

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
