"""delta and epsilon of a recorded history of releases, as certified brackets.

Each release has a `Cost`; the costs of a history add up to one, whose laws are composed on a grid (module `grid`).
Noise on a fine lattice costs what continuous noise does up to a ratio e^G of probabilities: then delta(epsilon) <= e^G
delta'(epsilon - 2 G), with delta' for continuous noise.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from dpzero_theory import check
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.cost import NOTHING, Cost
from dpzero_theory.privacy.gaussian import GDP_ACCURACY, delta_from_gdp, epsilon_from_gdp
from dpzero_theory.privacy.grid import LEAST_DELTA, Bounds, Parts, delta_bounds, epsilon_bounds
from dpzero_theory.privacy.laws.concentrated import direct_delta, direct_epsilon
from dpzero_theory.privacy.laws.finite import Ends
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.step import Release, Steps, releases_of

_SHARP = 1e-7
"""The relative width of a bracket of epsilon that decides whether a target just below its upper end is met."""


def delta_of_history(history: Steps, epsilon: float) -> Bracket:
    """The smallest delta for which the history is (epsilon, delta)-DP.

    Args:
        history: steps, such as `step * 1000`, all with one relation; an empty history costs nothing.
        epsilon: epsilon >= 0.

    Returns:
        A bracket. `value` is an estimate, and `upper` is certified: it is the number to state. A delta below 1e-30 is
        not resolved.

    Raises:
        ValueError: an argument outside its range, steps with different relations, or a history that no grid resolves.
    """
    eps = check.real("epsilon", epsilon, at_least=0)
    made = releases_of(history)
    cost = cost_of(made)
    found = cost_delta(cost, eps)
    value = found.lower + (found.upper - found.lower) / 3 if found.lower > 0 else found.upper
    return Bracket(found.lower, value, found.upper, _method(cost), notes(made))


def epsilon_of_history(history: Steps, delta: float) -> Bracket:
    """The smallest epsilon >= 0 for which the history is (epsilon, delta)-DP.

    Args:
        history: steps, such as `step * 1000`, all with one relation; an empty history costs nothing. Noise, batches and
            number of steps must have been fixed beforehand: none may follow from what earlier steps released.
        delta: 1e-30 <= delta < 1; 0 is allowed where every step has pure epsilon, as with Laplace noise.

    Returns:
        A bracket with value = upper, which is certified: the history is (upper, delta)-DP.

    Raises:
        ValueError: an argument outside its range; steps with different relations; a delta below the probability with
            which a step may show everything; a history that no grid resolves.
    """
    target = check.real("delta", delta, at_least=0, below=1)
    made = releases_of(history)
    cost = cost_of(made)
    found = cost_epsilon(cost, target)
    return Bracket(found.lower, found.upper, found.upper, _method(cost), notes(made))


def deltas_of_directions(history: Steps, epsilon: float) -> tuple[Bracket, Bracket]:
    """The brackets of delta of a history at `epsilon` in each of the two directions.

    With P the law of what is released with the record, or with its one value, and Q the law without it, or with its
    other value, the first bracket is of max over events E of P(E) - e^epsilon Q(E), and the second of max over E of
    Q(E) - e^epsilon P(E). The arguments are those of `delta_of_history`, whose bracket has the larger end of both.
    """
    cost = cost_of(releases_of(history))
    first, second = (replace(cost, above=(cost.above[way],) * 2, below=(cost.below[way],) * 2) for way in (0, 1))
    found = [cost_delta(one, epsilon) for one in ((first,) if first == second else (first, second))]
    one, other = (Bracket(each.lower, each.upper, each.upper, _method(cost)) for each in (found[0], found[-1]))
    return one, other


def upper_epsilon(history: Steps, delta: float) -> Bracket:
    """The bracket of `epsilon_of_history` at `delta` with 0 as its lower end."""
    return replace(epsilon_of_history(history, delta), lower=0.0)


def upper_delta(history: Steps, epsilon: float) -> float:
    """The upper end of `delta_of_history`, in less time."""
    return cost_delta(cost_of(releases_of(history)), epsilon, ends="upper").upper


def epsilon_beside(history: Steps, delta: float, target: float) -> float:
    """The upper end of `epsilon_of_history`, by a finer grid where the target lies within the bracket.

    It is at most the target wherever that of `epsilon_of_history` is, and so for each calibrated history.
    """
    cost = cost_of(releases_of(history))
    found = cost_epsilon(cost, delta)
    if found.lower <= target < found.upper:
        found = found.within(cost_epsilon(cost, delta, wanted=_SHARP))
    return found.upper


def excess(cost: Cost, target_epsilon: float, target_delta: float) -> float:
    """The share by which a cost misses the target (target_epsilon, target_delta): at most 0 if it is certified to meet
    it, both where epsilon is asked at the target delta and where delta is asked at the target epsilon."""
    beyond = [cost_epsilon(cost, target_delta, ends="upper").upper / target_epsilon - 1]
    if target_delta > 0:
        beyond.append(cost_delta(cost, target_epsilon, ends="upper").upper / target_delta - 1)
    return max(beyond)


def cost_of(releases: Sequence[Release]) -> Cost:
    """The cost of releases. Raises ValueError unless they have one relation."""
    require_one_relation(releases)
    return sum((release.cost for release in releases), NOTHING)


def require_one_relation(releases: Sequence[Release]) -> None:
    """Raise ValueError unless all releases have the same neighbouring relation."""
    relations = dict.fromkeys(str(r.relation) for r in releases)
    if len(relations) > 1:
        raise ValueError(f"history must have one relation; got {', '.join(relations)}")


def cost_delta(
    cost: Cost, epsilon: float, *, near: float | None = None, wanted: float = 1e-3, ends: Ends = "both"
) -> Bounds:
    """Bounds on the smallest delta of a cost at an epsilon.

    ends: the ends that are used. The other one may be wrong. near, wanted: arguments of `grid.delta_bounds`.
    """
    if epsilon >= cost.pure[0]:
        return Bounds(0.0, 0.0)
    # Releases with pure epsilon e alone have at an epsilon x < e a delta of at most (e^e - e^x)/(1 + e^e).
    left, apart = epsilon - 2 * cost.ratio, cost.apart
    missing = -math.expm1(max(left, 0.0) - apart) / (1 + math.exp(-apart)) if apart > left else 0.0
    missing = max(missing, 0.0) - math.expm1(min(left, 0.0))
    at = max(left - apart, 0.0)
    if (shifted := cost.ratio + apart) > 0:
        at, least_at = at * (1 - 2.0**-50), (epsilon + 2 * cost.ratio) * (1 + 2.0**-50)
    found = _composed_delta(cost, at, least_at if shifted else at, near, wanted, ends)
    # No loss exceeds the pure epsilon.
    most = min(-math.expm1(epsilon - cost.pure[0]) * (1 + 1e-15), 1.0)
    if not shifted:
        return Bounds(min(found.lower, most), min(found.upper, most))
    upper = min((found.upper + missing) * math.exp(cost.ratio) * (1 + 1e-15), most)
    return Bounds(min(found.lower * math.exp(-cost.ratio) * (1 - 1e-15), upper), upper)


def _composed_delta(
    cost: Cost, epsilon: float, least_at: float, near: float | None, wanted: float, ends: Ends
) -> Bounds:
    """Bounds on delta of the laws of a cost: the upper one at `epsilon`, the lower one at `least_at`."""
    if cost.squares[0] == math.inf:
        return Bounds(0.0, 1.0)
    if cost.closed:
        upper, lower = (_plain(square, at) for square, at in zip(cost.squares, (epsilon, least_at), strict=True))
        upper = min(upper * (1 + GDP_ACCURACY) + 5e-324 * (cost.squares[0] > 0), 1.0)
        if any(cost.below) and ends != "upper":
            lower = delta_bounds(cost.directions(attained=True), least_at, near=near, wanted=wanted).lower
        return Bounds(min(lower * (1 - GDP_ACCURACY), upper), upper)

    def bounds(parts: list[Parts]) -> Bounds:
        return delta_bounds(parts, epsilon, least_at=least_at, near=near, wanted=wanted)

    found = _both(cost, ends, bounds)
    # A grid of the losses of Renyi divergences loses a little on them.
    told = cost.moments()
    if told is not None:
        return found.within(Bounds(0.0, direct_delta(*told, epsilon)))
    if cost.unamplified < math.inf:
        # Who knows the batches sees no less (joint convexity).
        return found.within(Bounds(0.0, min(_plain(cost.unamplified, epsilon) * (1 + GDP_ACCURACY) + 5e-324, 1.0)))
    return found


def _plain(square: float, epsilon: float) -> float:
    return float(delta_from_gdp(epsilon, math.sqrt(square))) if square > 0 else 0.0


def _both(cost: Cost, ends: Ends, bounds: Callable[[list[Parts]], Bounds]) -> Bounds:
    """The bounds of a cost, where `bounds` gives those of the largest of several compositions.

    If the laws for the two ends differ, each end is that of its own laws, and an end that is not in `ends`
    says nothing.
    """
    if cost.exact:
        return bounds(cost.directions())
    upper = bounds(cost.directions()).upper if ends != "lower" else math.inf
    below = [parts for parts in cost.directions(attained=True) if parts] if ends != "upper" else []
    return Bounds(min(bounds(below).lower, upper) if below else 0.0, upper)


def cost_epsilon(cost: Cost, delta: float, *, wanted: float = 1e-4, ends: Ends = "both") -> Bounds:
    """Bounds on the smallest epsilon of a cost at a delta.

    ends: the ends that are used. The other one may be wrong. wanted: an argument of `grid.epsilon_bounds`.
    """
    upper, lower = cost.pure
    if delta == 0:
        if upper == math.inf:
            check.real("delta", delta, above=0, below=1)
        return Bounds(lower, upper)
    if cost.closed and not any(cost.squares):
        return Bounds(0.0, upper)
    check.real("delta", delta, at_least=LEAST_DELTA, below=1)
    shifted = cost.ratio + cost.apart > 0
    more = math.exp(cost.ratio) * (1 + 2.0**-50 * shifted)
    found = _composed_epsilon(cost, delta / more, delta * more, wanted, ends)
    if min(found.upper, upper) == math.inf and ends != "lower":
        shown = max((sum(n * law.infinite for law, n in parts) for parts in cost.directions()), default=1.0)
        raise ValueError(f"delta must be above {shown:.3g}, what this history shows for certain; got {delta!r}")
    upper = min((found.upper + 2 * cost.ratio + cost.apart) * (1 + 2.0**-50 * shifted), upper)
    return Bounds(min(max(found.lower - 2 * cost.ratio * (1 + 2.0**-50), 0.0), upper), upper)


def _composed_epsilon(cost: Cost, delta: float, least_delta: float, wanted: float, ends: Ends) -> Bounds:
    """Bounds on epsilon of the laws of a cost: the upper one at `delta`, the lower one at `least_delta`."""
    if cost.squares[0] == math.inf:
        return Bounds(0.0, math.inf)
    if cost.closed:
        upper, lower = (
            float(epsilon_from_gdp(math.sqrt(square), at)) if square > 0 else 0.0
            for square, at in zip(cost.squares, (delta, least_delta), strict=True)
        )
        if any(cost.below) and ends != "upper":
            lower = epsilon_bounds(cost.directions(attained=True), least_delta, wanted=wanted).lower
        return Bounds(min(lower * (1 - 1e-9), upper), upper)

    def bounds(parts: list[Parts]) -> Bounds:
        return epsilon_bounds(parts, delta, least_delta=least_delta, wanted=wanted)

    found = _both(cost, ends, bounds)
    told = cost.moments()
    if told is not None:
        return found.within(Bounds(0.0, direct_epsilon(*told, delta)))
    if 0 < cost.unamplified < math.inf:
        return found.within(Bounds(0.0, float(epsilon_from_gdp(math.sqrt(cost.unamplified), delta))))
    return found


def _method(cost: Cost) -> str:
    return "closed form" if cost.closed else "grid"


def notes(made: Sequence[Release]) -> tuple[str, ...]:
    """The sentences about the samplings and noise laws of the releases `made` that a reader of the accountant's answer
    must know, each once."""
    sentences = [r.step.sampling.note(r.relation) for r in made if r.sample_rate < 1]
    sentences += [MECHANISMS[r.mechanism].note for r in made]
    return tuple(dict.fromkeys(note for note in sentences if note))
