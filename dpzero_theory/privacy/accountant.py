"""delta and epsilon of a recorded history of releases, as certified brackets.

Each release is first reduced to what its mechanism says (`mechanism.Cost`): to Gaussian releases or finite dominating
pairs, up to a ratio e^G, or to pure epsilon. With epsilon' the answer for the former at delta e^-G and epsilon_p the
pure epsilon, adaptive composition gives epsilon <= epsilon' + 2 G + epsilon_p (`discrete.py` for G). A law with both,
a finite pair and pure epsilon, is counted in both ways: either holds.

Gaussian releases that amount to plain ones (full batch, fixed order, q = 1) contribute mu^2 to one mu-GDP term; the
others contribute their dominating pairs. Both directions of the relation are composed separately and delta is the
larger of the two. A history with a random allocation or a finite pair is answered by `mixture`.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dpzero_theory import check
from dpzero_theory.privacy import truncation
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.allocations.mixture import (
    FINE,
    NO_FINITE,
    ROUGH,
    Finite,
    Mixture,
    mixture_curve,
    mixture_delta,
    rough_start,
)
from dpzero_theory.privacy.certified.crossing import MARGIN, Curve, crossing, upper_crossing
from dpzero_theory.privacy.certified.laws.finite import FinitePair
from dpzero_theory.privacy.certified.laws.pairs import Pair, Parts
from dpzero_theory.privacy.certified.laws.sketch import rough_epsilon
from dpzero_theory.privacy.certified.router import CLOSED, Router, direction_curve, direction_delta
from dpzero_theory.privacy.gaussian import GDP_ACCURACY, epsilon_from_gdp
from dpzero_theory.privacy.mechanism import MECHANISMS, Cost
from dpzero_theory.privacy.moments import moment_delta, moment_epsilon
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import Release, Steps, releases_of

_CLOSE_TO_PURE = 0.1
"""Share of another delta that delta near pure epsilon is, below which that one is asked for."""
_UNRESOLVED = 0.01
"""Share of an upper end of delta below which its lower end says that rounding, not privacy, made the upper one."""
_MOMENTS = "moments"
_FAR = 1e6
"""An epsilon at which delta is what no epsilon takes away."""
_LOOKS, _AIM = 6, 1e-3
"""Evaluations of it, at most, in a search for epsilon, and by which share of delta it ends below the target."""


@dataclass(frozen=True)
class _Reduced:
    """A history as releases with dominating pairs, Gaussian and finite ones, up to a ratio e^ratio, and pure epsilon.

    below: Gaussian ones that cost at most as much, where `gaussian` cost at least as much. least: epsilon from below at
    delta.
    """

    gaussian: tuple[Release, ...]
    below: tuple[Release, ...]
    finite: Finite
    ratio: float
    epsilon: float
    least: float


def _reductions(releases: Sequence[Release], delta: float) -> list[_Reduced]:
    """With the pure laws' pairs, where there are any, and with their pure epsilon alone: both hold."""
    relations = dict.fromkeys(str(r.relation) for r in releases)
    if len(relations) > 1:
        raise ValueError(f"history must have one relation; got {', '.join(relations)}")
    costs = [(r, MECHANISMS[r.mechanism].cost(r, delta)) for r in releases]
    paired: dict[tuple[FinitePair, FinitePair], int] = {}
    for r, cost in costs:
        if cost.pairs is not None:
            paired[cost.pairs] = paired.get(cost.pairs, 0) + r.steps

    def reduced(finite: Finite, kept: Callable[[Cost], bool]) -> _Reduced:
        return _Reduced(
            gaussian=tuple(_continuous(r, cost, 0) for r, cost in costs if cost.gaussian),
            below=tuple(_continuous(r, cost, 1) for r, cost in costs if cost.gaussian),
            finite=finite,
            ratio=math.fsum(cost.ratio for _, cost in costs if kept(cost)),
            epsilon=_up(math.fsum(cost.epsilon for _, cost in costs if not kept(cost))),
            least=max((cost.least for _, cost in costs), default=0.0),
        )

    found = [reduced(NO_FINITE, lambda cost: cost.gaussian)]
    if paired:
        both = tuple(tuple((pairs[index], count) for pairs, count in paired.items()) for index in (0, 1))
        found.insert(0, reduced(both, lambda cost: cost.gaussian or cost.pairs is not None))
    return found


def _telling(reductions: Sequence[_Reduced]) -> Sequence[_Reduced]:
    """Without the one by pure epsilon where a law has none and another one says more."""
    return reductions[:-1] if len(reductions) > 1 and reductions[-1].epsilon == math.inf else reductions


def _continuous(release: Release, cost: Cost, end: int) -> Release:
    """The continuous Gaussian releases that cost at least (end 0) or at most (1) as much."""
    if cost.multipliers is None or cost.multipliers[end] == release.noise_multiplier:
        return release
    return Release.of(replace(release.step, noise=cost.multipliers[end], mechanism="gaussian"), release.steps)


def gaussian_part(history: Steps) -> tuple[tuple[Release, ...], tuple[Release, ...], float]:
    """The history as Gaussian releases that cost at least, and at most, as much, and G, where that is all it is.

    Raises ValueError for a history with a mechanism that is no Gaussian one.
    """
    made = releases_of(history)
    reduced = _reductions(made, 0.0)[-1]
    for r in made:
        if not MECHANISMS[r.mechanism].cost(r, 0.0).gaussian:
            raise ValueError(f"history must have Gaussian noise only; got mechanism {r.mechanism}")
    return reduced.gaussian, reduced.below, reduced.ratio


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
    single = (
        len(releases) == 1
        and (releases[0].terms.releases or releases[0].steps) == 1
        and releases[0].relation is not Relation.ZERO_OUT
    )
    attained = attained or single
    found: list[Parts] = []
    for index in (0, 1):
        steps: dict[Pair, int] = {}
        for r in releases:
            pairs = r.terms.attained if attained else r.terms.pairs
            if pairs:
                pair = pairs[min(index, len(pairs) - 1)]
                steps[pair] = steps.get(pair, 0) + (r.terms.releases or r.steps)
        parts = tuple(steps.items())
        if parts not in found:
            found.append(parts)
    return tuple(found)


def delta_of_history(history: Steps, epsilon: float, *, near: float | None = None) -> Bracket:
    """The smallest delta for which the history is (epsilon, delta)-DP.

    Args:
        history: steps, such as `step * 1000`, all with one relation; none cost nothing.
        epsilon: epsilon >= 0.
        near: a delta from which it is enough to know, with random allocation, on which side it is if it is far.

    Returns:
        A bracket; `value` is the estimate, `upper` is certified to hold.

    Raises:
        ValueError: an argument outside its range.
    """
    return _history_delta(history, epsilon, near, _resolved)


def _history_delta(history: Steps, epsilon: float, near: float | None, answer: "_Answer") -> Bracket:
    eps = check.real("epsilon", epsilon, at_least=0)
    made = releases_of(history)
    reductions = _reductions(made, 0.0)
    found = [_reduced_delta(reduced, eps, notes(made), near, answer) for reduced in _telling(reductions)]
    lower, upper = max(bracket.lower for bracket in found), min(bracket.upper for bracket in found)
    upper = max(min(upper, _near_pure(reductions, eps)), lower)
    return replace(found[0], lower=lower, value=min(max(found[0].value, lower), upper), upper=upper)


def wide_delta(history: Steps, epsilon: float) -> float:
    """An upper end of delta that `delta_of_history` is at most, for every history and however small it is."""
    reductions = _telling(_reductions(releases_of(history), 0.0))
    return min(_reduced_delta(reduced, epsilon, answer=_wide).upper for reduced in reductions)


_Answer = Callable[[Sequence[Release], float, Finite, float | None], Bracket]
"""What says delta of Gaussian releases and finite pairs."""


def _wide(releases: Sequence[Release], epsilon: float, finite: Finite, near: float | None) -> Bracket:
    upper = moment_delta(releases, finite, epsilon)
    return Bracket(0.0, upper, upper, _MOMENTS)


def _resolved(releases: Sequence[Release], epsilon: float, finite: Finite, near: float | None) -> Bracket:
    """`_paired_delta`, or its lower end and moments where that is so small that it is not resolved."""
    found = _paired_delta(releases, epsilon, finite, near)
    if found.lower > _UNRESOLVED * found.upper or found.upper == 0:
        return found
    upper = max(min(moment_delta(releases, finite, epsilon), found.upper), found.lower)
    return found if upper == found.upper else Bracket(found.lower, min(found.value, upper), upper, _MOMENTS)


def _reduced_delta(
    reduced: _Reduced,
    eps: float,
    notes: tuple[str, ...] = (),
    near: float | None = None,
    answer: _Answer = _resolved,
) -> Bracket:
    beyond, ratio = reduced.epsilon, reduced.ratio
    # delta(epsilon) <= e^G delta'(left), delta' without the ratio; delta'(left) <= delta'(0) + 1 - e^left for left < 0
    left = math.nextafter(eps - 2 * ratio, -math.inf) if ratio else eps
    # pure epsilon e alone costs at most (e^e - e^left)/(1 + e^e) at left < e, beside other releases at 0
    pure = -math.expm1(max(left, 0.0) - beyond) / (1 + math.exp(-beyond)) if beyond > left else 0.0
    pure = max(pure, 0.0) - math.expm1(min(left, 0.0))
    if not reduced.gaussian and reduced.finite == NO_FINITE:
        return Bracket(0.0, pure, min(_up(pure), 1.0), CLOSED, notes)

    def paired(releases: Sequence[Release], epsilon: float) -> Bracket:
        return answer(releases, epsilon, reduced.finite, near)

    found = paired(reduced.gaussian, max(_down(left - beyond) if beyond else left, 0.0))
    if ratio + beyond == 0:
        return replace(found, notes=notes)
    upper = min(_up((found.upper + pure) * math.exp(ratio)), 1.0)
    lower = paired(reduced.below, _up(eps + 2 * ratio)).lower * math.exp(-ratio)
    return Bracket(_down(lower), min(found.value + pure, upper), upper, found.method, notes)


def _near_pure(reductions: Sequence[_Reduced], eps: float) -> float:
    """An upper bound on delta that is sharp where epsilon is close below the pure epsilon e of finite pairs alone.

    No loss exceeds e, so delta(epsilon) <= (1 - e^{epsilon - e}) P(L > epsilon), and Markov's inequality for the gain
    at epsilon - b, 1 - e^-b at least where L > epsilon, gives P(L > epsilon) <= delta(epsilon - b)/(1 - e^-b).
    """
    pairs, pure = reductions[0], reductions[-1]
    back = min(eps, 1.0)
    if pure.gaussian or pairs.finite == NO_FINITE or pairs.epsilon > 0 or back == 0:
        return 1.0
    if eps >= pure.epsilon:
        return 0.0
    share = math.expm1(eps - pure.epsilon) / math.expm1(-back)
    if share > _CLOSE_TO_PURE:
        return 1.0
    return min(share * (1 + 1e-12) * _reduced_delta(pairs, _down(eps - back)).upper + 5e-324, 1.0)


def epsilon_of_history(history: Steps, delta: float) -> Bracket:
    """The smallest epsilon >= 0 for which the history is (epsilon, delta)-DP.

    Args:
        history: steps, such as `step * 1000`, all with one relation; none cost nothing.
        delta: 0 < delta < 1; 0 is allowed where no noise is Gaussian.

    Returns:
        A bracket with value = upper, the certified private side: delta(upper) <= delta.

    Raises:
        ValueError: an argument outside its range.
    """
    return _history_epsilon(history, delta)


def excess(history: Steps, target_epsilon: float, target_delta: float) -> float:
    """By how much, relative, a history costs more than (target_epsilon, target_delta): <= 0 where it does not.

    What it costs is what whoever asks is told: the upper end of `epsilon_of_history` at target_delta, and that of
    `delta_of_history` at target_epsilon (not for target_delta = 0). Both hold where either does, but they are found by
    two searches, whose ends are apart by their errors. Every plan is measured so: by calibration, and by the searches
    for steps, batches and records; the ledger asks for the former. Arguments and errors as theirs; target_epsilon > 0.
    """
    beyond = [_history_epsilon(history, target_delta, below=False).upper / target_epsilon - 1]
    if target_delta > 0:
        beyond.append(delta_of_history(history, target_epsilon).upper / target_delta - 1)
    return max(beyond)


def _history_epsilon(history: Steps, delta: float, *, below: bool = True) -> Bracket:
    """below: whether the lower end is sought."""
    target = check.real("delta", delta, at_least=0, below=1)
    made = releases_of(history)
    reductions = _reductions(made, target)
    if reductions[-1].gaussian or reductions[-1].epsilon == math.inf:
        check.real("delta", delta, above=0, below=1)
    *by_pairs, last = _telling(reductions)
    found = [*_by_pairs(by_pairs if target > 0 else [], target, below), _reduced_epsilon(last, target, below)]
    upper = min(bracket.upper for bracket in found)
    lower = min(max(bracket.lower for bracket in found), upper)
    if target > 0:
        upper = max(_close_to_pure(reductions, target, upper), lower)
    return Bracket(lower, upper, upper, found[0].method, notes(made))


def _by_pairs(reductions: Sequence[_Reduced], target: float, below: bool) -> Iterator[Bracket]:
    """Of those that are certified at this delta; near pure epsilon delta falls to 0 at once, below what is resolved."""
    for reduced in reductions:
        with suppress(OverflowError):
            yield _reduced_epsilon(reduced, target, below)


def _close_to_pure(reductions: Sequence[_Reduced], target: float, upper: float) -> float:
    """The upper end of epsilon, or a smaller one, at which `_near_pure` is at most the target, about the least."""
    pure, best = reductions[-1].epsilon, upper
    if not math.exp(min(upper - pure, 0.0)) > 1 - _CLOSE_TO_PURE:
        return upper
    gap = target
    for _ in range(_LOOKS):
        if not 0 < gap < _CLOSE_TO_PURE:
            break
        epsilon = _up(pure + math.log1p(-gap))
        found = _near_pure(reductions, epsilon) if epsilon > 0 else 1.0
        if found <= target:
            best = min(best, epsilon)
        if not 0 < found < 1 or target * (1 - 2 * _AIM) < found <= target:
            break
        gap *= target / found * (1 - _AIM)
    return best


def _reduced_epsilon(reduced: _Reduced, target: float, below: bool) -> Bracket:
    if not reduced.gaussian and reduced.finite == NO_FINITE:
        lower = min(reduced.least, reduced.epsilon)
        return Bracket(lower, reduced.epsilon, reduced.epsilon, CLOSED)

    def paired(delta: float) -> Bracket:
        return _paired_epsilon(reduced.gaussian, delta, reduced.finite, below)

    ratio = reduced.ratio
    found = paired(_down(target * math.exp(-ratio)) if ratio > 0 else target)
    upper = found.upper
    if ratio + reduced.epsilon > 0:
        upper = _up(found.upper + 2 * ratio + reduced.epsilon)
    lower = found.lower
    if below and reduced.below != reduced.gaussian:
        lower = _paired_epsilon(reduced.below, _up(target * math.exp(ratio)), reduced.finite).lower
    elif below and ratio >= MARGIN / 2:  # else it holds at delta (1 + MARGIN) too, so at delta e^G
        lower = _exceeding(lambda x: _paired_delta(reduced.gaussian, x, reduced.finite), lower, target, ratio)
    return Bracket(max(_down(lower) - 2 * ratio, reduced.least, 0.0), upper, upper, found.method)


def _exceeding(delta: Callable[[float], Bracket], near: float, target: float, ratio: float) -> float:
    """A point close below `near` where delta certifiably exceeds e^ratio target; 0 if none is found."""
    goal, change = _up(target * math.exp(ratio)), ratio * max(near, 1.0)
    for _ in range(8):
        if near - change <= 0:
            return 0.0
        if delta(near - change).lower > goal:
            return near - change
        change *= 4
    return 0.0


def _paired_delta(
    releases: Sequence[Release],
    epsilon: float,
    finite: Finite,
    near: float | None = None,
    *,
    above: bool = False,
    router: Router | None = None,
) -> Bracket:
    """above: the lower end may be of no use. router: that of nearby questions, for speed."""
    if truncation.truncated(releases):
        shared = Router()
        return truncation.delta(
            releases, epsilon, lambda parts, at: _paired_delta(parts, at, finite, above=True, router=shared)
        )
    if mixture := allocated(releases, finite):
        return mixture_delta(epsilon, mixture, target=near)
    gdp = total_gdp(releases)
    found: list[Bracket] = []
    for parts in compositions(releases):
        known = max((bracket.lower for bracket in found), default=0.0)
        found.append((router or Router()).delta(epsilon, parts, gdp, small=known))
    top = max(found, key=lambda b: b.upper)
    lower = max(b.lower for b in found)
    if not above and compositions(releases, attained=True) != compositions(releases):
        lower = max(direction_delta(epsilon, parts, gdp).lower for parts in compositions(releases, attained=True))
    return Bracket(lower, max(lower, top.value), top.upper, top.method)


def delta_curve(at: Callable[[float], tuple[Sequence[Release], float]], *, near: float | None = None) -> Curve:
    """The curve of delta over x of any releases, where at(x) = (history, epsilon); near: as of `delta_of_history`."""

    def bracket(x: float, _: float) -> Bracket:
        return _history_delta(*at(x), near, _paired_delta)

    return Curve(bracket, lambda x, _: (bracket(x, 0.0).log_value, None))


def _paired_epsilon(releases: Sequence[Release], delta: float, finite: Finite, below: bool = True) -> Bracket:
    """By a search, or by moments where no epsilon is found at which delta is resolved and at most this."""
    try:
        return _searched_epsilon(releases, delta, finite, below)
    except OverflowError:
        upper = moment_epsilon(releases, finite, delta)
    if upper == math.inf:
        raise ValueError(
            "delta must be at least what is resolved of this history's noise on a lattice,"
            f" {moment_delta(releases, finite, _FAR):.3g}; got {delta!r}"
        )
    return Bracket(0.0, upper, upper, _MOMENTS)


def _searched_epsilon(releases: Sequence[Release], delta: float, finite: Finite, below: bool) -> Bracket:
    if truncation.truncated(releases):
        at_zero = _paired_delta(releases, 0.0, finite)
        if at_zero.upper <= delta:
            return Bracket(0.0, 0.0, 0.0, at_zero.method)
        curve = Curve(
            lambda x, _: _paired_delta(releases, x, finite),
            lambda x, _: (_paired_delta(releases, x, finite).log_value, None),
        )
        rarely = _paired_epsilon([truncation.attained(r) for r in releases], delta, finite, below)
        start = rarely.upper or at_zero.upper * math.sqrt(2 * math.log(1 + at_zero.upper / delta))
        upper, point, _ = upper_crossing([curve], start, -10.0, delta)
        return Bracket(min(rarely.lower, upper), upper, upper, point.method)
    if mixture := allocated(releases, finite):
        lower, upper, method = _allocated_epsilon(mixture, delta, below)
        return Bracket(lower, upper, upper, method)
    gdp = total_gdp(releases)
    dominating, attained = compositions(releases), compositions(releases, attained=True)
    lower, upper, method = _epsilon(dominating, gdp, delta, below and attained == dominating)
    if below and attained != dominating:
        lower = _epsilon(attained, gdp, delta, below)[0]
    return Bracket(min(lower, upper), upper, upper, method)


def allocated(releases: Sequence[Release], finite: Finite = NO_FINITE) -> Mixture | None:
    """The history for `mixture`, if it has a random allocation, or finite pairs, or such beside it."""
    runs = tuple(r.terms.run for r in releases if r.terms.run)
    own = [(r.terms.finite, r.steps) for r in releases if r.terms.finite]
    finite = tuple((*finite[index], *((pairs[index], count) for pairs, count in own)) for index in (0, 1))
    if not runs and finite == NO_FINITE:
        return None
    others = [r for r in releases if r.terms.run is None]
    return Mixture(
        runs,
        compositions(others),
        compositions(others, attained=True),
        total_gdp(others),
        replaced=any(r.relation is Relation.REPLACE_ONE for r in releases),
        finite=finite,
    )


def _allocated_epsilon(mixture: Mixture, target: float, below: bool) -> tuple[float, float, str]:
    at_zero = mixture_delta(0.0, mixture, target=target)
    if at_zero.upper <= target:
        return 0.0, 0.0, at_zero.method
    start, slope = rough_start(mixture, target) if at_zero.value > target else (0.0, -10.0)
    if not start > 0:
        start, slope = (1e-3 * at_zero.value, -10.0)
    curve = mixture_curve(lambda epsilon: (epsilon, mixture), target, rough=FINE if mixture.runs else ROUGH)
    lower, upper, point = crossing([curve], start, slope, target, below=below)
    return lower, upper, point.method


def _epsilon(compositions: Sequence[Parts], gdp: float, target: float, below: bool) -> tuple[float, float, str]:
    if not any(compositions):
        found = float(epsilon_from_gdp(gdp, target))
        slack = GDP_ACCURACY * max(found, gdp * gdp)
        return max(found - slack, 0.0), found + (slack if found > 0 else 0.0), CLOSED

    def curve(parts: Parts) -> Curve:
        return direction_curve(lambda epsilon: (epsilon, parts, gdp))

    curves: list[Curve] = []
    for number, parts in enumerate(compositions):
        at_zero = direction_delta(0.0, parts, gdp)
        if at_zero.upper > target:  # and of those after it the crossing asks where it is
            curves = [curve(one) for one in compositions[number:]]
            break
    if not curves:
        return 0.0, 0.0, at_zero.method
    start, slope = rough_epsilon(target, parts, gdp)
    if not start > 0:
        start, slope = at_zero.value * math.sqrt(2 * math.log(1 + at_zero.value / target)), -10.0
    lower, upper, point = crossing(curves, start, slope, target, below=below)
    return lower, upper, point.method


def notes(made: Sequence[Release]) -> tuple[str, ...]:
    """What a reader must know about the certificate of this history."""
    found = [r.step.sampling.note(r.relation) for r in made if r.sample_rate < 1]
    found += [MECHANISMS[r.mechanism].note for r in made]
    return tuple(dict.fromkeys(note for note in found if note))
