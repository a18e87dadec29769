"""What an attacker gains from a run: the best attack's success, as certified brackets.

The attacker knows every record but one, everything that the run released, and two possibilities for the last record:
there or not (add-remove, zero-out), or one value or another (replace-one). An attack guesses which it was. No attack
succeeds more often than these numbers say, whatever it computes; they follow from delta(epsilon) of the history alone.

    history = Step(12.5, Poisson(1 / 16), "add-remove") * 10_000
    advantage(history)                                        # largest true minus false positive rate
    true_positive_rate(history, false_positive_rate=0.01)
    success(history, prior=0.5)                               # probability of a right guess
    calibrate_risk(advantage, 0.1, lambda noise: Step(noise, Poisson(1 / 16), "add-remove") * 10_000)

With P and Q the laws of what is released and delta(epsilon) = max over events E of P(E) - e^epsilon Q(E), the larger of
both directions (Dong, Roth and Su 2022, Proposition 2.12; Kulynych and others 2024 for the calibration):

    advantage            max of P(E) - Q(E) = delta(0), the total variation distance
    success, prior p     max(p, 1-p) + min(p, 1-p) delta(|log(p/(1-p))|)
    true positive rate   at the false positive rate a the minimum over x > 0 of h(x) + a x, convex in x, where h(x) is
                         delta(log x) for x >= 1 and 1 - x + x delta(-log x) for x < 1
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

from scipy.optimize import brentq, minimize_scalar

from dpzero_theory import check
from dpzero_theory.privacy.accountant import delta_of_history
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.step import Steps, releases_of

_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e9
"""Noise multipliers between which `calibrate_risk` searches."""
_ACCURACY = 1e-6
"""A share of the noise multiplier: the two ends of its bracket are first tried this far from the estimate."""
_NEIGHBOUR = 1e-3
"""A minimum over epsilon is certified by two points beside it that are larger; this is their first distance from it."""
_MOST_EXPONENT = 500.0
"""The largest epsilon that is considered: beyond it false positive rates would be below 1e-200."""


def advantage(history: Steps) -> Bracket:
    """The largest difference between an attack's true positive rate and its false positive rate: delta(0).

    Args:
        history: steps, such as `step * 1000`, all with one relation.

    Returns:
        A bracket: the exact number lies between `lower` and `upper`, both in [0, 1]. `value` is `upper`, the number to
        state.

    Raises:
        ValueError: a history that is not made of steps, or whose steps have several relations.
    """
    bracket = delta_of_history(history, 0.0)
    return replace(bracket, value=bracket.upper)


def success(history: Steps, prior: float = 0.5) -> Bracket:
    """The largest probability with which an attack guesses right which of two possible values the unknown record has.

    Args:
        history: steps, such as `step * 1000`, all with one relation.
        prior: in (0, 1), the probability of either of the two possibilities before the attack. The Bayes risk, the
            least probability of a wrong guess, is 1 minus the result.

    Returns:
        A bracket; `value` is `upper`, the number to state. It is never below max(prior, 1 - prior), which guessing
        without the run achieves.

    Raises:
        ValueError: a prior outside its range, a history that is not made of steps, or one with several relations.
    """
    likely = check.real("prior", prior, above=0, below=1)
    rare = min(likely, 1 - likely)
    bracket = delta_of_history(history, math.log1p(-rare) - math.log(rare))
    lower, upper = (1 - rare + rare * end for end in (bracket.lower, bracket.upper))
    upper = min(math.nextafter(upper, 2), 1.0)
    return replace(bracket, lower=lower, value=upper, upper=upper)


def true_positive_rate(history: Steps, false_positive_rate: float) -> Bracket:
    """The largest true positive rate of an attack whose false positive rate is at most the given one.

    Args:
        history: steps, such as `step * 1000`, all with one relation.
        false_positive_rate: a in [1e-200, 1].

    Returns:
        A bracket, at least a; `value` is `upper`, the number to state. Its lower end is that of the trade-off curve
        which follows from delta(epsilon). If the two directions of a relation differ, a single pair of data sets may
        allow less.

    Raises:
        ValueError: a rate outside its range, a history that is not made of steps, or one with several relations.
    """
    a = check.real("false_positive_rate", false_positive_rate, at_least=1e-200, at_most=1)
    made = releases_of(history)
    known: dict[float, Bracket] = {}

    def bound(t: float) -> tuple[float, float, float, float]:
        """At x = e^t: x itself, and a lower bound, an estimate and an upper bound of h(x) + a x, whose minimum is
        sought.

        a is the false positive rate; h(x) is delta(log x) for x >= 1, and 1 - x + x delta(-log x) for x < 1.
        """
        bracket = known[abs(t)] = known.get(abs(t)) or delta_of_history(made, abs(t))
        x = math.exp(t)
        plain, share = (a * x, 1.0) if t >= 0 else (1 - x + a * x, x)
        return x, plain + share * bracket.lower, plain + share * bracket.value, plain + share * bracket.upper

    t = _least(lambda t: bound(t)[2])
    step, centre = _NEIGHBOUR, bound(t)
    while True:
        left, right = bound(t - step), bound(t + step)
        if (left[1] >= centre[3] and right[1] >= centre[3]) or step > _MOST_EXPONENT:
            break
        step *= 2
    # A convex function lies above the line through two of its points, except between them.
    ends = [
        centre[1] + (centre[1] - one[3]) / (centre[0] - one[0]) * (other[0] - centre[0])
        for one, other in ((left, right), (right, left))
    ]
    upper = min(math.nextafter(max(centre[3], a), 2), 1.0)
    return Bracket(min(max(min(ends), a), upper), upper, upper, known[abs(t)].method)


def _least(estimate: Callable[[float], float]) -> float:
    """About the point at which the function `estimate`, which has a single minimum, has its minimum."""
    sign = -1.0 if estimate(-_NEIGHBOUR) < estimate(_NEIGHBOUR) else 1.0
    most = 1.0
    while most < _MOST_EXPONENT and estimate(sign * 2 * most) < estimate(sign * most):
        most *= 2
    low, high = sorted((0.0, sign * 2 * most))
    return float(minimize_scalar(estimate, bounds=(low, high), method="bounded", options={"xatol": _NEIGHBOUR}).x)


def calibrate_risk(measure: Callable[[Steps], Bracket], target: float, history: Callable[[float], Steps]) -> Bracket:
    """The smallest noise multiplier with which a measure of risk is at most `target`.

        calibrate_risk(
            lambda history: true_positive_rate(history, 0.001), 0.01,
            lambda noise: Step(noise, Poisson(1 / 16), "add-remove") * 10_000,
        )

    Args:
        measure: a function from a history to a bracket, such as `advantage`; it must fall as noise grows.
        target: the largest value that the measure may have, in (0, 1).
        history: a function from a noise multiplier to the history with that noise.

    Returns:
        A bracket of the multiplier with `value` = `upper`: there the measure's upper end is at most the target, and at
        `lower` its lower end is larger.

    Raises:
        ValueError: a target outside (0, 1), or one that no noise up to 10^9 meets.
        PreconditionError: noise of multiplier 0.01 meets the target already.
    """
    goal = check.real("target", target, above=0, below=1)

    @cache
    def beyond(log_noise: float) -> float:
        bracket = measure(history(math.exp(log_noise)))
        return (bracket.lower + bracket.upper) / 2 - goal

    quiet = loud = 0.0
    while beyond(loud) > 0:
        quiet, loud = loud, loud + 1
        if loud > math.log(_MOST_NOISE):
            raise ValueError(f"target must be reached by a noise_multiplier of at most {_MOST_NOISE:g}; got {goal!r}")
    while quiet == loud or beyond(quiet) <= 0:
        quiet, loud = quiet - 1, quiet
        reached = f"noise_multiplier {_LEAST_NOISE:g} meets {goal!r} already"
        check.precondition(quiet > math.log(_LEAST_NOISE), f"target must be below the risk of little noise; {reached}")
    noise = math.exp(brentq(beyond, quiet, loud, xtol=_ACCURACY / 4))
    more, less = _ACCURACY, _ACCURACY
    while not (bracket := measure(history(noise * (1 + more)))).upper <= goal:
        more *= 2
    while less < 1 and not measure(history(noise * (1 - less))).lower > goal:
        less *= 2
    upper = noise * (1 + more)
    return Bracket(noise * max(1 - less, 0.0), upper, upper, bracket.method, bracket.notes)
