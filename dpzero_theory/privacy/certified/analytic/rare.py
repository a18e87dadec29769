"""delta(epsilon) where large losses are rare: runs without a large loss and runs with one, computed separately.

Where a record is seldom in a batch, the tail of a release's privacy loss is heavier than exponential, so that no one
tilt serves one large loss and many small ones. Outputs beyond a cut are called large. Then delta is a sum of three
parts, by the number of large outputs in a run: none; one, whose loss is below or above a second cut; two or more, which
are too rare to matter. Each part is a composition of pairs with some outputs left out, whose losses are bounded on one
side, with an integral of its own; see derivation.md, section 5b.
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
from dpzero_theory.privacy.certified.laws.arithmetic import UNIT
from dpzero_theory.privacy.certified.laws.pairs import Pair, inverse, loss_at
from dpzero_theory.privacy.certified.laws.parts import Parts, PlainParts
from dpzero_theory.privacy.certified.laws.sketch import reach_of, rough_cut

_LOG_TWO, _MOST_OF_TWO = math.log(1e-8), 1e-6
"""The cut is chosen so that runs with two large losses have at most the share 1e-8 of a rough delta (the first number
is the log of that). If they turn out to have more than the second number, as a share of the computed delta, the cut is
chosen again."""
_MOST_CUTS = 3
"""The cut between large losses and others is chosen at most this many times."""
_LOG_ERROR = math.log(1e-8)
"""The log of the largest error that each contour's part of delta may have, as a share of a rough delta."""
_SPREADS = (8.0, 16.0, 32.0, 64.0)
"""If a large loss exceeds epsilon by this many standard deviations of the sum of the others, then the total loss almost
certainly exceeds epsilon too, and no contour is needed. The first of these numbers that makes the bracket narrow enough
is used."""
_LOW_CHANCES = (1e-11, 1e-8, 1e-6, 1e-5)
"""Very low losses are counted apart from the others too. Their probability is one of these numbers times the amount by
which the large loss exceeds epsilon (times 1 if that amount is larger than 1); all four are tried."""
_LOG_ENOUGH = -40.0
"""The log of the smallest bound for which `_log_left_tail` chooses its rate. Its search ends once the bound's log is
below half of this."""
_TAILS_ERROR = 1e-11
"""A bound on the relative error of normal tail probabilities and of their products over all releases."""
_LEAST_SQUARE = 1e-300
"""A mean square of the total loss below this is replaced by this, so that nothing is divided by 0."""


@dataclass(frozen=True)
class Large:
    """The runs in which exactly one output is large, and it is one of the `steps` outputs of `pair`.

    start: outputs of `pair` beyond this are large.
    others: the other releases, without large outputs.
    last: if the large output is beyond this, the total loss exceeds epsilon all but surely, whatever the other losses.
    decided: the bracket of the part of delta from the runs with the large output beyond `last`.
    """

    pair: Pair
    steps: int
    others: PlainParts
    start: float
    last: float
    decided: Bracket

    @property
    def composition(self) -> PlainParts:
        """The composition with one output between `start` and `last` and no other large one; empty if last <= start."""
        if self.last <= self.start:
            return ()
        return (*self.others, (replace(self.pair, start=self.start, stop=self.last), 1))


@dataclass(frozen=True)
class Split:
    """A composition of pairs, each cut at an output beyond which its outputs are called large.

    small: the composition without large outputs.
    sides: the pairs that have large outputs, with their numbers of releases.
    cut: for each of these pairs the same pair without its large outputs.
    two: a bound on the probability that two outputs of a run are large.
    rough: the log of a rough delta.
    """

    small: PlainParts
    sides: PlainParts
    cut: dict[Pair, Pair]
    two: float
    rough: float


def split(parts: PlainParts, log_cut: float, rough: float) -> Split:
    """Cut large outputs off each pair, for a delta of about e^rough.

    parts: the dominating pairs of single releases, each with its number of releases. log_cut: a run has a large output
    with about the probability e^{log_cut}, or with less if two large outputs would otherwise matter beside delta. Any
    cut gives a bracket that holds.
    """
    sides = [(pair, count) for pair, count in parts if pair.kind != "add"]

    def tail(reach: float) -> float:
        """The log of a bound on the probability that two outputs of a run are more than `reach` standard deviations of
        the noise above the mean 1."""
        once = [math.log(count) + p.beyond(1 + p.noise * reach)[0] for p, count in sides]
        return 2 * float(np.logaddexp.reduce(once)) - math.log(2) if once else -math.inf

    reach = reach_of(log_cut, sum(count for _, count in parts))
    if tail(reach) > rough + _LOG_TWO:
        reach = float(brentq(lambda z: tail(z) - rough - _LOG_TWO, reach, reach + 40, xtol=1e-3))
    cut = {p: replace(p, stop=1 + p.noise * reach) for p, _ in sides}
    small = tuple((cut.get(p, p), count) for p, count in parts)
    return Split(small, tuple(sides), cut, math.exp(tail(reach)) * (1 + _TAILS_ERROR), rough)


def _large(epsilon: float, parted: Split, gdp: float, *, shortest: bool) -> Iterator[Large]:
    """For each pair that has large outputs, the runs in which exactly one of its outputs is large.

    epsilon: that of the delta which is sought. parted: the composition, cut. gdp: the mu >= 0 of Gaussian DP of the
    full-batch releases in the same composition (0 for none). With `shortest` the first of `_SPREADS` is used and
    `Large.decided` is a placeholder, which takes hardly any time.
    """
    spread = math.sqrt(_square(parted.small, gdp))
    enough = math.exp(parted.rough + _LOG_ERROR) / len(parted.sides) if parted.sides else 0.0
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


def _square(parts: PlainParts, gdp: float) -> float:
    """Roughly the sum over all releases in `parts` of the mean square of their privacy loss, and that of a `gdp`-GDP
    mechanism."""
    return math.fsum(t.steps * (t.variance + t.mean**2) for t in tilt_all(parts, 1e-6, -30.0)) + gdp**2


def rare_delta(epsilon: float, parts: Parts, gdp: float = 0.0, *, budget: float = 1.5e7) -> Bracket:
    """Certified bracket of delta(epsilon) for the composition of `parts` (pair, steps) and a `gdp`-GDP mechanism.

    It is a sum over the runs in which no output is large, those in which one is, and the rest (module docstring).

    budget: for each contour, the most pairs of a node in the frequency t and a node in the output x.

    Raises:
        OverflowError: a contour needs more nodes than `budget`, rounding errors exceed the answer, or releases are of
            one of several kinds by chance (`parts.OneOf`).
    """
    plain = tuple((pair, steps) for pair, steps in parts if isinstance(pair, Pair))
    if len(plain) < len(parts):
        raise OverflowError("releases of several kinds")
    log_cut, rough = rough_cut(epsilon, parts, gdp)
    for _ in range(_MOST_CUTS):
        parted = split(plain, log_cut, rough)
        bracket = bracket_of(epsilon, parted, gdp, budget=budget, log_error=rough + _LOG_ERROR)
        if not 0 < bracket.value * _MOST_OF_TWO < parted.two:
            break
        rough = math.log(bracket.value)
    return bracket


def bracket_of(epsilon: float, parted: Split, gdp: float, *, budget: float, log_error: float) -> Bracket:
    """The bracket of delta(epsilon) for the composition `parted`, whose large outputs were cut off its pairs.

    gdp: the mu >= 0 of Gaussian DP of the full-batch releases in the same composition (0 for none). budget: for each
    contour, the most pairs of a node in the frequency t and a node in the output x. log_error: the natural log of the
    absolute error that each contour's part of delta may have, as for `delta_bracket`.
    """

    def of(steps: int, composition: PlainParts) -> Bracket:
        error = log_error - math.log(steps)
        term = delta_bracket(epsilon, composition, gdp, budget=budget, log_error=error)
        return Bracket(steps * term.lower, steps * term.value, steps * term.upper, term.method)

    # If one of the contours is too costly, OverflowError is raised here, before any of them is computed.
    for one in _large(epsilon, parted, gdp, shortest=True):
        if composition := one.composition:
            affordable(epsilon, composition, gdp, budget=budget, log_error=log_error - math.log(one.steps))
    terms = [of(1, parted.small)]
    for one in _large(epsilon, parted, gdp, shortest=False):
        terms += [one.decided, *([of(one.steps, one.composition)] if one.composition else [])]
    lower, value, upper = (math.fsum(getattr(b, end) for b in terms) for end in ("lower", "value", "upper"))
    upper = min((upper + parted.two) * (1 + 4 * UNIT), 1.0)
    return Bracket(lower * (1 - 4 * UNIT), min(value, upper), upper, "contour")


def _decided(
    epsilon: float, gdp: float, pair: Pair, steps: int, others: PlainParts, start: float, enough: float
) -> Bracket:
    """The part of delta from runs with one of `steps` outputs of `pair` beyond `start`, and no other large output.

    There the total loss exceeds epsilon all but surely. So P(R) - e^epsilon Q(R), with R the set of these runs, is a
    lower bound. It is too small by at most P(R) times E (e^{-m - S} - 1)_+, where S is the sum of the other losses and
    m the least amount by which the large loss exceeds epsilon.

    others: the other releases, without large outputs. gdp: the mu >= 0 of Gaussian DP of the full-batch releases in the
    same composition (0 for none). enough: an
    absolute width, upper - lower; once the bracket is narrower, nothing is done to narrow it.
    """
    log_p, log_q = pair.beyond(start)
    kept = [(p, k) for p, k in others if p.stop < math.inf]
    beyond = [(k, *p.beyond(p.stop)) for p, k in kept]
    log_p += math.fsum(k * math.log1p(-math.exp(p)) for k, p, _ in beyond) + math.log(steps)
    log_q += math.fsum(k * math.log1p(-math.exp(q)) for k, _, q in beyond) + math.log(steps) + epsilon
    error = _TAILS_ERROR * (math.exp(log_p) + math.exp(log_q))
    value = math.exp(log_p) - math.exp(log_q)
    margin = _loss_at(pair, start) - epsilon
    # With a replaced record losses are as low under Q as they are high under P, so very low ones are counted apart.
    two_sided = any(p.kind != "remove" for p, _ in kept)
    excess = math.inf
    for chance in _LOW_CHANCES if two_sided else (0.0,):
        both, low = _cut_below(others, math.log(chance * min(max(margin, UNIT), 1.0))) if two_sided else (others, 0.0)
        missed = math.exp(min(log_p + _log_left_tail(both, gdp, margin), 0.0)) + 1.01 * low * math.exp(log_q)
        excess = min(excess, missed)
        if 2 * error + excess < enough:
            break
    return Bracket(max(value - error, 0.0), max(value, 0.0), value + error + excess, "Gaussian tails")


def _cut_below(parts: PlainParts, log_chance: float) -> tuple[PlainParts, float]:
    """The composition `parts` without its lowest losses, and the probability under Q that a run has one of these.

    Q is the second law of each pair. That probability is about e^log_chance.
    """
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
    """A lower bound on the privacy loss of the pair at the output x, 1e-9 of the loss below the computed one; the loss
    must be positive."""
    return float(loss_at(pair, pair.branches[0], np.array([x]))[0]) * (1 - 1e-9)


def _log_left_tail(parts: PlainParts, gdp: float, margin: float) -> float:
    """The log of an upper bound on E (e^{-margin - S} - 1)_+, where S is the total loss of `parts` and of the `gdp`-GDP
    mechanism.

    The bound is e^{-u margin} E e^{-u S} for some u >= 1, chosen as if S were normal.
    """
    best, square = 0.0, max(_square(parts, gdp), _LEAST_SQUARE)
    if margin <= 0:
        return -margin
    for goal in (-_LOG_ENOUGH, -_LOG_ENOUGH / 2, -_LOG_ENOUGH / 4):
        rate = max(min(margin / square, goal / margin), 1.0)
        total = gdp**2 * rate * (rate - 1) / 2 - rate * margin
        try:
            for pair, steps in parts:
                part = tilt(build(pair, Contour(-rate), math.log(1e-13 / steps)), steps, -rate)
                total += steps * (part.cumulant + cumulant_error(part, -rate))
        except OverflowError:
            continue
        best = min(best, total + 1e-6)
        if best < _LOG_ENOUGH / 2:
            break
    return best
