"""The smallest noise multiplier with which a number of steps meets a privacy target (epsilon, delta).

`crossing` searches for it, and for every other number that is found from some ten answers of the accountant.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from dpzero_theory import check
from dpzero_theory.bisection import outward
from dpzero_theory.privacy.accountant import Group
from dpzero_theory.privacy.bracket import Bounds, Bracket
from dpzero_theory.privacy.grid import LEAST_DELTA
from dpzero_theory.privacy.laws.finite import Ends
from dpzero_theory.privacy.laws.shifts import LEAST_LAPLACE
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import Sampling
from dpzero_theory.privacy.step import Step

LARGEST_EPSILON = 1e4  # the largest target_epsilon with sampled batches; a larger one protects nothing
_BEYOND = 1e300  # the largest noise multiplier and the largest target epsilon that are considered
_LOUD = 1e6  # A noise multiplier that every noise law accepts
_PURE_ACCURACY = 1e-10  # a bound on the relative error of the multiplier of a law with pure epsilon, at delta = 0
_ROUGH, _FINEST, _FINE = 0.5, 1e-3, 0.01
"""The relative width of bounds on delta: the first where delta is far from the target; the others are the least and the
largest width where delta is near the target."""
_NARROW = 1e-4  # about the relative error of the multiplier that the width of bounds on delta may cause
_SHARP = 1e-7  # if bounds on delta have at most this relative width, the multiplier is searched for to this accuracy
_NEAR, _SHARE, _CLOSED, _SETTLED = 0.02, 5e-5, 1e-11, 1e-4
"""The relative accuracy of the multiplier: of the first, rough search; of the answer; of the answer where delta has a
closed form; and the largest first step by which the answer is raised where the accountant still misses the target."""
_APPROACHES = 4  # how many points are tried by secants from one side before both sides are searched
_JUMP = 2e-4  # the relative distance from the answer at which a search may end where bounds on delta jump
_SECANTS = 6  # how many steps outward have lengths chosen by secants; each later one is at least twice the last

_Deltas = Callable[[float, float, Ends], Bounds]
"""A function that bounds delta. Its arguments are a noise multiplier, the relative width that is wanted, and the ends
of the bounds that the caller uses."""


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
    """The smallest noise multiplier with which so many steps are (epsilon, delta)-differentially private.

    Args:
        epsilon: the target, > 0; at most 10^4 with sampled batches.
        delta: the target, 1e-30 <= delta < 1; with Laplace noise also 0.
        steps: T >= 1.
        sampling: how batches are drawn, for example `Poisson(1 / 16)`.
        relation: which data sets are neighbours: "replace-one", "add-remove" or "zero-out"; there is no default.
        mechanism: the noise law, a name in `dpzero_theory.MECHANISMS` such as "gaussian" or "laplace".
        coordinates: K >= 1, how many numbers a record contributes to a step; they are clipped jointly in L2 norm.
        group: the number of records in which neighbouring data sets may differ, 1 unless whole users are protected.
        n: the number of records of the larger data set, or None if it is not known. It must be given for groups in
            fixed-size batches under add-remove.

    Returns:
        A bracket around the exact number; `value` is `upper`, with which the target is certainly met: there `epsilon`
        at delta and `delta` at epsilon are at most the target. At `lower` a certified lower end of delta exceeds delta
        (of epsilon, for delta = 0). The two differ by 1e-3 of the noise or less, and by 1e-7 for Gaussian noise in
        Poisson batches. On a coarse lattice (discrete-gaussian:M) more noise may cost more, so that a multiplier
        smaller than `lower` may meet the target too. The multiplier is what `Step` takes as `noise`: the standard
        deviation of the noise on the sum of a batch (for Laplace noise its scale b), divided by the per-record clip.

    Raises:
        ValueError: an argument outside its range, or a target that random allocation with epochs of over 100 steps
            meets with a multiplier below 0.2 (0.35 with replace-one).
        PreconditionError: every noise multiplier, however small, meets the target, because a record is used at all with
            probability at most delta: 1 - (1-q)^T with Poisson batches of rate q.
    """
    target, share = check.real("epsilon", epsilon, above=0), check.real("delta", delta, at_least=0, below=1)
    return calibrated(Step(_LOUD, sampling, Relation(relation), mechanism, coordinates, steps), target, share, group, n)


def calibrated(made: Step, epsilon: float, target_delta: float, group: int = 1, n: int | None = None) -> Bracket:
    """The smallest noise multiplier with which the steps `made`, whose own multiplier is ignored, meet the target
    (`epsilon`, `target_delta`). Neighbouring data sets differ in up to `group` records, and the larger one has `n`
    records, or None if that is not known. The result and the errors are those of `calibrate`, but messages call the
    target target_epsilon and target_delta."""
    check.real("target_epsilon", epsilon, above=0, at_most=_BEYOND)
    delta = check.real("target_delta", target_delta, at_least=0, below=1)
    loud = Group(made.with_noise(_LOUD), group, n)
    known, size = loud.one, loud.size

    def deltas(noise: float, wanted: float, ends: Ends) -> Bounds:
        try:
            return Group(made.with_noise(noise), size, n).delta(epsilon, near=delta, wanted=wanted, ends=ends)
        except OverflowError:
            return Bounds(0.0, 1.0)

    def beyond(noise: float) -> float:
        return Group(made.with_noise(noise), size, n).excess(epsilon, delta)

    # The pure epsilons of a group's records add up, so that each record has a share of the target.
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
    share = _CLOSED if known.closed else _SHARE
    sought = _least_noise(deltas, epsilon, delta, size * _guess(made, epsilon, delta), share, least_sought)
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
    """About the log of the mu for which mu-GDP has this delta at this epsilon; -inf for a delta of at most 0. The
    search for the noise compares deltas by it, because it falls about as fast as the log of the noise rises."""
    if delta <= 0:
        return -math.inf
    # mu-GDP is rho-zCDP with rho = mu^2/2, whose bound epsilon = rho + 2 sqrt(rho log(1/delta)) is solved for mu here.
    fall = max(-2 * math.log(delta), 0.0)
    return math.log(2 * epsilon / (math.sqrt(fall + 2 * epsilon) + math.sqrt(fall)))


def _guess(made: Step, epsilon: float, delta: float) -> float:
    """About the noise multiplier for a target (epsilon, delta), where the search begins, so that its error does not
    affect the answer. It solves the central limit theorem mu = q sqrt(T (e^(1/s^2) - 1)) for s, the noise over the
    sensitivity, with q the sample rate, T the number of steps, and mu the parameter of Gaussian DP at the target."""
    gdp = math.exp(_log_mu(epsilon, delta))
    rate, uses = made.sampling.sample_rate, made.sampling.uses(made.steps)
    change = made.sampling.largest_change(made.relation)
    if rate == 1:
        return change * math.sqrt(uses) / gdp
    one = change / math.sqrt(math.log1p((gdp / rate) ** 2 / made.steps))
    return one * (1.4 if made.mechanism == "laplace" else 1.0)


def _least_noise(
    deltas: _Deltas, epsilon: float, target: float, start: float, share: float = _SHARE, least: float = 0.0
) -> Bounds | None:
    """Bounds on the noise multiplier at which delta(epsilon) equals `target` > 0, for one `epsilon` > 0. `deltas`
    bounds delta(epsilon) for a noise multiplier, the relative width that is wanted, and the ends that are used. The
    search begins at the guess `start`. At `upper` the upper bound on delta is at most the target; `upper` has the
    relative accuracy `share`, or a finer one if bounds on delta are very narrow. At `lower` the lower bound on delta is
    above the target, or `lower` is 0. Returns None if the multiplier `least` meets the target already: less is not
    tried. Raises ValueError if no noise multiplier up to 1e300 is enough."""
    log_target, fall = _log_mu(epsilon, target), -2 * math.log(target)
    # The log of delta rises about `root` times as fast as the log of mu.
    root = math.sqrt(fall * (fall + 2 * epsilon))
    fine = min(max(_NARROW * root, _FINEST), _FINE)

    def beyond(noise: float, wanted: float, ends: Ends) -> float:
        found = deltas(noise, wanted, ends)
        delta = found.lower if ends == "lower" else found.upper
        if wanted == _ROUGH and ends == "upper" and found.lower > 0.3 * found.upper:
            # Delta is mostly nearer to the lower end, unless that is so far below the upper one that it says nothing.
            delta = found.lower + (found.upper - found.lower) / 3
        return _log_mu(epsilon, delta) - log_target

    rough = partial(beyond, wanted=_ROUGH, ends="upper")
    missed, met = crossing(rough, start, share=max(share, _NEAR), least=max(least, 1e-300), most=_BEYOND, slope=1)
    if met == least and deltas(least, _ROUGH, "upper").upper <= target:
        return None
    guess, slope = met or missed or start, 1.0
    if missed and met and (first := rough(missed)) < math.inf and (last := rough(met)) > -math.inf:
        slope = max((first - last) / math.log(met / missed), 0.5)
        guess = met * math.exp(last / slope)
    # Bounds so narrow come from an integral (module `contour`), which is so fast that a finer search pays.
    at_guess = deltas(guess, fine, "both")
    narrow = at_guess.upper - at_guess.lower < _SHARP * at_guess.upper

    def search(near: float, share: float, wanted: float, ends: Ends) -> tuple[float | None, float | None]:
        excess = partial(beyond, wanted=wanted, ends=ends)
        if not narrow and (found := _approached(excess, near, slope, share, above=ends == "lower")) is not None:
            return (found, None) if ends == "lower" else (None, found)
        # Bounds that jump where the noise moves a little are not worth the finest search.
        return crossing(excess, near, most=_BEYOND, slope=slope, share=share if narrow else max(share, _JUMP))

    share = min(share, _SHARP) if narrow else share
    missed, met = search(guess, share, fine, "upper")
    if met is None:
        raise ValueError("target_epsilon and target_delta must be within the accountant's reach; got noise inf")
    near = missed or guess
    gap = beyond(near, fine, "lower")
    if gap <= 0 or not narrow:
        # If the ends are far apart, the lower one is only sought to a share of the gap, as more would tell nothing.
        apart = max(beyond(near, fine, "upper") - gap, 0.0)
        wide, coarse = max(share, min(apart, 0.01) / 16), max(fine, min(apart * root / 16, _ROUGH))
        near = search(near if gap > -math.inf else 0.75 * near, wide, coarse, "lower")[0] or 0.0
    return Bounds(near, met)


def _approached(
    excess: Callable[[float], float], guess: float, slope: float, share: float, *, above: bool
) -> float | None:
    """A point x > 0 near the root of a falling function, by secants from one side; `crossing` tells both sides, and so
    calls the function more often. The search begins at `guess`, where the function falls by about `slope` while x rises
    by a factor e, and ends at about the relative distance `share` from the root. The value at the returned point is
    above 0 if `above`, and else at most 0. If a few calls find none, because the function jumps or is infinite, the
    best point up to the distance `_JUMP` is returned, or None."""
    x, before, last, found = guess, math.nan, math.nan, (_JUMP * slope, 0.0)
    for _ in range(_APPROACHES):
        value = excess(x)
        if not math.isfinite(value):
            break
        if (value > 0) == above:
            if abs(value) <= share * slope:
                return x
            found = min(found, (abs(value), x))
        if (change := (last - value) / math.log(x / before) if x != before else 0.0) > 0:
            slope = min(max(change, slope / 2), 2 * slope)
        before, last = x, value
        # The next point is in the middle of the range in which the search ends.
        x *= math.exp(min(max(value / slope + (-0.5 if above else 0.5) * share, -1.0), 1.0))
    return found[1] or None


def settled(bracket: Bracket, beyond: Callable[[float], float]) -> Bracket:
    """Return a bracket with its upper end raised until the accountant certifies that it meets the target, and with
    `value` = `upper`: the rounding of the search that found `bracket` differs from that of the accountant's answers.
    `beyond` takes the number and returns the relative amount by which the target is missed, at most 0 where it is met,
    as `Group.excess` of the steps with this noise does. Raises ValueError if no float is enough."""
    value = bracket.upper
    if (missed := beyond(value)) > 0:
        step = value * min(max(missed, _CLOSED), _SETTLED)
        value = outward(lambda noise: beyond(noise) <= 0, value + step, step, most=_BEYOND)[1]
    if value == _BEYOND:
        raise ValueError("target_epsilon and target_delta must be within the accountant's reach; got noise inf")
    return replace(bracket, value=value, upper=value)


def crossing(
    excess: Callable[[float], float],
    guess: float,
    *,
    least: float = 1e-300,
    most: float = 1e300,
    rising: bool = False,
    share: float = 0.0,
    whole: bool = False,
    slope: float = 5,
) -> tuple[float | None, float | None]:
    """Narrow down the x > 0 at which a monotone function changes from above 0 to at most 0.

    The search goes outward from a guess, then by secants in log x between the two ends that it has. So it calls the
    function, which may take seconds, only a few times where the function is smooth and the guess is near.

    Args:
        excess: the function, such as the amount by which a run with x misses a target: x is good where it is at most 0.
            Its values may be infinite.
        guess: where the search begins.
        least, most: the range of x.
        rising: whether the function rises, so that small x are good; otherwise large x are.
        share: the search ends once the two ends differ by at most this share of x.
        whole: whether only integers are tried; then the search ends at two neighbouring integers.
        slope: about how much the function changes while x changes by a factor e; it chooses the first step.

    Returns:
        A pair (missed, met): the tried x nearest to the change with a value above 0, and the nearest with a value of at
        most 0. One of them is None if the function has one sign in the whole range.
    """
    way = -1 if rising else 1
    # For each side of the change (False: above 0) the nearest x so far: `way` times its log, and the value there.
    ends: dict[bool, tuple[float, float]] = {}
    points: dict[bool, float] = {}
    x = min(max(round(guess) if whole else guess, least), most)
    step, last, widths = share, None, [math.inf] * 3
    for tried in range(100):
        value = excess(x)
        side, here = value <= 0, way * math.log(x)
        if len(ends) < 2 and side in ends and math.isfinite(value - ends[side][1]) and value != ends[side][1]:
            # The secant through the last two points, a little beyond the root.
            secant = 1.2 * abs(value * (here - ends[side][0]) / (value - ends[side][1]))
            outer = min(max(secant, share if tried < _SECANTS else 2 * step), 16 * step)
        else:
            outer = max(2 * step, min(1.1 * abs(value) / slope, 1.5))
        ends[side], points[side] = (here, value), x
        if len(ends) < 2:
            step = max(outer, share, 1e-15)
            bound = most if (way > 0) != side else least
            if x == bound:
                break
            x = x * math.exp((-1 if side else 1) * way * step)
            x = (math.floor(x) if x < points[side] else math.ceil(x)) if whole else x
            x = min(max(x, least), most)
            continue
        (start, above), (end, below) = ends[False], ends[True]
        if end - start <= share or (whole and abs(points[True] - points[False]) <= 1):
            break
        if side is last:  # twice on one side: the other end counts half, so that the next point falls beyond the root
            ends[not side] = (ends[not side][0], ends[not side][1] / 2)
        last = side
        halving = end - start > 0.5 * widths[-3] or not math.isfinite(above - below)
        widths.append(end - start)
        at = 0.5 if halving else above / (above - below)
        room = min(share, end - start) / 2
        x = math.exp(way * min(max(start + at * (end - start), start + room), end - room))
        if whole:
            x = min(max(round(x), min(points.values()) + 1), max(points.values()) - 1)
        elif not min(points.values()) < x < max(points.values()):
            break
    return points.get(False), points.get(True)
