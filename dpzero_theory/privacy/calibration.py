"""Finds the smallest noise multiplier with which a number of steps meets a privacy target (epsilon, delta)."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from dpzero_theory import check
from dpzero_theory.bisection import outward
from dpzero_theory.privacy.accountant import Group
from dpzero_theory.privacy.bracket import Bounds, Bracket
from dpzero_theory.privacy.grid import LEAST_DELTA
from dpzero_theory.privacy.laws.finite import Ends
from dpzero_theory.privacy.laws.law import crossing
from dpzero_theory.privacy.laws.shifts import LEAST_LAPLACE
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import Sampling
from dpzero_theory.privacy.step import Step

LARGEST_EPSILON = 1e4  # the largest target_epsilon with sampled batches; a larger one protects nothing
_BEYOND = 1e300  # the largest noise multiplier and the largest target epsilon that are considered
_LOUD = 1e6  # A noise multiplier that every noise law accepts
_PURE_ACCURACY = 1e-10  # a bound on the relative error of the multiplier for delta = 0, where that is possible
_ROUGH, _FINE = 0.5, 1e-3
"""Relative widths for bounds on delta during the search: `_ROUGH` where delta is far from the target, and `_FINE`, as
in `delta_of_history`, near it."""
_SHARP = 1e-7  # if bounds on delta have at most this relative width, the multiplier is searched for to this accuracy
_NEAR, _SHARE, _CLOSED, _SETTLED = 0.02, 5e-5, 1e-11, 4e-4
"""Relative accuracies of the noise multiplier: `_NEAR` in a first, rough search; `_SHARE` for the answer, or `_CLOSED`
if delta has a closed form. An answer that misses its target is first raised by at most the share `_SETTLED`."""
_JUMP = 2e-4  # the relative distance from the answer at which a search may end where bounds on delta jump
_APART, _FARTHEST = 3e-4, 0.3
"""The search for the lower bound on the multiplier begins by the share `_APART` below the upper one if the two come
from different `Law`s. One step of it changes mu, the parameter of Gaussian privacy, by at most e^`_FARTHEST` times."""

_Deltas = Callable[[float, float, Ends], Bounds]
"""The type of a function of a noise multiplier, a relative width and "lower", "upper" or "both" (the bounds that the
caller uses). It returns bounds on delta for that multiplier, of about that width."""


def calibrate(
    *,
    epsilon: float,
    delta: float,
    steps: int,
    sampling: Sampling,
    relation: str,
    mechanism: str = "gaussian",
    coordinates: int = 1,
    group: int = 1,
    n: int | None = None,
) -> Bracket:
    """Finds the smallest noise multiplier with which `steps` equal steps are (epsilon, delta)-differentially private.

    Args:
        epsilon: the target, > 0; at most 10^4 with sampled batches.
        delta: the target, 1e-30 <= delta < 1; with Laplace noise also 0.
        steps: the number of steps, >= 1.
        sampling: how batches are drawn, for example `Poisson(1 / 16)`.
        relation: which data sets are neighbours: "replace-one", "add-remove" or "zero-out"; there is no default.
        mechanism: the noise law, a name in `dpzero_theory.MECHANISMS` such as "gaussian" or "laplace". For noise on
            integers use "discrete-gaussian:M" or "discrete-laplace:M", where the per-record clip is M >= 1 integers.
        coordinates: the number K >= 1 of values that a record contributes to a step, clipped as a vector in L2 norm.
        group: the number of records in which neighbouring data sets may differ. Use 1, or the largest number of records
            of one user to protect users.
        n: the number of records of the larger data set, or None if unknown. Needed only if `group` > 1 and batches have
            a fixed size under "add-remove".

    Returns:
        A `Bracket` around the exact multiplier. Use `value`, which equals `upper`: with it the target is certainly met.
        With `lower` it is proved to be missed, or `lower` is 0. The two differ by 1e-3 of the multiplier or less, and
        by 1e-7 for Gaussian noise in Poisson batches. On a coarse lattice ("discrete-gaussian:M" with small M) more
        noise may cost more privacy, so that some multiplier below `lower` may meet the target too. The multiplier is
        the argument `noise` of `Step`: the standard deviation of the noise on the sum of a batch (for Laplace noise its
        scale b), divided by the per-record clip.

    Raises:
        ValueError: an argument is outside its range, or the target is met by a multiplier that is too small to be
            searched for: random allocation with epochs of over 100 steps and a multiplier below 0.2 (0.35 with
            replace-one).
        PreconditionError: every noise multiplier, however small, meets the target, because the probability that a
            record is used at all is at most delta: 1 - (1-q)^T for T Poisson batches of rate q.
    """
    target, share = check.real("epsilon", epsilon, above=0), check.real("delta", delta, at_least=0, below=1)
    return calibrated(Step(_LOUD, sampling, Relation(relation), mechanism, coordinates, steps), target, share, group, n)


def calibrated(made: Step, epsilon: float, target_delta: float, group: int = 1, n: int | None = None) -> Bracket:
    """Finds what `calibrate` finds, for the steps `made`, whose own multiplier is ignored. The other arguments, their
    ranges and the result are those of `calibrate`, with `target_delta` for its delta; messages call the two targets
    target_epsilon and target_delta."""
    check.real("target_epsilon", epsilon, above=0, at_most=_BEYOND)
    delta = check.real("target_delta", target_delta, at_least=0, below=1)
    loud = Group(made.with_noise(_LOUD), group, n)
    known, size = loud.one, loud.size

    def deltas(noise: float, wanted: float, ends: Ends) -> Bounds:
        near = None if wanted == _FINE and ends != "lower" else delta
        try:
            return Group(made.with_noise(noise), size, n).delta(epsilon, near=near, wanted=wanted, ends=ends)
        except OverflowError:
            return Bounds(0.0, 1.0)

    def beyond(noise: float) -> float:
        return Group(made.with_noise(noise), size, n).excess(epsilon, delta)

    # At delta = 0 the epsilons of a group's records add up, so each record gets an equal share of the target.
    pure = MECHANISMS[made.mechanism].multiplier(made, epsilon / size)
    composed = any(known.above) or 0 < known.squares[0] < math.inf
    least = 0.0 if pure is None else pure * (1 - _PURE_ACCURACY)
    if pure is not None and (delta == 0 or pure <= LEAST_LAPLACE or not composed):
        found = loud.bracket(Bounds(0.0 if delta > 0 else least, pure))
        return settled(replace(found, method="closed form"), beyond)
    check.real("target_delta", delta, at_least=LEAST_DELTA, below=1)
    reached = made.sampling.chance(made.steps)
    if not reached > delta:
        rule = f"target_delta must be below {reached:.6g}, the chance that a record is used at all"
        raise check.PreconditionError(f"{rule}; got {delta!r} (any positive noise_multiplier meets it)")
    if not known.closed:
        check.real("target_epsilon", epsilon, at_most=LARGEST_EPSILON)

    least_sought = 0.0 if known.closed else made.sampling.least_sought(made.relation)
    floor = MECHANISMS[made.mechanism].least(made)
    share = _CLOSED if known.closed else _SHARE
    sought = _least_noise(deltas, epsilon, delta, size * _guess(made, epsilon, delta), share, least_sought, floor)
    if sought is None:
        rule = f"target_epsilon must need a noise multiplier of at least {least_sought:g}"
        rule += f" with sampling {made.sampling.word}"
        raise ValueError(f"{rule}, as less is not searched for; got {epsilon!r} (epsilon of given noise is answered)")
    if pure is not None and pure < sought.upper:
        found = replace(loud.bracket(Bounds(min(sought.lower, least), pure)), method="closed form")
    else:
        found = Group(made.with_noise(sought.upper), size, n).bracket(sought)
    return settled(found, beyond)


def _log_mu(epsilon: float, delta: float) -> float:
    # The log of about the mu with which mu-GDP has `delta` at `epsilon`. The search for the noise compares deltas by
    # this number, because it falls about as fast as the log of the noise rises.
    if delta <= 0:
        return -math.inf
    # mu-GDP is rho-zCDP with rho = mu^2/2, whose bound epsilon = rho + 2 sqrt(rho log(1/delta)) is solved for mu here.
    fall = max(-2 * math.log(delta), 0.0)
    return math.log(2 * epsilon / (math.sqrt(fall + 2 * epsilon) + math.sqrt(fall)))


def _guess(made: Step, epsilon: float, delta: float) -> float:
    # The search begins at this noise, so an error here does not affect the answer. The central limit theorem mu = q
    # sqrt(T (e^(1/s^2) - 1)) is solved for s, the noise over the sensitivity, with q the sample rate, T the number of
    # steps, and mu the parameter of Gaussian DP at the target.
    gdp = math.exp(_log_mu(epsilon, delta))
    rate, uses = made.sampling.sample_rate, made.sampling.uses(made.steps)
    change = made.sampling.largest_change(made.relation)
    if rate == 1:
        return change * math.sqrt(uses) / gdp
    one = change / math.sqrt(math.log1p((gdp / rate) ** 2 / made.steps))
    return one * (1.4 if made.mechanism == "laplace" else 1.0)


def _least_noise(
    deltas: _Deltas, epsilon: float, target: float, start: float, share: float, least: float, floor: float
) -> Bounds | None:
    """Returns bounds on the noise multiplier at which delta at `epsilon` > 0 equals `target` > 0. With the multiplier
    `upper` the upper bound on delta is at most the target. With `lower` the lower bound on delta is above the target,
    or `lower` is 0. `deltas` bounds delta for a multiplier, and the search begins at the guess `start`. `share` is the
    relative accuracy of `upper`, which is finer if bounds on delta are very narrow. Returns None if the multiplier
    `least` meets the target. Below the multiplier `floor` no bounds on delta are known: if `floor` is above `least` and
    meets the target, (0, `floor`) is returned. Raises ValueError if no multiplier up to 1e300 meets the target."""
    log_target, fall = _log_mu(epsilon, target), -2 * math.log(target)
    # The log of delta rises about `root` times as fast as the log of mu.
    root = math.sqrt(fall * (fall + 2 * epsilon))

    seen: dict[str, dict[float, float]] = {"rough": {}, "upper": {}, "lower": {}}

    @cache
    def beyond(noise: float, wanted: float, ends: Ends) -> float:
        found = deltas(noise, wanted, ends)
        delta = found.lower if ends == "lower" else found.upper
        if wanted == _ROUGH and ends == "upper" and found.lower > 0.3 * found.upper:
            # Delta is mostly nearer to its lower bound, unless that is far below the upper one and says nothing.
            delta = found.lower + (found.upper - found.lower) / 3
        value = _log_mu(epsilon, delta) - log_target
        seen["rough" if wanted == _ROUGH else ends][noise] = value
        return value

    rough, near = partial(beyond, wanted=_ROUGH, ends="upper"), max(share, _NEAR)
    within = partial(crossing, least=max(least, floor, 1e-300), most=_BEYOND)
    missed, met = within(rough, start, share=near, slope=1, aim=(-near, near))
    if met == least > floor and deltas(least, _ROUGH, "upper").upper <= target:
        return None
    guess, slope = _root(seen["rough"])
    guess = max(guess, floor)
    at_guess = deltas(guess, _FINE, "both" if share < _SHARP else "upper")
    # Bounds so narrow come from a closed form or an integral (module `contour`), so fast that a finer search pays.
    narrow = at_guess.upper - at_guess.lower < _SHARP * at_guess.upper

    def search(
        near: float, share: float, wanted: float, ends: Ends, jump: float = _JUMP
    ) -> tuple[float | None, float | None]:
        excess = partial(beyond, wanted=wanted, ends=ends)
        if narrow:
            return within(excess, near, slope=slope, share=min(share, _SHARP))
        # Bounds on delta jump a little as the noise changes, so a search may end `jump` from the answer, or in `aim`.
        aim = (1e-15, share * slope) if ends == "lower" else (-max(share, jump / 2) * slope, 0.0)
        return within(excess, near, slope=slope, share=max(share, jump), aim=aim)

    missed, met = search(guess, share, _FINE, "upper")
    if met is None:
        raise ValueError("target_epsilon and target_delta must be within the accountant's reach; got noise inf")
    if met == floor:
        return Bounds(0.0, met)
    if narrow:
        known = missed is not None and beyond(missed, _FINE, "lower") > 0
        return Bounds((missed if known else search(missed or met, share, _FINE, "lower")[0]) or 0.0, met)
    slope = max(_root(seen["upper"])[1], slope / 4) if len(seen["upper"]) > 1 else slope
    # The lower bound on delta at `met`, computed with the upper one, tells how much less noise meets the target.
    lower = deltas(met, _FINE, "upper").lower
    both = _log_mu(epsilon, lower) - log_target if lower > 0 else -_APART * slope
    near = met * math.exp(max(both, -_FARTHEST) / slope - share / 2)
    gap = beyond(near, _FINE, "lower")
    if not 0 < gap <= 1.5 * _APART * slope:
        # If the two bounds on the multiplier are far apart, the lower one is computed only to a share of the gap.
        apart = min(max(met / near - 1 - gap / slope, 0.0), 0.5)
        finest = min(apart, 0.1) / 16
        near = near * math.exp(max(min(gap, _FARTHEST), -_FARTHEST) / slope - max(share, finest) / 2)
        coarse = max(_FINE, min(finest * root, _ROUGH))
        near = search(near, max(share, finest), coarse, "lower", max(apart / 16, _JUMP))[0] or 0.0
    return Bounds(near, met)


def _root(values: dict[float, float]) -> tuple[float, float]:
    # Where a search goes on: about the root of a falling function, from its `values` at some points, and about how much
    # it falls there while its argument rises by a factor e. Errors do not affect an answer.
    finite = sorted((x, value) for x, value in values.items() if math.isfinite(value))
    if not finite:
        return max(values), 1.0
    # The two points on both sides of the root, or else the nearest two
    k = min(max(sum(value > 0 for _, value in finite), 1), len(finite) - 1) if len(finite) > 1 else 0
    (x, first), (other, last) = finite[k - 1], finite[k]
    slope = min(max((first - last) / math.log(other / x), 0.5), 6.0) if k else 1.0
    return other * math.exp(min(max(last / slope, -1.0), 1.0)), slope


def settled(bracket: Bracket, beyond: Callable[[float], float]) -> Bracket:
    """Returns `bracket` with its upper end raised, if needed, to a number that meets the target, and with `value` equal
    to it. `beyond(x)` returns the relative amount by which the number x misses the target, at most 0 if it is met.
    Raises ValueError if no x <= 1e300 meets it."""
    value = bracket.upper  # the answer of a search, which may miss the target a little because of rounding
    if (missed := beyond(value)) > 0:
        # Bounds may jump by 1e-5 where the number hardly moves, so that a shorter first step would often be in vain.
        least = min((1 - bracket.lower / value) / 16, 1e-5)
        step = value * min(1.1 * max(missed, _CLOSED, least), _SETTLED)
        value = outward(lambda noise: beyond(noise) <= 0, value + step, step, most=_BEYOND)[1]
    if value == _BEYOND:
        raise ValueError("target_epsilon and target_delta must be within the accountant's reach; got noise inf")
    return replace(bracket, value=value, upper=value)
