"""The success of the best attack on a private run: advantage, probability of a right guess, and true positive rate.

The attacker knows every record but one, everything that the run released, and two possibilities for the last record:
present or absent (add-remove, zero-out), or one value or another (replace-one). The attacker guesses which one is true.
No attack succeeds more often than these upper bounds say, whatever it computes. They follow from delta(epsilon) of the
history alone (Dong, Roth and Su 2022, Proposition 2.12). `calibrate_risk` is after Kulynych and others 2024.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from dpzero_theory import check
from dpzero_theory.privacy.accountant import Group, delta_of_history, deltas_of_both_orders
from dpzero_theory.privacy.bracket import Bounds, Bracket
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.laws.law import crossing
from dpzero_theory.privacy.step import Steps, steps_of

_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e9  # noise multipliers between which `calibrate_risk` searches
_ACCURACY = 1e-6  # the search for a multiplier ends when its two ends differ by at most this share of it
_NEAR = 1e-5  # the search for a true positive rate ends when it is known to this share of itself
_ROUNDING = 1e-12  # a bound on the relative rounding error of the straight lines that the search uses
_NEIGHBOURS = (0.1, -0.2, 0.02, -0.04)
"""`true_positive_rate` computes delta, after its first two epsilons, at these distances from the best epsilon so far.
The unit is min(mu, 1), where mu-GDP has about the delta that was found at the second epsilon."""
_PATIENCE, _LITTLE = 4, 0.9  # the search ends when so many epsilons have not reduced the width to this share of it
_MOST_EXPONENT = 500.0  # the largest epsilon at which delta is looked at; false positive rates below 1e-200 need more


def advantage(history: Steps) -> Bracket:
    """Computes the largest difference between the true and the false positive rate of an attack on one record, which is
    delta at epsilon = 0.

    Args:
        history: steps such as `step * 1000`, all with one relation; else ValueError.

    Returns:
        A `Bracket`: the exact number lies between `lower` and `upper`, both in [0, 1]. `value` equals `upper`, the
        number to state.
    """
    bracket = delta_of_history(history, 0.0)
    return replace(bracket, value=bracket.upper)


def success(history: Steps, prior: float = 0.5) -> Bracket:
    """Computes the largest probability with which an attack correctly guesses which of two possibilities is true for an
    unknown record: present or absent (add-remove, zero-out), or one value or another (replace-one).

    Args:
        history: steps such as `step * 1000`, all with one relation.
        prior: in (0, 1), the probability of one possibility before the attack; the other one has 1 - prior. It does not
            matter which one has `prior`. The Bayes risk, the least probability of a wrong guess, is 1 minus the result.

    Returns:
        A `Bracket`; `value` equals `upper`, the number to state. The result is at least max(prior, 1 - prior), which is
        the success of a guess without the run.

    Raises:
        ValueError: the prior is outside its range, the history is not made of steps, or has several relations.
    """
    likely = check.real("prior", prior, above=0, below=1)
    rare = min(likely, 1 - likely)
    bracket = delta_of_history(history, math.log1p(-rare) - math.log(rare))
    lower, upper = (1 - rare + rare * end for end in (bracket.lower, bracket.upper))
    upper = min(math.nextafter(upper, 2), 1.0)
    return replace(bracket, lower=lower, value=upper, upper=upper)


def true_positive_rate(history: Steps, false_positive_rate: float, *, looks: int = 60) -> Bracket:
    """Computes the largest true positive rate of an attack on one record with at most the given false positive rate.

    With a the false positive rate, the rate is the minimum over x > 0 of h(x) + a x, where h(x) is the largest P(E) - x
    Q(E) over events E. P and Q are the distributions of what is released with and without the record, in either order;
    the order with the larger minimum counts. h(x) follows from delta at epsilon = |log x|, which is computed at a few
    epsilons only, chosen near the minimum.

    Args:
        history: steps such as `step * 1000`, all with one relation.
        false_positive_rate: a in [1e-200, 1].
        looks: the largest number of epsilons at which delta is computed, >= 1. With three the upper bound is mostly
            final; with five the two bounds are typically within 1%. The default is more than the search needs.

    Returns:
        A `Bracket`; `value` equals `upper`, the number to state. On some data an attack reaches `lower`, which is at
        least a. For random allocations under "add-remove" and "zero-out" `lower` follows from the advantage alone, and
        may be far below `upper`.

    Raises:
        ValueError: an argument is outside its range, the history is not made of steps, or has several relations.
    """
    a = check.real("false_positive_rate", false_positive_rate, at_least=1e-200, at_most=1)
    most = check.integer("looks", looks)
    made = steps_of(history)
    # For each order of P and Q: points (x, bounds on g(x) = h(x) + a x), with h(x) = max over events E of P(E) - x Q(E)
    ways: tuple[list[_Point], list[_Point]] = ([(0.0, 1.0, 1.0)], [(0.0, 1.0, 1.0)])
    seen: list[float] = []
    waiting, gaps, mu, t = [*_NEIGHBOURS], [math.inf] * _PATIENCE, 1.0, 0.0
    for number in range(most):
        if not any(abs(t - one) <= 1e-6 * max(one, 1e-3) for one in seen):
            seen.append(t)
            both = deltas_of_both_orders(made, t)
            x, less = math.exp(t), math.exp(-t)
            for points, ahead, back in zip(ways, both, reversed(both), strict=True):
                points.append((x, a * x + ahead.lower, a * x + ahead.upper))
                if t > 0:
                    base = -math.expm1(-t) + a * less
                    points.append((less, base + less * back.lower, base + less * back.upper))
                points.sort()
            found = max(one.upper for one in both)
        ends = [_minimum(points, a) for points in ways]
        known = max(ends, key=lambda one: one.upper)
        lower = max(one.lower for one in ends)
        if number < 2:
            mu = _about_gdp(t, found)
            place = -mu * float(ndtri(a)) - mu * mu / 2 if a < 1 else 0.0
        elif waiting:
            place = known.best + waiting.pop(0) * min(mu, 1.0)
        else:
            gaps.append(known.upper - lower)
            if known.settled or gaps[-1] > _LITTLE * gaps[-_PATIENCE]:
                break
            place = known.place
        t = min(abs(place), _MOST_EXPONENT)
    return Group(made).bracket(Bounds(lower, known.upper))


_Point = tuple[float, float, float]  # x >= 0, and a lower and an upper bound on g(x) = h(x) + a x


class _Minimum(NamedTuple):  # of g(x) = h(x) + a x over x > 0, which is a true positive rate
    lower: float  # bounds on the minimum, in [0, 1]
    upper: float
    best: float  # the log of the known x at which the upper bound on g is least
    place: float  # the log of the x at which g may be as small as `lower`
    settled: bool  # whether further points would narrow the bounds little


def _minimum(points: Sequence[_Point], a: float) -> _Minimum:
    # Bounds the minimum over x > 0 of the convex function g(x) = h(x) + a x, with h(x) the largest P(E) - x Q(E) over
    # events E: the largest true positive rate of an attack with the false positive rate `a`. P is the law of what is
    # released if the attack is to say yes. `points` have rising x, from x = 0 on.
    x, low, high = np.array(points).T
    gap, apart = np.diff(x), x[:, None] - x
    np.fill_diagonal(apart, 1.0)
    lines, order = (low[:, None] - high) / apart, np.sign(x[:, None] - x)
    # As g is convex, right of x[i] it is above each line through the lower bound at x[i] and the upper bound at a
    # smaller x; left of x[i] it is above each line through the lower bound at x[i] and the upper bound at a larger x.
    # h falls with a slope of at least -1, so the slope of g is at least a - 1 and at most a. Beyond the last point
    # h >= 0, so g(x) >= a x.
    falling = np.max(np.where(order > 0, lines, a - 1), axis=1)
    rising = np.min(np.where(order < 0, lines, a), axis=1)
    wide, after = np.append(gap, math.inf), np.append(low[1:], a * x[-1])
    slope = np.append(rising[1:], a)
    start = np.append(after[:-1] - slope[:-1] * gap, a * x[-1])  # the line through the next point, at x[i]
    with np.errstate(divide="ignore", invalid="ignore"):
        cross = np.where(slope > falling, (low - start) / (slope - falling), 0.0)
    at = np.clip(np.nan_to_num(cross), 0.0, wide)
    places = np.concatenate([x, x[:-1] + gap, x + at])
    steps = np.concatenate([np.zeros(len(x)), gap, at])
    index = np.concatenate([np.arange(len(x)), np.arange(len(x) - 1), np.arange(len(x))])
    bound = np.maximum(low[index] + falling[index] * steps, start[index] + slope[index] * steps)
    least = int(np.argmin(bound))
    best = 1 + int(np.argmin(high[1:]))
    above = min(float(high.min()), 1.0)
    upper = min(math.nextafter(max(above, a), 2), 1.0)
    lower = min(max(float(bound[least]) * (1 - _ROUNDING), a), upper)
    settled = above - bound[least] <= _NEAR * above + (high[best] - low[best])
    place = math.log(max(places[least], math.exp(-_MOST_EXPONENT)))
    return _Minimum(lower, upper, math.log(x[best]), place, bool(settled))


def _about_gdp(epsilon: float, delta: float) -> float:  # It only chooses epsilons, so its errors affect no bound
    if not 0 < delta < 1:
        return float(delta >= 1)
    return float(gdp_from_epsilon(epsilon, delta)) if epsilon > 0 else 2 * float(ndtri((1 + delta) / 2))


def calibrate_risk(measure: Callable[[Steps], Bracket], target: float, history: Callable[[float], Steps]) -> Bracket:
    """Finds the smallest noise multiplier with which a measure of a history is at most `target`.

        calibrate_risk(
            lambda history: true_positive_rate(history, 0.001), 0.01,
            lambda noise: Step(noise, Poisson(1 / 16), "add-remove") * 10_000,
        )

    Args:
        measure: a function from a history to a `Bracket`, such as `advantage`; its result must fall as the noise grows.
        target: the largest allowed value of the measure, > 0.
        history: a function from a noise multiplier to the history with that noise.

    Returns:
        A `Bracket` of the multiplier with `value` = `upper`. With the multiplier `upper` the upper bound on the measure
        is at most the target. With `lower` the lower bound on the measure is above the target, or `lower` is 0. Each of
        the two is accurate to a relative 1e-6.

    Raises:
        ValueError: the target is outside its range, or no noise multiplier up to 10^9 meets it.
        PreconditionError: the noise multiplier 0.01 already meets the target; smaller ones are not tried.
    """
    goal = check.real("target", target, above=0)
    found = cache(lambda noise: measure(history(noise)))
    ends: dict[str, Any] = {"least": _LEAST_NOISE, "most": _MOST_NOISE, "share": _ACCURACY}
    missed, upper = crossing(lambda noise: found(noise).upper - goal, 1.0, **ends)
    if upper is None:
        raise ValueError(f"target must be reached by a noise_multiplier of at most {_MOST_NOISE:g}; got {goal!r}")
    reached = f"noise_multiplier {_LEAST_NOISE:g} meets {goal!r} already"
    check.precondition(missed is not None, f"target must be below the risk of little noise; {reached}")
    lower = crossing(lambda noise: found(noise).lower - goal, missed or upper, **ends)[0]
    return Bracket(lower or 0.0, upper, upper, found(upper).method, found(upper).notes)
