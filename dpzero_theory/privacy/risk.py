"""What an attacker gains from a run: the best attack's success, as certified brackets.

The attacker knows every record but one, everything that the run released, and two possibilities for the last record:
there or not (add-remove, zero-out), or one value or another (replace-one). An attack guesses which it was. No attack
succeeds more often than these numbers say, whatever it computes; they follow from delta(epsilon) of the history alone.

    history = Step(12.5, Poisson(1 / 16), "add-remove") * 10_000
    advantage(history)                                        # largest true minus false positive rate
    true_positive_rate(history, false_positive_rate=0.01)
    success(history, prior=0.5)                               # probability of a right guess
    calibrate_risk(advantage, 0.1, lambda noise: Step(noise, Poisson(1 / 16), "add-remove") * 10_000)

With P and Q the laws of what is released and delta_PQ(epsilon) = max over events E of P(E) - e^epsilon Q(E), with
delta(epsilon) the larger one of delta_PQ and delta_QP (Dong, Roth and Su 2022, Proposition 2.12; Kulynych and others
2024 for the calibration):

    advantage            max of P(E) - Q(E) = delta(0), the total variation distance
    success, prior p     max(p, 1-p) + min(p, 1-p) delta(|log(p/(1-p))|)
    true positive rate   at the false positive rate a the minimum over x > 0 of h(x) + a x, convex in x, where h(x) =
                         max over E of P(E) - x Q(E) is delta_PQ(log x) for x >= 1 and 1 - x + x delta_QP(-log x) for
                         x < 1. Either of P and Q may be what the attack wants to find, so that two such minima are
                         taken, and the result is the larger one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from scipy.optimize import brentq
from scipy.special import ndtri

from dpzero_theory import check
from dpzero_theory.bisection import outward
from dpzero_theory.privacy.accountant import cost_of, delta_of_history, deltas_of_directions
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.gaussian import gdp_from_epsilon
from dpzero_theory.privacy.grid import Bounds
from dpzero_theory.privacy.step import Steps, steps_of

_LEAST_NOISE, _MOST_NOISE = 1e-2, 1e9
"""Noise multipliers between which `calibrate_risk` searches."""
_ACCURACY = 1e-6
"""A share of the noise multiplier: the two ends of its bracket are first tried this far from the estimate."""
_NEAR, _ROUNDING = 1e-5, 1e-12
"""A search for a true positive rate ends where it is known to this share of it; and a bound on the relative rounding
error of the straight lines that it uses."""
_GAUSSIAN_LOOKS, _NEIGHBOURS = 2, (0.1, -0.2, 0.02, -0.04)
"""How many epsilons are chosen as if the history were Gaussian, after epsilon 0; and the next ones, from the best so
far."""
_PATIENCE, _LITTLE = 4, 0.9
"""A search ends where so many epsilons have not narrowed the bracket to this share of what it was."""
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
        A bracket, at least a; `value` is `upper`, the number to state. An attack on data that attain the lower ends of
        delta reaches the lower end. For random allocations under add-remove and zero-out it follows from the advantage
        alone, and may be far below the upper end.

    Raises:
        ValueError: a rate outside its range, a history that is not made of steps, or one with several relations.
    """
    return attack(history, false_positive_rate).true_positive_rate


@dataclass(frozen=True)
class Attack:
    """Certified brackets of what the best attack on one record achieves: `advantage`, and the `true_positive_rate` at
    the given `false_positive_rate`. looks: the number of epsilons at which delta was computed for them."""

    advantage: Bracket
    false_positive_rate: float
    true_positive_rate: Bracket
    looks: int


def attack(history: Steps, false_positive_rate: float, *, looks: int = 60) -> Attack:
    """The advantage and the true positive rate of the best attacks, from delta(epsilon) at few epsilons.

    The first epsilon is 0. The next ones are where the minimum over x (see above) would be if the history were Gaussian
    with the delta found so far; the others where the minimum may still be, by straight lines through what is known.

    Args:
        history: steps, such as `step * 1000`, all with one relation.
        false_positive_rate: a in [1e-200, 1].
        looks: the most epsilons, at least 1. With five the two ends of the true positive rate are typically within 1%;
            the default is more than the search needs.

    Raises:
        ValueError: an argument outside its range, or a history that is not accounted for.
    """
    a = check.real("false_positive_rate", false_positive_rate, at_least=1e-200, at_most=1)
    most = check.integer("looks", looks)
    made = steps_of(history)
    ways = _Minimum(a), _Minimum(a)

    def look(t: float) -> Bounds:
        first, second = deltas_of_directions(made, t)
        for way, ahead, back in zip(ways, (first, second), (second, first), strict=True):
            way.add(t, ahead, back)
        return Bounds(max(first.lower, second.lower), max(first.upper, second.upper))

    t, found = 0.0, look(0.0)
    zero, method = found, cost_of(made).method
    waiting, mu = [*_NEIGHBOURS], 1.0
    gaps = [math.inf] * _PATIENCE
    for number in range(1, most):
        known = max(ways, key=lambda way: way.bracket.upper)
        if number <= _GAUSSIAN_LOOKS:
            mu = _gaussian(abs(t), found.upper)
            place = -mu * float(ndtri(a)) - mu * mu / 2 if a < 1 else 0.0
            t = min(max(place, -_MOST_EXPONENT), _MOST_EXPONENT)
        elif waiting:
            t = known.best + waiting.pop(0) * min(mu, 1.0)
        else:
            gaps.append(known.bracket.upper - max(way.bracket.lower for way in ways))
            if known.settled or gaps[-1] > _LITTLE * gaps[-_PATIENCE]:
                break
            t = known.place
        if not known.has(t):
            found = look(abs(t))
    lower, upper = (max(getattr(way.bracket, end) for way in ways) for end in ("lower", "upper"))
    advantage = Bracket(zero.lower, zero.upper, zero.upper, method)
    return Attack(advantage, a, Bracket(lower, upper, upper, method), len(ways[0].seen))


class _Minimum:
    """What is known of the minimum over x > 0 of g(x) = h(x) + a x, which is convex, from its values at some x.

    a: the false positive rate. h is that of the module's docstring, for one order of the two laws: it falls from h(0) =
    1, is at least 1 - x, and at least 0.
    """

    def __init__(self, a: float) -> None:
        self.a = a
        self.seen: set[float] = set()
        self.points: list[tuple[float, float, float]] = [(0.0, 1.0, 1.0)]

    def add(self, t: float, ahead: Bounds, back: Bounds) -> None:
        """Take note of the bounds on delta_PQ and of delta_QP at epsilon = t >= 0.

        They tell of g at e^t and at e^-t.
        """
        self.seen.add(t)
        x, less = math.exp(min(t, _MOST_EXPONENT)), math.exp(-t)
        self.points.append((x, self.a * x + ahead.lower, self.a * x + ahead.upper))
        if t > 0:
            base = -math.expm1(-t) + self.a * less
            self.points.append((less, base + less * back.lower, base + less * back.upper))
        self.points.sort()

    def has(self, t: float) -> bool:
        """Whether delta is known within a relative 1e-6 of epsilon = |t|."""
        return any(abs(abs(t) - one) <= 1e-6 * max(one, 1e-3) for one in self.seen)

    @property
    def _above(self) -> tuple[float, float]:
        """The least upper bound on g at a point, and how far it is above the lower bound there."""
        return min((high, high - low) for _, low, high in self.points)

    @property
    def _below(self) -> tuple[float, float]:
        """A lower bound on the minimum of g, and the x at which g might be as small."""
        best = (math.inf, 1.0)
        for i, (x, low, _) in enumerate(self.points):
            # As g(x) = h(x) + a x is convex, it is above the line through x and any point before it right of x, and
            # above the line through the next point and any point after that left of the next point. h falls with a
            # slope of at least -1, so the slope of g is at least a - 1 and at most a; and h >= 0, so g(x) >= a x.
            before, ahead = self.points[:i], self.points[i + 1 :]
            falling = max([self.a - 1, *((low - high) / (x - at) for at, _, high in before)])
            rising, start, end = self.a, self.a * x, math.inf
            if ahead:
                end, end_low, _ = ahead[0]
                rising = min([self.a, *((high - end_low) / (at - end) for at, _, high in ahead[1:])])
                start = end_low - rising * (end - x)
            places = [x, *([end] if ahead else [])]
            if rising > falling and 0 < (cross := (low - start) / (rising - falling)) < end - x:
                places.append(x + cross)
            for at in places:
                best = min(best, (max(low + falling * (at - x), start + rising * (at - x)), at))
        return best

    @property
    def best(self) -> float:
        """The logarithm of the x at which the upper bound on g is least."""
        return math.log(min((high, x) for x, _, high in self.points if x > 0)[1])

    @property
    def gap(self) -> float:
        """How far the two bounds on the minimum are apart."""
        return self._above[0] - self._below[0]

    @property
    def settled(self) -> bool:
        """Whether further points would tell little: the minimum is known about as well as g is at a point."""
        upper, width = self._above
        return self.gap <= _NEAR * upper + width

    @property
    def place(self) -> float:
        """The logarithm of the x at which g may be least."""
        return math.log(max(self._below[1], math.exp(-_MOST_EXPONENT)))

    @property
    def bracket(self) -> Bracket:
        """The bracket of the minimum, which is at least a and at most 1."""
        upper = min(math.nextafter(max(self._above[0], self.a), 2), 1.0)
        lower = min(max(self._below[0] * (1 - _ROUNDING), self.a), upper)
        return Bracket(lower, upper, upper, "")


def _gaussian(epsilon: float, delta: float) -> float:
    """The mu of mu-GDP with this delta at this epsilon; 0 or 1 if delta is 0 or 1."""
    if not 0 < delta < 1:
        return float(delta >= 1)
    return float(gdp_from_epsilon(epsilon, delta)) if epsilon > 0 else 2 * float(ndtri((1 + delta) / 2))


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
        return measure(history(math.exp(log_noise))).upper - goal

    most, least = math.log(_MOST_NOISE), math.log(_LEAST_NOISE)
    loud = outward(lambda log: beyond(log) <= 0, 0.0, 1.0, growth=1, most=most)[1]
    if loud == most:
        raise ValueError(f"target must be reached by a noise_multiplier of at most {_MOST_NOISE:g}; got {goal!r}")
    quiet = outward(lambda log: beyond(log) > 0, loud - 1, -1.0, growth=1, most=least)[1]
    reached = f"noise_multiplier {_LEAST_NOISE:g} meets {goal!r} already"
    check.precondition(quiet > least, f"target must be below the risk of little noise; {reached}")
    noise = math.exp(brentq(beyond, quiet, min(quiet + 1, loud), xtol=_ACCURACY / 4))
    brackets: dict[float, Bracket] = {}

    def meets(noise: float) -> bool:
        brackets[noise] = measure(history(noise))
        return brackets[noise].upper <= goal

    step = noise * _ACCURACY
    upper = outward(meets, noise + step, step)[1]
    lower = outward(lambda noise: measure(history(noise)).lower > goal, noise - step, -step, most=0.0)[1]
    return Bracket(lower, upper, upper, brackets[upper].method, brackets[upper].notes)
