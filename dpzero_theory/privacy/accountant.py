"""delta and epsilon of a recorded history of releases, as certified brackets.

Each release is first reduced by what its noise law says of it (`mechanism.Cost`). It counts as Gaussian releases or as
a dominating pair of finite laws, up to a ratio e^G of probabilities, or it counts by its pure epsilon. Let epsilon' be
the answer for the former at delta e^-G, and epsilon_p the pure epsilon of the latter. Adaptive composition gives
epsilon <= epsilon' + 2 G + epsilon_p (`discrete.py` derives G). A law that has both a finite pair and pure epsilon is
counted in both ways, and the smaller bound is taken.

The Gaussian releases and the finite pairs make one `composition.Composition`, for which `answers` gives delta and
epsilon.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dpzero_theory import check
from dpzero_theory.bisection import LogSecant, outward
from dpzero_theory.privacy.answers import answer
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.crossing import MARGIN
from dpzero_theory.privacy.certified.laws.concentrated import MOST_RHO, concentrated_pair, curve_pair, summed
from dpzero_theory.privacy.certified.laws.finite import Ends, FinitePair
from dpzero_theory.privacy.certified.router import CHERNOFF, CLOSED
from dpzero_theory.privacy.composition import Composition, Concentrated, Curved, FinitePairs
from dpzero_theory.privacy.mechanism import MECHANISMS, Cost
from dpzero_theory.privacy.moments import moment_delta, moment_epsilon
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import Release, Steps, releases_of

_CLOSE_TO_PURE = 0.1
"""`_near_pure` bounds delta, for epsilon close below the pure epsilon, as a factor times delta at a smaller epsilon.
The bound is used where that factor is at most this."""
_UNRESOLVED = 0.01
"""If the lower end of the bracket of delta is below this share of its upper end, the upper end may be mere rounding
error."""
_HIDDEN = 1e-12
"""If the upper end of the bracket of delta is above this, it is not mere rounding error."""
_MOMENTS = "moments"
_BEYOND_ALL = 1e6
"""An epsilon that no finite privacy loss exceeds, so that delta there is the probability of an infinite loss."""
_MOST_LOOKS, _AIM, _LONGEST = 6, 1e-3, 100.0
"""A search for epsilon near the pure epsilon ends after 6 evaluations, or where delta is below its target by less than
twice the second number, as a share of the target. It searches for the share by which e^epsilon is below e to the pure
epsilon; one move changes that share at most by a factor of e^100, the third number."""


@dataclass(frozen=True)
class _Reduced:
    """A history in the form of a composition, up to a ratio e^G of probabilities, and pure epsilon beside it.

    above: a composition whose delta is at least that of the releases that it stands for. below: one whose delta is at
    most that. ratio: G >= 0, by which the log probabilities of these releases may differ from those of the
    compositions. epsilon: the pure epsilon of all releases that are not in the composition. least: a lower bound on
    epsilon of the history, at the delta that is asked for.
    """

    above: Composition
    below: Composition
    ratio: float
    epsilon: float
    least: float


def _reductions(releases: Sequence[Release], delta: float) -> list[_Reduced]:
    """The history in one or two forms that can be computed (`_Reduced`), each of which gives a valid upper bound.

    In the first form every noise law that has a dominating pair of finite laws counts by that pair, and all releases of
    which only Renyi divergences or zCDP are known count by one pair for their sum. In the last form every
    law that has no Gaussian form counts by its pure epsilon. If no law has a pair there is one form. delta: at
    which the lower bounds `_Reduced.least` on epsilon hold.
    """
    require_one_relation(releases)
    costs = [(r, MECHANISMS[r.mechanism].cost(r, delta)) for r in releases]
    gaussian = [(r, cost) for r, cost in costs if cost.gaussian]
    above, below = ([_continuous(r, cost, end) for r, cost in gaussian] for end in (0, 1))
    bounded = any(r.bounded for r in below)
    paired: dict[tuple[FinitePair, FinitePair], int] = {}
    for r, cost in costs:
        if cost.pairs is not None:
            paired[cost.pairs] = paired.get(cost.pairs, 0) + r.steps

    def composed(made: Sequence[Release], finite: Sequence[FinitePairs], *, attained: bool = False) -> Composition:
        replaced = any(r.relation is Relation.REPLACE_ONE for r in made)
        parts = (part for r in made for part in (r.attained_parts if attained else (r.part,)))
        return Composition((*finite, *parts), replaced)

    def reduced(finite: Sequence[FinitePairs], kept: Callable[[Cost], bool]) -> _Reduced:
        top = composed(above, finite)
        return _Reduced(
            above=top,
            below=top if below == above and not bounded else composed(below, finite, attained=True),
            ratio=math.fsum(cost.ratio for _, cost in costs if kept(cost)),
            epsilon=_up(math.fsum(cost.epsilon for _, cost in costs if not kept(cost))),
            least=max((cost.least for _, cost in costs), default=0.0),
        )

    reductions = [reduced((), lambda cost: cost.gaussian)]
    finite = [FinitePairs(pairs, count) for pairs, count in paired.items()]
    rho, xi = (_up(math.fsum(cost.concentrated[i] for _, cost in costs)) for i in (0, 1))
    if not rho <= MOST_RHO:
        raise ValueError(f"rho must be at most {MOST_RHO:g} for all zCDP steps of a history; got {rho!r}")
    if curves := [cost.renyi for _, cost in costs if cost.renyi]:
        curve = summed(curves, rho, xi)
        finite.append(Curved((curve_pair(curve),) * 2, 1, curve=curve))
    elif rho > 0:
        finite.append(Concentrated((concentrated_pair(rho, xi),) * 2, 1, rho=rho, xi=xi))
    if finite:
        reductions.insert(0, reduced(finite, lambda cost: cost.composed))
    return reductions


def require_one_relation(releases: Sequence[Release]) -> None:
    """Raise ValueError unless all releases have the same neighbouring relation."""
    relations = dict.fromkeys(str(r.relation) for r in releases)
    if len(relations) > 1:
        raise ValueError(f"history must have one relation; got {', '.join(relations)}")


def _telling(reductions: Sequence[_Reduced]) -> Sequence[_Reduced]:
    """Those of the forms `reductions` of a history that bound its cost: the last is left out if its pure epsilon is
    infinite and there are others."""
    return reductions[:-1] if len(reductions) > 1 and reductions[-1].epsilon == math.inf else reductions


def _continuous(release: Release, cost: Cost, end: int) -> Release:
    """Releases with continuous Gaussian noise that cost at least (end = 0) or at most (end = 1) as much as `release`.

    cost: what the release's noise law says that it costs.
    """
    if cost.multipliers is None or cost.multipliers[end] == release.noise_multiplier:
        return release
    return Release.of(replace(release.step, noise=cost.multipliers[end], mechanism="gaussian"), release.steps)


def gaussian_part(history: Steps) -> tuple[Composition, Composition, float]:
    """Two compositions of Gaussian releases, and a number G >= 0, for a history with Gaussian noise only.

    The first composition costs at least as much as the history and the second at most as much, up to a ratio e^G of
    probabilities. G is 0 unless some noise is discrete Gaussian. Raises ValueError if some noise is not Gaussian, or if
    the steps have different relations.
    """
    made = releases_of(history)
    reduced = _reductions(made, 0.0)[-1]
    for r in made:
        if not MECHANISMS[r.mechanism].cost(r, 0.0).gaussian:
            raise ValueError(f"history must have Gaussian noise only; got mechanism {r.mechanism}")
    return reduced.above, reduced.below, reduced.ratio


def _up(x: float) -> float:
    return math.nextafter(x, math.inf) if x > 0 else x


def _down(x: float) -> float:
    return math.nextafter(x, 0.0)


def delta_of_history(history: Steps, epsilon: float, *, near: float | None = None) -> Bracket:
    """The smallest delta for which the history is (epsilon, delta)-DP.

    Args:
        history: steps, such as `step * 1000`, all with one relation; an empty history costs nothing.
        epsilon: epsilon >= 0.
        near: a delta that the caller compares the answer with, which saves time for random allocations and for laws
            with finitely many outcomes. If delta is more than 10 times larger or smaller, `upper` may be many times
            `lower`. Both still hold, and they say on which side of `near` delta is.

    Returns:
        A bracket. `value` is an estimate, and `upper` is certified: it is the number to state.

    Raises:
        ValueError: an argument outside its range, or steps with different relations.
    """
    return _history_delta(history, epsilon, near, _resolved)


def _history_delta(history: Steps, epsilon: float, near: float | None, of: "_Answer", ends: Ends = "both") -> Bracket:
    """The bracket of delta of a history at `epsilon`. near: as in `delta_of_history`. of: what answers for one
    composition. ends: which ends are wanted; if it is "upper", the lower end may be 0."""
    eps = check.real("epsilon", epsilon, at_least=0)
    made = releases_of(history)
    reductions = _reductions(made, 0.0)
    brackets = [_reduced_delta(reduced, eps, notes(made), near, of, ends) for reduced in _telling(reductions)]
    lower, upper = max(bracket.lower for bracket in brackets), min(bracket.upper for bracket in brackets)
    upper = max(min(upper, _near_pure(reductions, eps)), lower)
    return replace(brackets[0], lower=lower, value=min(max(brackets[0].value, lower), upper), upper=upper)


def deltas_of_directions(history: Steps, epsilon: float) -> tuple[Bracket, Bracket]:
    """The brackets of delta of a history at `epsilon` in each of the two directions.

    With P the law of what is released with the record, or with its one value, and Q the law without it, or with its
    other value, the first bracket is of max over events E of P(E) - e^epsilon Q(E), and the second of max over E of
    Q(E) - e^epsilon P(E). The arguments are those of `delta_of_history`, whose bracket has the larger end of both.
    """

    def one_way(index: int) -> Bracket:
        def of(composition: Composition, at: float, near: float | None, ends: Ends) -> Bracket:
            bracket = _resolved(composition.one_way(index), at, near, ends)
            if at == 0 or ends == "upper" or not composition.mixed_ways:
                return bracket  # at 0 it is the total variation distance, the same in both directions
            # Of random allocations the larger direction is known. As Q(E) <= 1, both are at least delta(0) - e^at + 1.
            least = max(of(composition, 0.0, near, "lower").lower - math.expm1(at), 0.0) if at < 1e-3 else 0.0
            return replace(bracket, lower=min(_down(least), bracket.upper))

        return _history_delta(history, epsilon, None, of)

    forms = [form for reduced in _reductions(releases_of(history), 0.0) for form in (reduced.above, reduced.below)]
    first = one_way(0)
    return first, first if all(form.one_way(0) == form.one_way(1) for form in forms) else one_way(1)


def upper_delta(history: Steps, epsilon: float, *, near: float | None = None) -> float:
    """The upper end of `delta_of_history` at `epsilon`, in less time, as the lower end is not computed."""
    return _history_delta(history, epsilon, near, _resolved, "upper").upper


def upper_epsilon(history: Steps, delta: float) -> Bracket:
    """The bracket of `epsilon_of_history` at `delta` with 0 as its lower end, in less time."""
    return replace(_history_epsilon(history, delta, below=False), lower=0.0)


def wide_delta(history: Steps, epsilon: float) -> float:
    """An upper bound on delta of the history at `epsilon`, by exponential moments of the privacy loss.

    It is mostly larger than the upper end of `delta_of_history`; it is above 0 and at most 1, also where rounding
    errors hide delta.
    """
    reductions = _telling(_reductions(releases_of(history), 0.0))
    return min(_reduced_delta(reduced, epsilon, of=_wide).upper for reduced in reductions)


_Answer = Callable[[Composition, float, float | None, Ends], Bracket]
"""A function that gives the bracket of delta of a composition at an epsilon. Its third argument is the delta `near` of
`delta_of_history`, with which the caller compares the answer, or None; the fourth says which ends are wanted, and the
other one may be 0 or 1."""


def _sharp(composition: Composition, epsilon: float, near: float | None, ends: Ends) -> Bracket:
    return answer(composition).delta(epsilon, near, ends=ends)


def _wide(composition: Composition, epsilon: float, near: float | None, ends: Ends) -> Bracket:
    upper = moment_delta(composition, epsilon)
    return Bracket(0.0, upper, upper, _MOMENTS)


def _resolved(composition: Composition, epsilon: float, near: float | None, ends: Ends) -> Bracket:
    """The certified bracket of delta of a composition at `epsilon`.

    If delta is so small that rounding hides it, or a zCDP step is among the releases, the upper end may be a bound by
    exponential moments. near, ends: as in `_Answer`.
    """

    def resolved(bracket: Bracket) -> bool:
        seen = bracket.upper > _HIDDEN or bracket.lower > _UNRESOLVED * bracket.upper or bracket.upper == 0
        return seen and not composition.concentrated

    bracket = _sharp(composition, epsilon, near, ends)
    if resolved(bracket):
        return bracket
    moments = moment_delta(composition, epsilon)
    if ends == "upper" and moments < bracket.upper and not composition.concentrated:
        bracket = _sharp(composition, epsilon, near, "both")
        if resolved(bracket):
            return bracket
    upper = max(min(moments, bracket.upper), bracket.lower)
    return bracket if upper == bracket.upper else Bracket(bracket.lower, min(bracket.value, upper), upper, _MOMENTS)


def _reduced_delta(
    reduced: _Reduced,
    eps: float,
    notes: tuple[str, ...] = (),
    near: float | None = None,
    of: _Answer = _resolved,
    ends: Ends = "both",
) -> Bracket:
    beyond, ratio = reduced.epsilon, reduced.ratio
    # Let delta' be the delta of the composition without the factor e^G, G = `ratio`, between the probabilities of the
    # noise that is drawn and of the noise that is accounted. Then delta(eps) <= e^G delta'(left) for left = eps - 2 G.
    # If left < 0, delta'(left) <= delta'(0) + 1 - e^left.
    left = math.nextafter(eps - 2 * ratio, -math.inf) if ratio else eps
    # Releases with pure epsilon e alone, here e = `beyond`, have at an epsilon x < e a delta of at most
    # (e^e - e^x)/(1 + e^e).
    pure = -math.expm1(max(left, 0.0) - beyond) / (1 + math.exp(-beyond)) if beyond > left else 0.0
    pure = max(pure, 0.0) - math.expm1(min(left, 0.0))
    if reduced.above.empty:
        return Bracket(0.0, pure, min(_up(pure), 1.0), CLOSED, notes)

    at = max(_down(left - beyond) if beyond else left, 0.0)
    if ratio + beyond == 0 and reduced.below is reduced.above:
        return replace(of(reduced.above, at, near, ends), notes=notes)
    bracket = of(reduced.above, at, near, "upper")
    upper = min(_up((bracket.upper + pure) * math.exp(ratio)), 1.0)
    if ends == "upper" or reduced.below.empty:
        return Bracket(0.0, min(bracket.value + pure, upper), upper, bracket.method, notes)
    at_least = of(reduced.below, _up(eps + 2 * ratio), near, "lower").lower
    lower = _down(min(at_least * math.exp(-ratio), upper))
    return Bracket(lower, min(max(bracket.value + pure, lower), upper), upper, bracket.method, notes)


def _near_pure(reductions: Sequence[_Reduced], eps: float) -> float:
    """An upper bound on delta at `eps` that is sharp if eps is close below the pure epsilon e of a history of finite
    pairs alone.

    reductions: what `_reductions` returns for the history. No privacy loss L exceeds e, so that delta(eps) <= (1 -
    e^{eps - e}) P(L > eps). The probability is bounded by Markov's inequality: where L > eps, the term of delta at
    eps - b is at least 1 - e^-b, hence P(L > eps) <= delta(eps - b)/(1 - e^-b). Here b = min(eps, 1). The result is 1
    where the bound does not apply or is not sharp.
    """
    pairs, pure = reductions[0], reductions[-1]
    back = min(eps, 1.0)
    if not pure.above.empty or len(reductions) == 1 or pairs.epsilon > 0 or back == 0:
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
        history: steps, such as `step * 1000`, all with one relation; an empty history costs nothing. Noise, batches and
            number of steps must have been fixed beforehand: none may follow from what earlier steps released.
        delta: 0 < delta < 1; 0 is allowed where every step has pure epsilon, as with Laplace noise.

    Returns:
        A bracket with value = upper, which is certified: the history is (upper, delta)-DP.

    Raises:
        ValueError: an argument outside its range; steps with different relations; a delta below the probability with
            which a step may show everything, or so small that it is not resolved for noise on a coarse lattice.
    """
    return _history_epsilon(history, delta)


def excess(history: Steps, target_epsilon: float, target_delta: float) -> float:
    """The share by which a history misses the target (target_epsilon, target_delta); it is at most 0 if the history is
    certified to meet the target.

    It is the larger of two shares. One is that by which the upper end of `epsilon_of_history` at target_delta exceeds
    target_epsilon, and the other that by which the upper end of `delta_of_history` at target_epsilon exceeds
    target_delta. For target_delta = 0 only the former counts. In exact arithmetic both are at most 0 or neither is;
    they come from two searches, so that their errors differ. Calibration and the searches for steps, batches and
    records keep both at most 0; a ledger looks at the first.

    Args:
        history: steps, all with one relation.
        target_epsilon: > 0.
        target_delta: 0 <= target_delta < 1.

    Raises:
        ValueError: an argument outside its range.
    """
    beyond = [upper_epsilon(history, target_delta).upper / target_epsilon - 1]
    if target_delta > 0:
        beyond.append(upper_delta(history, target_epsilon) / target_delta - 1)
    return max(beyond)


def _history_epsilon(history: Steps, delta: float, *, below: bool = True) -> Bracket:
    """The bracket of epsilon of a history at `delta`; if `below` is False the lower end is not computed, and may be
    0."""
    target = check.real("delta", delta, at_least=0, below=1)
    made = releases_of(history)
    reductions = _reductions(made, target)
    if not reductions[-1].above.empty or reductions[-1].epsilon == math.inf:
        check.real("delta", delta, above=0, below=1)
    *by_pairs, last = _telling(reductions)
    brackets = [*_by_pairs(by_pairs if target > 0 else [], target, below), _reduced_epsilon(last, target, below)]
    upper = min(bracket.upper for bracket in brackets)
    lower = min(max(bracket.lower for bracket in brackets), upper)
    if target > 0:
        upper = max(_close_to_pure(reductions, target, upper), lower)
    return Bracket(lower, upper, upper, brackets[0].method, notes(made))


def _by_pairs(reductions: Sequence[_Reduced], target: float, below: bool) -> Iterator[Bracket]:
    """The brackets of epsilon at delta = `target`, by those of the forms `reductions` of a history for which one is
    certified.

    Just below the pure epsilon, delta falls to 0 abruptly, and a very small target may not be resolved there. below:
    whether the lower ends are needed; if not, they may be 0.
    """
    for reduced in reductions:
        with suppress(OverflowError):
            yield _reduced_epsilon(reduced, target, below)


def _close_to_pure(reductions: Sequence[_Reduced], target: float, upper: float) -> float:
    """An upper bound on a history's epsilon at delta = `target`, at most `upper`.

    It is about the least epsilon at which `_near_pure`, an upper bound on delta close below the pure epsilon, is at
    most `target`; or `upper`, if that is smaller. reductions: what `_reductions` returns for the history. upper: an
    upper bound on epsilon that is already known.
    """
    pure, best = reductions[-1].epsilon, upper
    if not math.exp(min(upper - pure, 0.0)) > 1 - _CLOSE_TO_PURE:
        return upper

    def missed(x: float) -> float | None:
        """How far delta at the epsilon with e^epsilon = e^pure (1 - x) is from the target; None ends the search."""
        nonlocal best
        if not 0 < x < _CLOSE_TO_PURE:
            return None
        epsilon = _up(pure + math.log1p(-x))
        delta = _near_pure(reductions, epsilon) if epsilon > 0 else 1.0
        if delta <= target:
            best = min(best, epsilon)
        near = target * (1 - 2 * _AIM) < delta <= target
        return None if near or not 0 < delta < 1 else math.log(target / delta) + math.log1p(-_AIM)

    LogSecant(target, -1.0, longest=_LONGEST).run(missed, lambda _: False, _MOST_LOOKS)
    return best


def _reduced_epsilon(reduced: _Reduced, target: float, below: bool) -> Bracket:
    if reduced.above.empty:
        lower = min(reduced.least, reduced.epsilon)
        return Bracket(lower, reduced.epsilon, reduced.epsilon, CLOSED)

    def paired(delta: float) -> Bracket:
        return _composed_epsilon(reduced.above, delta, below)

    ratio = reduced.ratio
    bracket = paired(_down(target * math.exp(-ratio)) if ratio > 0 else target)
    upper = bracket.upper
    if ratio + reduced.epsilon > 0:
        upper = _up(bracket.upper + 2 * ratio + reduced.epsilon)
    lower = bracket.lower
    if below and reduced.below is not reduced.above:
        goal = _up(target * math.exp(ratio))
        lower = 0.0 if reduced.below.empty else _composed_epsilon(reduced.below, goal).lower
    # The log probabilities of the history differ from those of the composition by at most G = `ratio`, so the lower end
    # must be one for the target times e^G. Below MARGIN/2 it needs no change: at the lower end that `crossing` returns,
    # delta exceeds the target by the share MARGIN, and so exceeds target e^G too.
    elif below and ratio >= MARGIN / 2:
        lower = _exceeding(answer(reduced.above).delta, lower, target, ratio)
    return Bracket(max(_down(lower) - 2 * ratio, reduced.least, 0.0), upper, upper, bracket.method)


def _exceeding(delta: Callable[[float], Bracket], near: float, target: float, ratio: float) -> float:
    """An epsilon close below `near` at which the lower end of the function `delta` exceeds e^ratio times `target`; 0 if
    none is found.

    It is used as a lower bound on the epsilon at which delta is that product.
    """
    goal, change = _up(target * math.exp(ratio)), ratio * max(near, 1.0)
    start = max(near - change, 0.0)
    return outward(lambda x: delta(x).lower > goal, start, -3 * change, growth=4, most=0.0)[1]


def sharp_delta(history: Steps, epsilon: float, *, near: float | None = None) -> Bracket:
    """The bracket of delta of a history at `epsilon`, without a bound by moments where rounding hides a small delta.

    It is faster than `delta_of_history`, and serves searches, which ask often. The arguments are those of
    `delta_of_history`.
    """
    return _history_delta(history, epsilon, near, _sharp)


def _composed_epsilon(composition: Composition, delta: float, below: bool = True) -> Bracket:
    """The bracket of epsilon of a composition at `delta`.

    It comes from a search, or from a bound by moments if no epsilon is found at which so small a delta is resolved.
    below: whether the lower end is needed; if not, it may be 0. Raises ValueError if no epsilon is known at so small a
    delta.
    """
    try:
        bracket = answer(composition).epsilon(delta, below=below)
        roughly = composition.concentrated or bracket.method == CHERNOFF
        upper = moment_epsilon(composition, delta) if roughly else math.inf
        if upper >= bracket.upper:
            return bracket
        return Bracket(min(bracket.lower, upper), upper, upper, _MOMENTS)
    except OverflowError:
        upper = moment_epsilon(composition, delta)
    if upper == math.inf:
        raise ValueError(
            "delta must be at least what this history shows for certain, or what is resolved of its noise on a lattice,"
            f" {moment_delta(composition, _BEYOND_ALL):.3g}; got {delta!r}"
        )
    return Bracket(0.0, upper, upper, _MOMENTS)


def notes(made: Sequence[Release]) -> tuple[str, ...]:
    """The sentences about the samplings and noise laws of the releases `made` that a reader of the accountant's answer
    must know, each once."""
    sentences = [r.step.sampling.note(r.relation) for r in made if r.sample_rate < 1]
    sentences += [MECHANISMS[r.mechanism].note for r in made]
    return tuple(dict.fromkeys(note for note in sentences if note))
