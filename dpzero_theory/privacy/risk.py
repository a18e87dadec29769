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
"""Relative, of a calibrated noise multiplier: how far beyond the estimated one its ends are tried first."""
_NEIGHBOUR = 1e-3
"""How far from an estimated minimum the first neighbours are that must be larger to certify it, in epsilon."""
_MOST_EXPONENT = 500.0
"""Beyond it e^epsilon is not needed: the false positive rates would be below 1e-200."""


def advantage(history: Steps) -> Bracket:
    """The largest difference between an attack's true positive rate and its false positive rate: delta(0).

    Args:
        history: as for `epsilon_of_history`.

    Returns:
        The exact number lies between `lower` and `upper`, both in [0, 1]; `value` is `upper`, the number to state.

    Raises:
        ValueError: a history that is not accounted for.
    """
    found = delta_of_history(history, 0.0)
    return replace(found, value=found.upper)


def success(history: Steps, prior: float = 0.5) -> Bracket:
    """The largest probability with which an attack guesses right, where one possibility has the probability `prior`.

    Args:
        history: as for `epsilon_of_history`.
        prior: in (0, 1), of either possibility. The Bayes risk, the least probability of a wrong guess, is 1 less this.

    Returns:
        A bracket as that of `advantage`; never below max(prior, 1 - prior), what guessing without the run achieves.

    Raises:
        ValueError: a prior outside its range, or a history that is not accounted for.
    """
    likely = check.real("prior", prior, above=0, below=1)
    rare = min(likely, 1 - likely)
    found = delta_of_history(history, math.log1p(-rare) - math.log(rare))
    lower, upper = (1 - rare + rare * end for end in (found.lower, found.upper))
    upper = min(math.nextafter(upper, 2), 1.0)
    return replace(found, lower=lower, value=upper, upper=upper)


def true_positive_rate(history: Steps, false_positive_rate: float) -> Bracket:
    """The largest true positive rate of an attack whose false positive rate is at most the given one.

    Args:
        history: as for `epsilon_of_history`.
        false_positive_rate: a in [1e-200, 1].

    Returns:
        A bracket as that of `advantage`, at least a. Its lower end is that of the trade-off curve which follows from
        delta(epsilon); where the two directions of a relation differ, a single pair of data sets may allow less.

    Raises:
        ValueError: a rate outside its range, or a history that is not accounted for.
    """
    a = check.real("false_positive_rate", false_positive_rate, at_least=1e-200, at_most=1)
    made = releases_of(history)
    known: dict[float, Bracket] = {}

    def bound(t: float) -> tuple[float, float, float, float]:
        """x = e^t, and of h(x) + a x the lower end, an estimate and the upper end."""
        found = known[abs(t)] = known.get(abs(t)) or delta_of_history(made, abs(t))
        x = math.exp(t)
        plain, share = (a * x, 1.0) if t >= 0 else (1 - x + a * x, x)
        return x, plain + share * found.lower, plain + share * found.value, plain + share * found.upper

    t = _least(lambda t: bound(t)[2])
    step, centre = _NEIGHBOUR, bound(t)
    while True:
        left, right = bound(t - step), bound(t + step)
        if (left[1] >= centre[3] and right[1] >= centre[3]) or step > _MOST_EXPONENT:
            break
        step *= 2
    # beyond two of its points a convex function lies above the line through them
    ends = [
        centre[1] + (centre[1] - one[3]) / (centre[0] - one[0]) * (other[0] - centre[0])
        for one, other in ((left, right), (right, left))
    ]
    upper = min(math.nextafter(max(centre[3], a), 2), 1.0)
    return Bracket(min(max(min(ends), a), upper), upper, upper, known[abs(t)].method)


def _least(estimate: Callable[[float], float]) -> float:
    """About where a function with one minimum has it."""
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
        measure: of a history, such as `advantage`; it must fall as noise grows.
        target: the largest value that the measure may have.
        history: of a noise multiplier.

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
        found = measure(history(math.exp(log_noise)))
        return (found.lower + found.upper) / 2 - goal

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
    while not (found := measure(history(noise * (1 + more)))).upper <= goal:
        more *= 2
    while less < 1 and not measure(history(noise * (1 - less))).lower > goal:
        less *= 2
    upper = noise * (1 + more)
    return Bracket(noise * max(1 - less, 0.0), upper, upper, found.method, found.notes)
