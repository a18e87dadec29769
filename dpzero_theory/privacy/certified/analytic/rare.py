"""delta(epsilon) where large losses are rare: those with none and with one of them apart, each on its own contour.

The loss of a release that a record is seldom in has a tail log A, heavier than exponential, so that no one tilt serves
one large loss and many small ones. With outputs beyond a cut called large, delta is the sum over the number of large
outputs: none, one (whose loss is below or above a second cut), and two or more, which are too rare to matter. Each is
a composition of parts of pairs, whose losses are bounded on one side; see derivation.md, section 5b.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import brentq

from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.analytic.contour import affordable, delta_bracket
from dpzero_theory.privacy.certified.analytic.quadrature import Contour, build
from dpzero_theory.privacy.certified.analytic.tilting import cumulant_error, tilt, tilt_all
from dpzero_theory.privacy.certified.laws.pairs import Pair, Parts, inverse
from dpzero_theory.privacy.certified.laws.sketch import reach_of, rough_cut

_TWO, _TOO_MUCH = math.log(1e-8), 1e-6
"""Shares of delta that two large losses may have: where cuts are chosen (its log), and in the end."""
_ERROR = math.log(1e-8)
"""Log of the share of delta that errors of a contour may be."""
_LOW = (1e-11, 1e-8, 1e-6, 1e-5)
"""Probabilities of very low losses that are tried, over the margin by which a large loss decides."""
_ENOUGH = -40.0
"""Log of a bound that is small enough."""
_CUTS = 3
_SPREADS = (8.0, 16.0, 32.0, 64.0)
"""Standard deviations of the small losses' sum by which a large loss decides alone: the first that
is enough."""
_ACCURACY = 1e-11
"""Relative error of Gaussian tails and of their products, for as many steps as there may be."""
_UNIT = 2.0**-53
_LEAST = 1e-300
"""Of a mean square."""


@dataclass(frozen=True)
class Large:
    """One of `steps` outputs of `pair` beyond `start`, beside `others`; beyond `last` its loss decides alone."""

    pair: Pair
    steps: int
    others: Parts
    start: float
    last: float
    decided: Bracket

    @property
    def composition(self) -> Parts:
        """With the large output before `last`; empty where there is none."""
        if self.last <= self.start:
            return ()
        return (*self.others, (replace(self.pair, start=self.start, stop=self.last), 1))


@dataclass(frozen=True)
class Split:
    """The composition where no output is large, and a bound on the probability that two are.

    sides: the pairs with large outputs, and their numbers of steps; cut: those without the large ones; rough: log of
    about delta.
    """

    small: Parts
    sides: Parts
    cut: dict[Pair, Pair]
    two: float
    rough: float


def split(parts: Parts, log_cut: float, rough: float) -> Split:
    """Cuts for the composition from `grid.rough_cut`, for a delta of e^rough (any are correct)."""
    sides = [(pair, count) for pair, count in parts if pair.kind != "add"]

    def tail(reach: float) -> float:
        """Log of a bound on the probability of two large outputs."""
        once = [math.log(count) + p.beyond(1 + p.noise * reach)[0] for p, count in sides]
        return 2 * float(np.logaddexp.reduce(once)) - math.log(2) if once else -math.inf

    reach = reach_of(log_cut, sum(count for _, count in parts))
    if tail(reach) > rough + _TWO:
        reach = float(brentq(lambda z: tail(z) - rough - _TWO, reach, reach + 40, xtol=1e-3))
    cut = {p: replace(p, stop=1 + p.noise * reach) for p, _ in sides}
    small = tuple((cut.get(p, p), count) for p, count in parts)
    return Split(small, tuple(sides), cut, math.exp(tail(reach)) * (1 + _ACCURACY), rough)


def _large(epsilon: float, parted: Split, gdp: float, *, shortest: bool) -> Iterator[Large]:
    """Each side's large output; with `shortest` where its loss alone decides the earliest, and not how it does."""
    spread = math.sqrt(_square(parted.small, gdp))
    enough = math.exp(parted.rough + _ERROR) / len(parted.sides) if parted.sides else 0.0
    for pair, count in parted.sides:
        cut = parted.cut[pair]
        others = tuple((p, k - (p == cut)) for p, k in parted.small if k > (p == cut))
        decided = Bracket(0.0, 0.0, 1.0, "")
        for spreads in _SPREADS:
            level = np.array([epsilon + spreads * spread + gdp**2])
            last = float(inverse(pair, pair.branches[0], level)[0])
            if shortest:
                break
            decided = _decided(epsilon, gdp, pair, count, others, max(last, cut.stop), enough)
            if decided.upper - decided.lower < enough:
                break
        yield Large(pair, count, others, cut.stop, last, decided)


def _square(parts: Parts, gdp: float) -> float:
    """About the mean square of each loss, summed."""
    return math.fsum(t.steps * (t.variance + t.mean**2) for t in tilt_all(parts, 1e-6, -30.0)) + gdp**2


def rare_delta(epsilon: float, parts: Parts, gdp: float = 0.0, *, budget: float = 1.5e7) -> Bracket:
    """Certified bracket of delta(epsilon) for the composition of `parts` (pair, steps) and a `gdp`-GDP mechanism.

    Raises:
        OverflowError: outside the range of the method.
    """
    log_cut, rough = rough_cut(epsilon, parts, gdp)
    for _ in range(_CUTS):
        parted = split(parts, log_cut, rough)
        found = bracket_of(epsilon, parted, gdp, budget=budget, log_error=rough + _ERROR)
        if not 0 < found.value * _TOO_MUCH < parted.two:
            break
        rough = math.log(found.value)
    return found


def bracket_of(epsilon: float, parted: Split, gdp: float, *, budget: float, log_error: float) -> Bracket:
    """The bracket for one choice of cuts; arguments as of `contour.delta_bracket`."""

    def of(steps: int, composition: Parts) -> Bracket:
        error = log_error - math.log(steps)
        term = delta_bracket(epsilon, composition, gdp, budget=budget, log_error=error)
        return Bracket(steps * term.lower, steps * term.value, steps * term.upper, term.method)

    # what costs too much first, before anything that costs much
    for one in _large(epsilon, parted, gdp, shortest=True):
        if composition := one.composition:
            affordable(epsilon, composition, gdp, budget=budget, log_error=log_error - math.log(one.steps))
    found = [of(1, parted.small)]
    for one in _large(epsilon, parted, gdp, shortest=False):
        found += [one.decided, *([of(one.steps, one.composition)] if one.composition else [])]
    lower, value, upper = (math.fsum(getattr(b, end) for b in found) for end in ("lower", "value", "upper"))
    upper = min((upper + parted.two) * (1 + 4 * _UNIT), 1.0)
    return Bracket(lower * (1 - 4 * _UNIT), min(value, upper), upper, "contour")


def _decided(epsilon: float, gdp: float, pair: Pair, steps: int, others: Parts, start: float, enough: float) -> Bracket:
    """The part with one output beyond `start`, where (1 - e^{epsilon - L})_+ is all but linear, and small others.

    P(..) - e^epsilon Q(..) is a lower end; what is missing is at most P(beyond) E (e^{-m - S} - 1)_+ for the others'
    loss S and m the least by which the large loss exceeds epsilon. enough: a width that is narrow enough.
    """
    log_p, log_q = pair.beyond(start)
    kept = [(p, k) for p, k in others if p.stop < math.inf]
    beyond = [(k, *p.beyond(p.stop)) for p, k in kept]
    log_p += math.fsum(k * math.log1p(-math.exp(p)) for k, p, _ in beyond) + math.log(steps)
    log_q += math.fsum(k * math.log1p(-math.exp(q)) for k, _, q in beyond) + math.log(steps) + epsilon
    error = _ACCURACY * (math.exp(log_p) + math.exp(log_q))
    value = math.exp(log_p) - math.exp(log_q)
    margin = _loss_at(pair, start) - epsilon
    # of a replaced record losses are as low under Q as they are high under P: very low ones apart
    two_sided = any(p.kind != "remove" for p, _ in kept)
    excess = math.inf
    for chance in _LOW if two_sided else (0.0,):
        both, low = _cut_below(others, math.log(chance * min(max(margin, _UNIT), 1.0))) if two_sided else (others, 0.0)
        found = math.exp(min(log_p + _log_left_tail(both, gdp, margin), 0.0)) + 1.01 * low * math.exp(log_q)
        excess = min(excess, found)
        if 2 * error + excess < enough:
            break
    return Bracket(max(value - error, 0.0), max(value, 0.0), value + error + excess, "Gaussian tails")


def _cut_below(parts: Parts, log_chance: float) -> tuple[Parts, float]:
    """The parts without their lowest losses, and the probability under Q, about e^log_chance, of any of these."""
    sides = [(p, k) for p, k in parts if p.kind != "remove"]

    def chance(reach: float) -> float:
        return float(np.logaddexp.reduce([math.log(k) + p.beyond(1 + p.noise * reach)[0] for p, k in sides]))

    least, most = 0.0, max((p.stop - 1) / p.noise for p, _ in sides if p.stop < math.inf)
    if chance(least) <= log_chance:
        reach = least
    elif chance(most) >= log_chance:
        reach = most
    else:
        reach = float(brentq(lambda z: chance(z) - log_chance, least, most))
    cut = tuple((replace(p, start=-1 - p.noise * reach) if p.kind != "remove" else p, k) for p, k in parts)
    return cut, math.exp(chance(reach))


def _loss_at(pair: Pair, x: float) -> float:
    """The loss there, a little less."""
    at = np.array([x])
    branch = pair.branches[0]
    loss = branch.a_slope * pair.log_mixture(at)
    if branch.b_slope:
        loss = loss + branch.b_slope * pair.log_mixture(-at)
    return float(loss[0]) * (1 - 1e-9)


def _log_left_tail(parts: Parts, gdp: float, margin: float) -> float:
    """Log of a bound on E (e^{-margin - S} - 1)_+ <= e^{-u margin} E e^{-u S}, S the loss of `parts`, u >= 1 some
    about where it is least for a Gaussian loss."""
    best, square = 0.0, max(_square(parts, gdp), _LEAST)
    if margin <= 0:
        return -margin
    for goal in (-_ENOUGH, -_ENOUGH / 2, -_ENOUGH / 4):
        rate = max(min(margin / square, goal / margin), 1.0)
        total = gdp**2 * rate * (rate - 1) / 2 - rate * margin
        try:
            for pair, steps in parts:
                part = tilt(build(pair, Contour(-rate), math.log(1e-13 / steps)), steps, -rate)
                total += steps * (part.cumulant + cumulant_error(part, -rate))
        except OverflowError:
            continue
        best = min(best, total + 1e-6)
        if best < _ENOUGH / 2:
            break
    return best
