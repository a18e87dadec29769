"""The smallest noise multiplier with which a number of steps meets a privacy target (epsilon, delta)."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

from dpzero_theory import check
from dpzero_theory.bisection import halved, outward, smallest_real
from dpzero_theory.privacy.accountant import delta_of_history, excess, notes, sharp_delta, wide_delta
from dpzero_theory.privacy.answers import NoiseQuestion, answer, bracket_curve, central_slope
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.crossing import crossing
from dpzero_theory.privacy.certified.laws.exponential import LEAST_LAPLACE
from dpzero_theory.privacy.composition import Composition
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.mechanism import MECHANISMS
from dpzero_theory.privacy.step import Release, Words

LARGEST_EPSILON = 1e4
"""The largest target_epsilon with sampled batches. A larger one protects nothing, and its computation would need a grid
with as many cells."""
_BEYOND = 1e300
"""The largest target_epsilon of all, whose noise and moments are still floating-point numbers."""
_LOUD = 1e6
"""A noise multiplier that is in the range of every noise law."""
_MOST_TRIES = 12
"""`_missed` tries fewer multipliers than this to find one that misses the target. It is asked where the upper end has a
closed form and the lower end has none."""
_PURE_ACCURACY = 1e-10
"""A bound on the relative error of the computed noise multiplier of a law with pure epsilon, at delta = 0."""
_CLOSE = 1e-4
"""If delta > 0 allows a noise multiplier that is smaller than that at delta = 0 by less than this share, the latter is
the answer."""
_WIDE = 0.25
"""If the lower end of the bracket of a noise multiplier is below this share of the upper end, the target delta is too
small to be resolved."""
_LEAST_STEP, _MOST_STEP = 1e-12, 1e-3
"""A noise multiplier that misses its target is raised by at least the first share of it, and at first by at most the
second."""


def calibrate_noise_multiplier(
    *, target_epsilon: float, target_delta: float, steps: int, **words: Unpack[Words]
) -> Bracket:
    """The smallest noise multiplier for which `steps` releases are (target_epsilon, target_delta)-DP.

    The multiplier is the parameter of the noise on the sum of a batch, over the per-record clip C, for every relation.
    With replace-one the sum changes by up to 2 C, so that with full batches the multiplier is twice that of add-remove.

    Args:
        target_epsilon: epsilon > 0, at most `LARGEST_EPSILON` with sampled batches, and at most 1e300 otherwise.
        target_delta: 0 < delta < 1; 0 is also allowed for a law with pure epsilon (laplace).
        steps: T >= 1, number of releases.
        words: sampling, relation, sample_rate, mechanism and coordinates, as of `step.Words`.

    Returns:
        A bracket with value = upper, the safe end. At `upper`, `epsilon_of_history` at target_delta is at most
        target_epsilon, and `delta_of_history` at target_epsilon is at most target_delta. At `lower`, the certified
        lower end of delta exceeds target_delta (for target_delta = 0, that of epsilon exceeds target_epsilon). On a
        coarse lattice (discrete-gaussian:M) more noise may cost more: there a multiplier smaller than `lower` may meet
        the target.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: the batches alone meet the target, because a record is used at all with probability at most
            delta: 1 - (1-q)^T <= delta, or T/t <= delta for random allocation with epochs of t steps. Then every
            positive multiplier meets the target, and there is no smallest one.
    """
    epsilon = check.real("target_epsilon", target_epsilon, above=0)
    return calibrated(Release(_LOUD, steps, **words), epsilon, target_delta)


def calibrated(releases: Release, epsilon: float, target_delta: float) -> Bracket:
    """The bracket of the smallest noise multiplier with which `releases` are (epsilon, target_delta)-DP; the upper end
    is safe.

    epsilon: the target epsilon, > 0. The noise multiplier that the releases have is ignored. Raises ValueError for an
    argument outside its range, and PreconditionError if every positive multiplier meets the target.
    """
    check.real("target_epsilon", epsilon, above=0, at_most=_BEYOND)
    unit = releases.with_noise(1.0)
    pure = MECHANISMS[unit.mechanism].multiplier(unit, epsilon)
    delta = check.real("target_delta", target_delta, at_least=0, below=1)
    if pure is None:
        check.real("target_delta", delta, above=0, below=1)
    bracket = _pure(unit, epsilon, delta, pure) if pure is not None else _resolved(unit, epsilon, delta)

    return settled(bracket, lambda noise: excess([unit.with_noise(noise)], epsilon, delta))


def settled(bracket: Bracket, beyond: Callable[[float], float]) -> Bracket:
    """The bracket of a noise multiplier, raised until its value meets the target when the accountant is asked.

    bracket: the bracket from a search along the noise. The searches for epsilon and delta have errors of their own, by
    which its upper end may miss the target. beyond: a function from a noise multiplier to the share of epsilon or delta
    by which it misses the target, such as `accountant.excess`; at most 0 means that the target is met. The multiplier
    is raised by that share of itself, but by at most `_MOST_STEP`, as delta falls much faster than the noise grows;
    then by twice as much each time. The lower end is kept. Raises ValueError if no float is enough.
    """
    value = bracket.upper
    if not (missed := beyond(value)) <= 0:
        step = value * max(min(_MOST_STEP, missed), _LEAST_STEP)
        value = outward(lambda value: beyond(value) <= 0, value + step, 2 * step)[1]
    if value == math.inf:
        raise ValueError("target_epsilon and target_delta must be within the accountant's reach; got noise inf")
    return replace(bracket, value=value, upper=value)


def _resolved(unit: Release, epsilon: float, delta: float) -> Bracket:
    """The bracket of the noise multiplier for releases like `unit`, whose law has no pure epsilon, at the target
    (epsilon, delta).

    If rounding errors hide so small a delta, the upper end is the smaller of two upper bounds, of which one is by
    exponential moments. Raises ValueError if neither is finite.
    """
    try:
        bracket = _composed(unit, epsilon, delta)
    except OverflowError:
        bracket = Bracket(0.0, math.inf, math.inf, "", notes([unit]))
    if bracket.lower > _WIDE * bracket.upper:
        return bracket

    def meets(noise: float) -> bool:
        return wide_delta([unit.with_noise(noise)], epsilon) <= delta

    most = 4 * unit.sensitivity * math.sqrt(unit.steps) / float(gdp_from_epsilon(epsilon, delta))
    value = min(smallest_real(meets, most * 2.0**-40, most, 1e-6) or math.inf, bracket.upper)
    if value == math.inf:
        goal = f"target_epsilon = {epsilon:g}"
        raise ValueError(f"target_delta must be within the accountant's reach at {goal}; got {delta!r}")
    return bracket if value == bracket.upper else replace(bracket, value=value, upper=value, method="moments")


def _composed(unit: Release, epsilon: float, delta: float) -> Bracket:
    """The bracket of the noise multiplier for releases like `unit`, whose law has no pure epsilon, at the target
    (epsilon, delta).

    Raises OverflowError if rounding errors hide so small a delta.
    """
    law = MECHANISMS[unit.mechanism]
    cost = law.cost(unit, delta)
    if not cost.gaussian or cost.multipliers not in (None, (1.0, 1.0)):
        return _on_lattice(unit, epsilon, delta)
    if cost.ratio > 0:
        epsilon = math.nextafter(epsilon - 2 * cost.ratio, 0.0)
        delta = math.nextafter(delta * math.exp(-cost.ratio), 0.0)
    return law.on_lattice(_gaussian(unit, epsilon, delta))


def _on_lattice(unit: Release, epsilon: float, delta: float) -> Bracket:
    """The bracket of the noise multiplier for Gaussian noise on a coarse lattice, at the target (epsilon, delta).

    Such noise is not accounted as continuous noise of the same multiplier. unit: the releases, with any noise.
    """
    check.real("target_epsilon", epsilon, at_most=LARGEST_EPSILON)
    _require_noise(unit, delta)
    question = _question(unit, epsilon, delta)
    start, slope = question.start()
    if unit.part.gdp:
        start = unit.part.gdp / float(gdp_from_epsilon(epsilon, delta))
    lower, upper, point = crossing([question.curve(delta)], start, slope, delta, roomy=True)
    return Bracket(lower, upper, upper, point.method, notes([unit]))


def _pure(unit: Release, epsilon: float, delta: float, multiplier: float) -> Bracket:
    """The bracket of the noise multiplier for a law with pure epsilon, at the target (epsilon, delta).

    unit: the releases, with any noise. multiplier: the noise multiplier that meets the target epsilon at delta = 0.
    """
    closed = Bracket(multiplier * (1 - _PURE_ACCURACY), multiplier, multiplier, "closed form", notes([unit]))
    if delta == 0 or MECHANISMS[unit.mechanism].cost(unit, delta).pairs is None:
        return closed
    check.real("target_epsilon", epsilon, at_most=LARGEST_EPSILON)
    _require_noise(unit, delta)
    if multiplier <= LEAST_LAPLACE:
        return replace(closed, lower=0.0)
    less = multiplier * (1 - _CLOSE)
    if MECHANISMS[unit.mechanism].cost(unit.with_noise(less), delta).least > epsilon:
        return replace(closed, lower=less)
    question = _question(unit, epsilon, delta)
    start = min(max(_central_pure(unit, epsilon, delta), LEAST_LAPLACE), multiplier)
    # Delta falls as the noise grows, so that the least noise need not be asked about where half the guess misses.
    half = max(start / 2, LEAST_LAPLACE)
    if half == LEAST_LAPLACE or question.bracket(half, delta).lower <= delta:
        least = delta_of_history([unit.with_noise(LEAST_LAPLACE)], epsilon)
        if least.upper <= delta:
            return Bracket(0.0, LEAST_LAPLACE, LEAST_LAPLACE, least.method, notes([unit]))
    # Where the noise is below the least that is accounted, the curve has the delta of that least noise, which is
    # smaller than the exact delta.
    curve = bracket_curve(lambda noise: question.bracket(max(noise, LEAST_LAPLACE), delta))
    slope = central_slope(epsilon, float(gdp_from_epsilon(epsilon, delta)))
    lower, upper, point = crossing([curve], start, slope, delta, roomy=True)
    if upper < multiplier:
        return Bracket(lower, upper, upper, point.method, notes([unit]))
    return replace(closed, lower=min(lower, closed.lower))


def _require_noise(unit: Release, delta: float) -> None:
    reached, formula = unit.step.sampling.chance(unit.steps)
    check.precondition(
        reached > delta,
        f"target_delta must be below {formula} = {reached:.6g}, the chance that a record is used at all; got"
        f" {delta!r} (any positive noise_multiplier meets it)",
    )


def _gaussian(unit: Release, epsilon: float, delta: float) -> Bracket:
    if unit.part.plain:
        exact = (unit.part.gdp or 0.0) / float(gdp_from_epsilon(epsilon, delta))
        lower = _missed(unit, epsilon, delta, exact) if unit.bounded else exact * (1 - 1e-10)
        return Bracket(lower, exact * (1 + 1e-10), exact * (1 + 1e-10), "closed form", notes([unit]))
    check.real("target_epsilon", epsilon, at_most=LARGEST_EPSILON)
    _require_noise(unit, delta)
    return replace(answer(unit.composition).noise(_question(unit, epsilon, delta)), notes=notes([unit]))


def _missed(unit: Release, epsilon: float, delta: float, most: float) -> float:
    """A noise multiplier below `most` with which the target (epsilon, delta) is certainly missed; 0 if none is found.

    The candidates are `most` divided by powers of 1.5. Between the first that misses and the one before, three more are
    tried, which makes the answer less low.
    """

    def missed(noise: float) -> bool:
        return delta_of_history([unit.with_noise(noise)], epsilon).lower > delta

    start, least = most / 1.5, most / 1.5**_MOST_TRIES
    _, low = outward(missed, start, -start / 3, growth=1 / 1.5, most=least)
    return halved(missed, low, 1.5 * low, 3, lambda a, b: math.sqrt(a * b))[0] if low > least else 0.0


def _question(unit: Release, epsilon: float, delta: float) -> NoiseQuestion:
    def bracket(noise: float, near: float | None) -> Bracket:
        return sharp_delta([unit.with_noise(noise)], epsilon, near=near)

    def at(noise: float) -> Composition:
        return unit.with_noise(noise).composition

    return NoiseQuestion(at, bracket, epsilon, delta, unit.sensitivity, unit.batches)


def _central_pure(unit: Release, epsilon: float, delta: float) -> float:
    """A guess of the noise multiplier of a law with pure epsilon at the target (epsilon, delta), by the central limit
    theorem.

    At the guess mu = q sqrt(T)/s gives the target, with q the sample rate, T the number of releases in `unit` and s the
    multiplier over the sensitivity.
    """
    return unit.sensitivity * unit.sample_rate * math.sqrt(unit.steps) / float(gdp_from_epsilon(epsilon, delta))
