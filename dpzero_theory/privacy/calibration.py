"""The smallest noise multiplier with which a number of steps meets a privacy target (epsilon, delta)."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Unpack

from dpzero_theory import check
from dpzero_theory.bisection import crossing
from dpzero_theory.privacy.accountant import cost_delta, excess, notes
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.grid import LEAST_DELTA, Bounds
from dpzero_theory.privacy.group import Group
from dpzero_theory.privacy.laws.finite import Ends
from dpzero_theory.privacy.laws.shifts import LEAST_LAPLACE
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.step import Step, Words, step_of

LARGEST_EPSILON = 1e4
"""The largest target_epsilon with sampled batches. A larger one protects nothing."""
_BEYOND = 1e300
_LOUD = 1e6
"""A noise multiplier that is in the range of every noise law."""
_PURE_ACCURACY = 1e-10
"""A bound on the relative error of the computed noise multiplier of a law with pure epsilon, at delta = 0."""
_ROUGH, _FINEST, _FINE = 0.5, 1e-3, 0.04
"""The relative widths of delta's bracket away from the target, and the least and the most near it."""
_NARROW = 4e-4
"""The share of the noise by which bounds on delta near the target may blur it."""
_SHARP = 1e-7
"""Bounds on delta that are relatively so near each other are worth a search as fine as this."""
_NEAR, _SHARE, _CLOSED, _SETTLED = 0.02, 5e-5, 1e-11, 1e-4
"""The shares of the noise up to which it is searched for: at first, with laws, in closed form, and where it is raised
so that the accountant's answers meet the target."""

Deltas = Callable[[float, float, Ends], Bounds]
"""A function of a noise multiplier, of the relative width that is wanted and of the ends that are used, which gives
bounds on delta."""


def calibrate_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    steps: int,
    group: int = 1,
    n: int | None = None,
    **words: Unpack[Words],
) -> Bracket:
    """The smallest noise multiplier for which `steps` releases are (target_epsilon, target_delta)-DP.

    The multiplier is the parameter of the noise on the sum of a batch, over the per-record clip C, for every relation.
    With replace-one the sum changes by up to 2 C, so that with full batches the multiplier is twice that of add-remove.

    Args:
        target_epsilon: epsilon > 0, at most `LARGEST_EPSILON` with sampled batches, and at most 1e300 otherwise.
        target_delta: 1e-30 <= delta < 1; 0 is also allowed for a law with pure epsilon (laplace).
        steps: T >= 1, number of releases.
        group: the number of records in which neighbouring data sets may differ, 1 unless whole users are protected.
        n: the number of all records, or None if it is not known. It matters for groups (`group.group_delta`).
        words: sampling, relation, sample_rate, mechanism and coordinates, as of `step.Words`.

    Returns:
        A bracket with value = upper, the safe end. At `upper`, `epsilon_of_history` at target_delta is at most
        target_epsilon, and `delta_of_history` at target_epsilon is at most target_delta. At `lower`, a certified lower
        end of delta exceeds target_delta (for target_delta = 0, that of epsilon exceeds target_epsilon). The two differ
        by 1e-3 of the noise or less, mostly by 4e-4, and by 1e-7 where an integral answers (Gaussian noise in Poisson
        batches). On a coarse lattice (discrete-gaussian:M) more noise may cost more: there a multiplier smaller than
        `lower` may meet the target.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: the batches alone meet the target, because a record is used at all with probability at most
            delta: 1 - (1-q)^T <= delta, or T/t <= delta for random allocation with epochs of t steps. Then every
            positive multiplier meets the target, and there is no smallest one.
    """
    epsilon = check.real("target_epsilon", target_epsilon, above=0)
    size = check.integer("group", group)
    return calibrated(step_of(_LOUD, steps, **words), epsilon, target_delta, size, n)


def calibrated(made: Step, epsilon: float, target_delta: float, size: int = 1, n: int | None = None) -> Bracket:
    """The bracket of the smallest noise multiplier with which the steps `made` are (epsilon, target_delta)-DP, for data
    sets that differ in up to `size` of n records; the upper end is safe.

    The noise multiplier that the steps have is ignored. The errors are those of `calibrate_noise_multiplier`.
    """
    check.real("target_epsilon", epsilon, above=0, at_most=_BEYOND)
    delta, known = check.real("target_delta", target_delta, at_least=0, below=1), made.with_noise(_LOUD).cost()

    def deltas(noise: float, wanted: float, ends: Ends) -> Bounds:
        step = made.with_noise(noise)
        ask = partial(cost_delta, step.cost()) if size == 1 else Group(step, size, n).delta
        try:
            return ask(epsilon, near=delta, wanted=wanted, ends=ends)
        except OverflowError:
            return Bounds(0.0, 1.0)

    def beyond(noise: float) -> float:
        step = made.with_noise(noise)
        return excess(step.cost(), epsilon, delta) if size == 1 else Group(step, size, n).excess(epsilon, delta)

    # The pure epsilon of a group is that of its records one after another.
    pure, composed = MECHANISMS[made.mechanism].multiplier(made, epsilon / size), any(known.above) or any(known.squares)
    if pure is not None and (delta == 0 or pure <= LEAST_LAPLACE or not composed):
        lower = 0.0 if delta > 0 else pure * (1 - _PURE_ACCURACY)
        closed = Bracket(lower, pure, pure, "closed form", notes([made]))
        return closed if size == 1 else settled(closed, beyond)
    check.real("target_delta", delta, at_least=LEAST_DELTA, below=1)
    reached, formula = made.sampling.chance(made.steps)
    check.precondition(
        reached > delta,
        f"target_delta must be below {formula} = {reached:.6g}, the chance that a record is used at all; got"
        f" {delta!r} (any positive noise_multiplier meets it)",
    )
    if not known.closed:
        check.real("target_epsilon", epsilon, at_most=LARGEST_EPSILON)

    share = _CLOSED if known.closed else _SHARE
    found, method = least_noise(deltas, epsilon, delta, size * _guess(made, epsilon, delta), share), known.method
    if pure is not None and pure < found.upper:
        found, method = Bounds(min(found.lower, pure * (1 - _PURE_ACCURACY)), pure), "closed form"
    bracket = Bracket(found.lower, found.upper, found.upper, method, notes([made]))
    if size > 1:
        bracket = replace(Group(made.with_noise(found.upper), size, n).bracket(found), value=found.upper)
    return settled(bracket, beyond)


def _log_mu(epsilon: float, delta: float) -> float:
    """About the log of the mu of Gaussian DP that has this delta at this epsilon. It falls about as log noise rises."""
    if delta <= 0:
        return -math.inf
    # mu-GDP is (mu^2/2)-zCDP.
    fall = max(-2 * math.log(delta), 0.0)
    return math.log(2 * epsilon / (math.sqrt(fall + 2 * epsilon) + math.sqrt(fall)))


def _guess(made: Step, epsilon: float, delta: float) -> float:
    """A guess of the noise multiplier at a target, by the central limit theorem: mu = q sqrt(T (e^(1/s^2) - 1))."""
    gdp = math.exp(_log_mu(epsilon, delta))
    rate, uses = made.sampling.sample_rate, made.sampling.uses(made.steps)
    change = made.sampling.largest_change(made.relation)
    if rate == 1:
        return change * math.sqrt(uses) / gdp
    one = change / math.sqrt(math.log1p((gdp / rate) ** 2 / made.steps))
    return one * (1.4 if made.mechanism == "laplace" else 1.0)


def least_noise(deltas: Deltas, epsilon: float, target: float, start: float, share: float = _SHARE) -> Bounds:
    """Bounds on the noise multiplier at which delta(epsilon) is `target`.

    At `upper` the upper bound on delta is at most the target, at `lower` the lower bound is above it, or `lower` is 0.
    start: a guess. share: how far `upper` may be from where the upper bound on delta crosses the target, as a share of
    the noise.
    """
    log_target, fall = _log_mu(epsilon, target), -2 * math.log(target)
    # d log delta/d log mu is about this root.
    fine = min(max(_NARROW * math.sqrt(fall * (fall + 2 * epsilon)), _FINEST), _FINE)

    def beyond(noise: float, wanted: float, ends: Ends) -> float:
        found = deltas(noise, wanted, ends)
        return _log_mu(epsilon, found.lower if ends == "lower" else found.upper) - log_target

    def rough(noise: float) -> float:
        found = deltas(noise, _ROUGH, "upper")
        # The truth is mostly nearer to the lower end, of which rough laws say nothing.
        third = found.lower + (found.upper - found.lower) / 3 if found.lower > 0.3 * found.upper else found.upper
        return _log_mu(epsilon, third) - log_target

    missed, met = crossing(rough, start, share=max(share, _NEAR), most=_BEYOND, slope=1)
    guess, slope = met or missed or start, 1.0
    if missed and met and (first := rough(missed)) < math.inf and (last := rough(met)) > -math.inf:
        slope = max((first - last) / math.log(met / missed), 0.5)
        guess = met * math.exp(last / slope)
    search = partial(crossing, most=_BEYOND, slope=slope)
    # Bounds that are so near each other, as an integral gives, are quickly made again.
    at_guess = deltas(guess, fine, "both")
    if at_guess.upper - at_guess.lower < _SHARP * at_guess.upper:
        share = min(share, _SHARP)
    missed, met = search(lambda noise: beyond(noise, fine, "upper"), guess, share=share)
    if met is None:
        raise ValueError("target_epsilon and target_delta must be within the accountant's reach; got noise inf")
    gap = beyond(near := missed or met, fine, "lower")
    if gap <= 0:
        wide = max(share, min(-gap, 0.01) / 16)
        near = search(lambda noise: beyond(noise, fine, "lower"), near, share=wide)[0] or 0.0
    return Bounds(near, met)


def settled(bracket: Bracket, beyond: Callable[[float], float]) -> Bracket:
    """The bracket of a noise multiplier, raised until its value meets the target when the accountant is asked.

    Args:
        bracket: from a search, whose errors differ from those of the accountant's answers.
        beyond: a function from a noise multiplier to the share of epsilon or delta by which it misses the target, such
            as `accountant.excess`; at most 0 means that the target is met.

    Raises:
        ValueError: no float is enough.
    """
    value: float | None = bracket.upper
    if (missed := beyond(bracket.upper)) > 0:
        share = min(max(missed, _CLOSED), _SETTLED)
        value = crossing(beyond, bracket.upper, least=bracket.upper, most=_BEYOND, share=share)[1]
    if value is None:
        raise ValueError("target_epsilon and target_delta must be within the accountant's reach; got noise inf")
    return replace(bracket, value=value, upper=value)
