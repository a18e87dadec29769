"""delta and epsilon of a recorded history of releases, as certified brackets.

Each release is first reduced to what its mechanism says (`mechanism.Cost`): to Gaussian releases or finite dominating
pairs, up to a ratio e^G, or to pure epsilon. With epsilon' the answer for the former at delta e^-G and epsilon_p the
pure epsilon, adaptive composition gives epsilon <= epsilon' + 2 G + epsilon_p (`discrete.py` for G). A law with both,
a finite pair and pure epsilon, is counted in both ways: either holds.

The Gaussian releases and the finite pairs are one `composition.Composition`, which `answers` answers for.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from dpzero_theory import check
from dpzero_theory.privacy.answers import answer
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.crossing import MARGIN
from dpzero_theory.privacy.certified.laws.finite import FinitePair
from dpzero_theory.privacy.certified.router import CLOSED
from dpzero_theory.privacy.composition import Composition, FinitePairs
from dpzero_theory.privacy.mechanism import MECHANISMS, Cost
from dpzero_theory.privacy.moments import moment_delta, moment_epsilon
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.step import Release, Steps, releases_of

_CLOSE_TO_PURE = 0.1
"""Below this factor, delta near pure epsilon is bounded by a share of delta at a smaller epsilon (`_near_pure`)."""
_UNRESOLVED = 0.01
"""Where the lower end of delta is below this share of the upper end, rounding and not privacy made the upper end."""
_HIDDEN = 1e-12
"""Upper ends of delta above it are not made by rounding."""
_MOMENTS = "moments"
_BEYOND_ALL = 1e6
"""An epsilon that no finite loss exceeds: delta there is the probability of an infinite loss."""
_MOST_LOOKS, _AIM = 6, 1e-3
"""A search for epsilon near pure epsilon ends after 6 evaluations, or with delta below its target by this share."""


@dataclass(frozen=True)
class _Reduced:
    """A history as a composition, up to a ratio e^ratio, beside pure epsilon.

    above: costs at least as much as the releases that it stands for. below: costs at most as much. ratio: G >= 0.
    epsilon: the pure epsilon of all other releases. least: from below, epsilon at the delta that is asked for.
    """

    above: Composition
    below: Composition
    ratio: float
    epsilon: float
    least: float


def _reductions(releases: Sequence[Release], delta: float) -> list[_Reduced]:
    """The ways to reduce a history, each of which gives an upper end. Every law with pure epsilon and finite pairs
    counts by its pairs in the first, and by its pure epsilon in the last."""
    relations = dict.fromkeys(str(r.relation) for r in releases)
    if len(relations) > 1:
        raise ValueError(f"history must have one relation; got {', '.join(relations)}")
    costs = [(r, MECHANISMS[r.mechanism].cost(r, delta)) for r in releases]
    gaussian = [(r, cost) for r, cost in costs if cost.gaussian]
    above, below = ([_continuous(r, cost, end) for r, cost in gaussian] for end in (0, 1))
    paired: dict[tuple[FinitePair, FinitePair], int] = {}
    for r, cost in costs:
        if cost.pairs is not None:
            paired[cost.pairs] = paired.get(cost.pairs, 0) + r.steps

    def composed(made: Sequence[Release], finite: Sequence[FinitePairs]) -> Composition:
        replaced = any(r.relation is Relation.REPLACE_ONE for r in made)
        return Composition((*finite, *(r.part for r in made)), replaced)

    def reduced(finite: Sequence[FinitePairs], kept: Callable[[Cost], bool]) -> _Reduced:
        top = composed(above, finite)
        return _Reduced(
            above=top,
            below=top if below == above else composed(below, finite),
            ratio=math.fsum(cost.ratio for _, cost in costs if kept(cost)),
            epsilon=_up(math.fsum(cost.epsilon for _, cost in costs if not kept(cost))),
            least=max((cost.least for _, cost in costs), default=0.0),
        )

    found = [reduced((), lambda cost: cost.gaussian)]
    if paired:
        finite = [FinitePairs(pairs, count) for pairs, count in paired.items()]
        found.insert(0, reduced(finite, lambda cost: cost.gaussian or cost.pairs is not None))
    return found


def _telling(reductions: Sequence[_Reduced]) -> Sequence[_Reduced]:
    """The reductions without the last one, if a law in it has no pure epsilon, so that it says nothing."""
    return reductions[:-1] if len(reductions) > 1 and reductions[-1].epsilon == math.inf else reductions


def _continuous(release: Release, cost: Cost, end: int) -> Release:
    """Continuous Gaussian releases that cost at least (end 0) or at most (end 1) as much as these."""
    if cost.multipliers is None or cost.multipliers[end] == release.noise_multiplier:
        return release
    return Release.of(replace(release.step, noise=cost.multipliers[end], mechanism="gaussian"), release.steps)


def gaussian_part(history: Steps) -> tuple[Composition, Composition, float]:
    """The compositions of Gaussian releases that cost at least, and at most, as much as the history, and G.

    Raises ValueError for a history with a mechanism that is no Gaussian one.
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
        history: steps, such as `step * 1000`, all with one relation; no steps cost nothing.
        epsilon: epsilon >= 0.
        near: a delta that the caller compares the answer with. If the answer is far from it the bracket may be wide,
            but it still says on which side of `near` the answer is. It saves time for allocations and finite pairs.

    Returns:
        A bracket. `value` is an estimate, and `upper` is certified: it is the number to state.

    Raises:
        ValueError: an argument outside its range.
    """
    return _history_delta(history, epsilon, near, _resolved)


def _history_delta(history: Steps, epsilon: float, near: float | None, of: "_Answer") -> Bracket:
    eps = check.real("epsilon", epsilon, at_least=0)
    made = releases_of(history)
    reductions = _reductions(made, 0.0)
    found = [_reduced_delta(reduced, eps, notes(made), near, of) for reduced in _telling(reductions)]
    lower, upper = max(bracket.lower for bracket in found), min(bracket.upper for bracket in found)
    upper = max(min(upper, _near_pure(reductions, eps)), lower)
    return replace(found[0], lower=lower, value=min(max(found[0].value, lower), upper), upper=upper)


def wide_delta(history: Steps, epsilon: float) -> float:
    """An upper bound on the upper end of `delta_of_history`, by moments; it exists however small delta is."""
    reductions = _telling(_reductions(releases_of(history), 0.0))
    return min(_reduced_delta(reduced, epsilon, of=_wide).upper for reduced in reductions)


_Answer = Callable[[Composition, float, float | None], Bracket]
"""A function that gives the bracket of delta of a composition at an epsilon; its last argument is the `near` of
`delta_of_history`."""


def _sharp(composition: Composition, epsilon: float, near: float | None) -> Bracket:
    return answer(composition).delta(epsilon, near)


def _wide(composition: Composition, epsilon: float, near: float | None) -> Bracket:
    upper = moment_delta(composition, epsilon)
    return Bracket(0.0, upper, upper, _MOMENTS)


def _resolved(composition: Composition, epsilon: float, near: float | None) -> Bracket:
    """The sharp bracket, with an upper end by moments where delta is so small that it is not resolved."""
    found = _sharp(composition, epsilon, near)
    if found.upper > _HIDDEN or found.lower > _UNRESOLVED * found.upper or found.upper == 0:
        return found
    upper = max(min(moment_delta(composition, epsilon), found.upper), found.lower)
    return found if upper == found.upper else Bracket(found.lower, min(found.value, upper), upper, _MOMENTS)


def _reduced_delta(
    reduced: _Reduced,
    eps: float,
    notes: tuple[str, ...] = (),
    near: float | None = None,
    of: _Answer = _resolved,
) -> Bracket:
    beyond, ratio = reduced.epsilon, reduced.ratio
    # delta(epsilon) <= e^G delta'(left), delta' without the ratio; delta'(left) <= delta'(0) + 1 - e^left for left < 0
    left = math.nextafter(eps - 2 * ratio, -math.inf) if ratio else eps
    # pure epsilon e alone costs at most (e^e - e^left)/(1 + e^e) at left < e, beside other releases at 0
    pure = -math.expm1(max(left, 0.0) - beyond) / (1 + math.exp(-beyond)) if beyond > left else 0.0
    pure = max(pure, 0.0) - math.expm1(min(left, 0.0))
    if reduced.above.empty:
        return Bracket(0.0, pure, min(_up(pure), 1.0), CLOSED, notes)

    found = of(reduced.above, max(_down(left - beyond) if beyond else left, 0.0), near)
    if ratio + beyond == 0:
        return replace(found, notes=notes)
    upper = min(_up((found.upper + pure) * math.exp(ratio)), 1.0)
    lower = of(reduced.below, _up(eps + 2 * ratio), near).lower * math.exp(-ratio)
    return Bracket(_down(lower), min(found.value + pure, upper), upper, found.method, notes)


def _near_pure(reductions: Sequence[_Reduced], eps: float) -> float:
    """An upper bound on delta that is sharp where epsilon is close below the pure epsilon e of finite pairs alone.

    No loss exceeds e, so delta(epsilon) <= (1 - e^{epsilon - e}) P(L > epsilon), and Markov's inequality for the gain
    at epsilon - b, 1 - e^-b at least where L > epsilon, gives P(L > epsilon) <= delta(epsilon - b)/(1 - e^-b).
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
        history: steps, such as `step * 1000`, all with one relation; no steps cost nothing.
        delta: 0 < delta < 1; 0 is allowed where no noise is Gaussian.

    Returns:
        A bracket with value = upper, which is certified: the history is (upper, delta)-DP.

    Raises:
        ValueError: an argument outside its range, or a delta that noise on a coarse lattice does not resolve.
    """
    return _history_epsilon(history, delta)


def excess(history: Steps, target_epsilon: float, target_delta: float) -> float:
    """By which share a history costs more than (target_epsilon, target_delta); at most 0 if it does not.

    It is the larger of two shares: that by which the upper end of `epsilon_of_history` at target_delta exceeds
    target_epsilon, and that by which the upper end of `delta_of_history` at target_epsilon exceeds target_delta (the
    former alone for target_delta = 0). In exact arithmetic both are at most 0 or neither is; they come from two
    searches, so that their errors differ. Calibration and the searches for steps, batches and records keep both at most
    0; a ledger looks at the first. target_epsilon: > 0. Other arguments and errors are those of the two functions.
    """
    beyond = [_history_epsilon(history, target_delta, below=False).upper / target_epsilon - 1]
    if target_delta > 0:
        beyond.append(delta_of_history(history, target_epsilon).upper / target_delta - 1)
    return max(beyond)


def _history_epsilon(history: Steps, delta: float, *, below: bool = True) -> Bracket:
    """`epsilon_of_history`; with below=False the lower end is not looked for, and may be 0."""
    target = check.real("delta", delta, at_least=0, below=1)
    made = releases_of(history)
    reductions = _reductions(made, target)
    if not reductions[-1].above.empty or reductions[-1].epsilon == math.inf:
        check.real("delta", delta, above=0, below=1)
    *by_pairs, last = _telling(reductions)
    found = [*_by_pairs(by_pairs if target > 0 else [], target, below), _reduced_epsilon(last, target, below)]
    upper = min(bracket.upper for bracket in found)
    lower = min(max(bracket.lower for bracket in found), upper)
    if target > 0:
        upper = max(_close_to_pure(reductions, target, upper), lower)
    return Bracket(lower, upper, upper, found[0].method, notes(made))


def _by_pairs(reductions: Sequence[_Reduced], target: float, below: bool) -> Iterator[Bracket]:
    """The brackets by those reductions that are certified at this delta. Close to pure epsilon delta falls to 0 at
    once, and such a small delta may not be resolved."""
    for reduced in reductions:
        with suppress(OverflowError):
            yield _reduced_epsilon(reduced, target, below)


def _close_to_pure(reductions: Sequence[_Reduced], target: float, upper: float) -> float:
    """About the least epsilon at which `_near_pure` is at most the target, if it is below `upper`; else `upper`."""
    pure, best = reductions[-1].epsilon, upper
    if not math.exp(min(upper - pure, 0.0)) > 1 - _CLOSE_TO_PURE:
        return upper
    gap = target
    for _ in range(_MOST_LOOKS):
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
    if reduced.above.empty:
        lower = min(reduced.least, reduced.epsilon)
        return Bracket(lower, reduced.epsilon, reduced.epsilon, CLOSED)

    def paired(delta: float) -> Bracket:
        return _composed_epsilon(reduced.above, delta, below)

    ratio = reduced.ratio
    found = paired(_down(target * math.exp(-ratio)) if ratio > 0 else target)
    upper = found.upper
    if ratio + reduced.epsilon > 0:
        upper = _up(found.upper + 2 * ratio + reduced.epsilon)
    lower = found.lower
    if below and reduced.below is not reduced.above:
        lower = _composed_epsilon(reduced.below, _up(target * math.exp(ratio))).lower
    elif below and ratio >= MARGIN / 2:  # else it holds at delta (1 + MARGIN) too, so at delta e^G
        lower = _exceeding(answer(reduced.above).delta, lower, target, ratio)
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


def sharp_delta(history: Steps, epsilon: float, *, near: float | None = None) -> Bracket:
    """`delta_of_history` without moments where delta is not resolved: for searches, which ask often."""
    return _history_delta(history, epsilon, near, _sharp)


def _composed_epsilon(composition: Composition, delta: float, below: bool = True) -> Bracket:
    """The bracket by a search, or by moments if no epsilon is found at which so small a delta is resolved."""
    try:
        return answer(composition).epsilon(delta, below=below)
    except OverflowError:
        upper = moment_epsilon(composition, delta)
    if upper == math.inf:
        raise ValueError(
            "delta must be at least what is resolved of this history's noise on a lattice,"
            f" {moment_delta(composition, _BEYOND_ALL):.3g}; got {delta!r}"
        )
    return Bracket(0.0, upper, upper, _MOMENTS)


def notes(made: Sequence[Release]) -> tuple[str, ...]:
    """The sentences that a reader of this history's certificate must know."""
    found = [r.step.sampling.note(r.relation) for r in made if r.sample_rate < 1]
    found += [MECHANISMS[r.mechanism].note for r in made]
    return tuple(dict.fromkeys(note for note in found if note))
