"""How delta, epsilon and the noise multiplier of a composition are found, by one class for each form of a composition.

- `Grid`: there are random allocations, or pairs of laws with finitely many outcomes. The privacy losses of all parts
  are rounded to one grid of numbers.
- `Directions`: there are only plain Gaussian releases and pairs of Gaussian mixtures. Each of the two directions in
  which neighbours are compared is a composition of pairs.

`answer` chooses the class. No other module asks which kinds of parts a composition has.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scipy.special import ndtri

from dpzero_theory.bisection import LogSecant
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.allocations.mixture import (
    APART,
    COARSE,
    FINE,
    ROUGH,
    Mixture,
    mixture_curve,
    mixture_delta,
    rough_start,
)
from dpzero_theory.privacy.certified.crossing import Curve, crossing, lower_crossing, upper_crossing
from dpzero_theory.privacy.certified.laws.finite import Ends
from dpzero_theory.privacy.certified.laws.parts import Parts
from dpzero_theory.privacy.certified.laws.sketch import rough_epsilon
from dpzero_theory.privacy.certified.router import CLOSED, direction_curve, direction_delta, surely_above
from dpzero_theory.privacy.composition import Composition
from dpzero_theory.privacy.gaussian import GDP_ACCURACY, delta_from_gdp, epsilon_from_gdp, gdp_from_epsilon

_MOST_GUESSES, _ROUGH_MISS = 12, 1e-3
"""The search for a first guess of the noise ends after 12 guesses, or at one whose epsilon is within this share (1e-3)
of the target."""
_UP = 1 + GDP_ACCURACY
"""An upper bound: this times a delta, an epsilon or a noise multiplier that is computed from a mu."""
_STEEP = -10.0
"""The slope d log delta / d log x with which a search over x begins if no estimate of the slope is known."""


@dataclass(frozen=True)
class NoiseQuestion:
    """The question for which noise multiplier delta is `delta` at `epsilon`.

    at: a function from a noise multiplier to the composition. bracket: a function to the certified bracket of delta at
    `epsilon` for a noise multiplier; its second argument is a delta with which the caller compares the answer, or None
    (`near` of `Answer.delta`). sensitivity: the largest change of a batch's sum, in clips. batches: the sample rate of
    the batches that may hold a given record, and the number of those batches.
    """

    at: Callable[[float], Composition]
    bracket: Callable[[float, float | None], Bracket]
    epsilon: float
    delta: float
    sensitivity: int
    batches: tuple[float, int]

    def curve(self, near: float | None = None) -> Curve:
        """delta as a curve over the noise multiplier, for a search by certified brackets alone, without quick
        estimates.

        near: a delta with which answers are compared, or None (`near` of `Answer.delta`).
        """
        return bracket_curve(lambda noise: self.bracket(noise, near))

    def start(self) -> tuple[float, float]:
        """A guess of the noise multiplier that meets the target, and of the slope d log delta / d log noise there.

        The guess is found by secants on `rough_epsilon`, an uncertified estimate. With s the multiplier over the
        sensitivity, q the sample rate and T the number of batches, the secants begin where mu = q sqrt(T (e^{1/s^2} -
        1)). Here mu is chosen such that Phi(mu/2 - epsilon/mu) = delta, which is a little more than the exact delta of
        mu-GDP.
        """
        z = -float(ndtri(self.delta))
        root = math.sqrt(z * z + 2 * self.epsilon)
        gdp = 2 * self.epsilon / (root + z) if z > 0 else root - z
        rate, steps = self.batches
        noise = self.sensitivity / math.sqrt(math.log1p((gdp / rate) ** 2 / steps))
        slope = central_slope(self.epsilon, gdp)
        if not self.at(1.0).central:
            return noise, slope
        search, steep = LogSecant(noise, -1.0), 0.0

        def missed(noise: float) -> float | None:
            nonlocal steep
            epsilon, of_epsilon = rough_epsilon(self.delta, self.at(noise).central)
            if not epsilon > 0:
                return None
            steep = -of_epsilon
            return math.log(epsilon / self.epsilon)

        search.run(missed, lambda value: abs(value) < _ROUGH_MISS, _MOST_GUESSES)
        return search.x, min(steep * search.slope if steep else slope, -1.0)


class Answer(ABC):
    """Computes delta and epsilon of one composition, and noise multipliers. The upper end of every bracket is the end
    that is safe for privacy."""

    def __init__(self, composition: Composition) -> None:
        self.composition = composition

    @abstractmethod
    def delta(self, epsilon: float, near: float | None = None, *, ends: Ends = "both") -> Bracket:
        """The bracket of delta at `epsilon`.

        near: a delta that the caller compares the answer with, or None. If delta is more than 10 times larger or
        smaller, the upper end may be many times the lower end; both still hold. ends: which ends of the bracket the
        caller uses; the other one may be 0 or 1.
        """

    @abstractmethod
    def epsilon(self, target: float, *, below: bool = True) -> Bracket:
        """The bracket of epsilon at delta = `target`.

        below: whether the lower end is needed; if not, it may be 0.

        Raises:
            OverflowError: no epsilon is found at which delta is certainly at most the target.
        """

    @staticmethod
    @abstractmethod
    def noise(question: NoiseQuestion) -> Bracket:
        """Return the bracket of the least noise multiplier that meets the target of a question; the upper end is the
        safe one.

        Raises OverflowError if no multiplier is found at which delta is certainly at most the target.
        """


def answer(composition: Composition) -> Answer:
    """The object that computes delta and epsilon for this composition; its class depends on the kinds of the parts."""
    mixture = composition.mixture
    return Directions(composition) if mixture is None else Grid(composition, mixture)


def bracket_curve(bracket: Callable[[float], Bracket]) -> Curve:
    """A curve of delta over x for a search by certified brackets alone, without quick estimates.

    bracket: a function from x, such as an epsilon or a noise multiplier, to the bracket of delta.
    """
    return Curve(lambda x, _: bracket(x), lambda x, _: (bracket(x).log_value, None))


def central_slope(epsilon: float, gdp: float) -> float:
    """About d log delta / d log x at the noise x with which many releases are `gdp`-GDP, at this epsilon."""
    return -1 - abs((epsilon / gdp) ** 2 - gdp**2 / 4)


def _capped(bracket: Bracket, upper: float) -> Bracket:
    """The bracket with its ends and its value at most `upper`, which is an upper end too."""
    lower, value, top = (min(number, upper) for number in (bracket.lower, bracket.value, bracket.upper))
    return replace(bracket, lower=lower, value=value, upper=top)


class Grid(Answer):
    """The answers for a composition with random allocations or finite pairs.

    mixture: this composition in the form in which `allocations.mixture` takes it, which computes delta on a grid of
    losses.
    """

    def __init__(self, composition: Composition, mixture: Mixture) -> None:
        super().__init__(composition)
        self.mixture = mixture

    @staticmethod
    def _plain(composition: Composition) -> float | None:
        """The mu for which all parts are mu-GDP together even if it is known which steps the record is in; None if some
        part has no such number."""
        return None if composition.sampled else composition.gdp

    def delta(self, epsilon: float, near: float | None = None, *, ends: Ends = "both") -> Bracket:
        bracket = mixture_delta(epsilon, self.mixture, target=near, ends=ends)
        plain = self._plain(self.composition)
        return _capped(bracket, float(delta_from_gdp(epsilon, plain)) * _UP + math.ulp(0.0)) if plain else bracket

    def epsilon(self, target: float, *, below: bool = True) -> Bracket:
        at_zero = self.delta(0.0, target, ends="upper")
        if at_zero.upper <= target:
            return Bracket(0.0, 0.0, 0.0, at_zero.method)
        start, slope = rough_start(self.mixture, target) if at_zero.value > target else (0.0, _STEEP)
        if not start > 0:
            start, slope = (1e-3 * at_zero.value, _STEEP)
        rough = FINE if self.mixture.runs else ROUGH
        curve = mixture_curve(lambda epsilon: (epsilon, self.mixture), target, rough=rough)
        lower, upper, point = crossing([curve], start, slope, target, below=below)
        bracket, plain = Bracket(lower, upper, upper, point.method), self._plain(self.composition)
        return _capped(bracket, float(epsilon_from_gdp(plain, target)) * _UP) if plain else bracket

    @staticmethod
    def noise(question: NoiseQuestion) -> Bracket:
        bracket, plain = Grid._searched(question), Grid._plain(question.at(1.0))
        if not plain:
            return bracket
        return _capped(bracket, plain / float(gdp_from_epsilon(question.epsilon, question.delta)) * _UP)

    @staticmethod
    def _searched(question: NoiseQuestion) -> Bracket:
        """The bracket of `noise`, found by a search over the noise multiplier."""
        start, slope = question.start()

        def mixture(noise: float) -> tuple[float, Mixture]:
            grid = question.at(noise).mixture
            assert grid is not None
            return question.epsilon, grid

        runs = mixture(1.0)[1].runs
        if any(run.taken > 1 for run in runs):
            above, below = (mixture_curve(mixture, question.delta, rough=COARSE, end=end) for end in APART)
            upper, point, slope = upper_crossing([above], start, slope, question.delta, roomy=True)
            return Bracket(lower_crossing([below], upper, slope, question.delta), upper, upper, point.method)
        curve = mixture_curve(mixture, question.delta, rough=COARSE) if runs else question.curve(question.delta)
        lower, upper, point = crossing([curve], start, slope, question.delta, roomy=True)
        return Bracket(lower, upper, upper, point.method)


class Directions(Answer):
    """The answers for a composition of plain Gaussian releases and pairs of Gaussian mixtures only."""

    def delta(self, epsilon: float, near: float | None = None, *, ends: Ends = "both") -> Bracket:
        gdp, dominating = self.composition.plain, self.composition.directions()
        brackets: list[Bracket] = []
        for parts in dominating:
            known = max((bracket.lower for bracket in brackets), default=0.0)
            brackets.append(direction_delta(epsilon, parts, gdp, small=known))
        top = max(brackets, key=lambda b: b.upper)
        lower = max(b.lower for b in brackets)
        if ends != "upper" and (attained := self.composition.directions(attained=True)) != dominating:
            lower = max(direction_delta(epsilon, parts, gdp).lower for parts in attained)
        return Bracket(lower, max(lower, top.value), top.upper, top.method)

    def epsilon(self, target: float, *, below: bool = True) -> Bracket:
        dominating, attained = self.composition.directions(), self.composition.directions(attained=True)
        lower, upper, method = self._epsilon(dominating, target, below=below and attained == dominating)
        if below and attained != dominating:
            lower = self._epsilon(attained, target, below=True)[0]
        return Bracket(min(lower, upper), upper, upper, method)

    def _epsilon(self, directions: Sequence[Parts], target: float, *, below: bool) -> tuple[float, float, str]:
        gdp = self.composition.plain
        if not any(directions):
            exact = float(epsilon_from_gdp(gdp, target))
            slack = GDP_ACCURACY * max(exact, gdp * gdp)
            return max(exact - slack, 0.0), exact + (slack if exact > 0 else 0.0), CLOSED

        def curve(parts: Parts) -> Curve:
            return direction_curve(lambda epsilon: (epsilon, parts, gdp))

        curves: list[Curve] = []
        method = CLOSED
        for number, parts in enumerate(directions):
            # Where both directions are compared, delta of those before this one does not exceed the target at epsilon
            # 0, and `crossing` finds out which later ones do.
            if not surely_above(0.0, parts, gdp, target):
                at_zero = direction_delta(0.0, parts, gdp)
                method = at_zero.method
                if at_zero.upper <= target:
                    continue
            curves = [curve(one) for one in directions[number:]]
            break
        if not curves:
            return 0.0, 0.0, method
        start, slope = rough_epsilon(target, parts, gdp)
        if not start > 0:
            at_zero = direction_delta(0.0, parts, gdp)
            start, slope = at_zero.value * math.sqrt(2 * math.log(1 + at_zero.value / target)), _STEEP
        lower, upper, point = crossing(curves, start, slope, target, below=below)
        return lower, upper, point.method

    @staticmethod
    def noise(question: NoiseQuestion) -> Bracket:
        start, slope = question.start()

        def curves(*, attained: bool) -> list[Curve]:
            def curve(index: int) -> Curve:
                return direction_curve(
                    lambda noise: (question.epsilon, question.at(noise).directions(attained=attained)[index], 0.0)
                )

            return [curve(index) for index in range(len(question.at(1.0).directions(attained=attained)))]

        one = question.at(1.0)
        if one.directions() == one.directions(attained=True):
            lower, upper, point = crossing(curves(attained=False), start, slope, question.delta, roomy=True)
        else:
            upper, point, slope = upper_crossing(curves(attained=False), start, slope, question.delta, roomy=True)
            lower = lower_crossing(curves(attained=True), upper, slope, question.delta)
        return Bracket(lower, upper, upper, point.method)
