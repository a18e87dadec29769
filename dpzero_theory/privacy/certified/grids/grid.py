"""delta(epsilon) of few or rare subsampled releases on a grid of losses, as a certified bracket.

The privacy loss of few steps is nearly discrete (the record is in no batch, in one, in two...), so that its
characteristic function hardly decays and the integral of the module `contour` needs too many nodes. Here the line of
outputs is cut where the loss L crosses the multiples of a spacing H. This gives two laws on the grid of those
multiples, one that dominates the release and one that it dominates. Both are tilted, that is multiplied by e^{tau L},
which makes rounding errors small against delta, and composed as powers of their Fourier transforms. The width of the
bracket falls as H^2. Derived in derivation.md, section 5.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.grids.convolution import best_rate, compose, dot, norm, transform
from dpzero_theory.privacy.certified.grids.frequencies import Frequencies, compose_rare, frequencies
from dpzero_theory.privacy.certified.laws.arithmetic import UNIT, log_c, log_law, log_sum
from dpzero_theory.privacy.certified.laws.cells import Cells, Span
from dpzero_theory.privacy.certified.laws.finite import Ends, FinitePair
from dpzero_theory.privacy.certified.laws.parts import OneOf, Parts
from dpzero_theory.privacy.certified.laws.sketch import (
    FAR,
    Sketch,
    Slice,
    everything,
    reach_of,
    rough_cut,
    saddle,
    split,
)

_LOG_FOLDED = math.log(1e-15)
"""The log of the most tilted mass that may lie beyond either end of the range of losses which the Fourier transform
covers. The transform is cyclic, so that such mass is folded back into the range."""
_LEFT_OUT = 1e-9
"""Outputs of about this probability, as a share of delta, are left out of the sums; it is added to the upper end of the
bracket."""
_MOST_ROUNDED, _MOST_LOST = 1e-6, 1e-3
"""The largest share of the bracket's upper end, and that of its lower end, that may be rounding errors. If they are
larger, all is computed again in extended precision, which is five times slower."""
_CHERNOFF_GAP = 12.0
"""Large losses are counted apart from the others if Chernoff's bound is more than e^12 times a rough delta: then no one
tilt suits both of them."""
_RARE_DELTA, _UNSHARP = 1e-10, 1.1
"""Large losses of finite pairs are counted apart if delta is at most the first number and the upper end of its bracket
is more than the second number times the lower end. For larger delta the bracket is narrow enough without that."""
_FEW_JUMPS = 30.0
"""If on average fewer releases than this have another cell than the likeliest, many frequencies matter."""
_FINEST_MOVE = 64
"""The search for the integer with the largest lower bound ends with steps of its longest step over this number."""
_LEAST_MASS = 1e-250
"""If the weights of a tilted law (without its factor e^log_scale) sum to less than this, the tilt is refused, because
many of them have underflowed to 0."""
_LARGEST_LOG = 300.0
"""The largest log of a factor that undoes the tilt. If it is exceeded the lower end of delta is 0, because the square
of such a factor may overflow."""
_FIRST_LOOK = 2**12
"""The part of delta that comes from runs with a large loss is first computed with at most this many points, as it is
often next to nothing."""
_NARROW_SHARE = 0.01
"""It is computed again, with all points, if its bracket is wider than this share of the width of the bracket of the
part without large losses."""
_MOST_CELLS = 2**17
"""The losses of one release fill at most this many cells of the grid; if need be the grid's spacing is made wider for
that."""


@dataclass(frozen=True)
class _Finite:
    """A number of releases of a pair of laws with finitely many outcomes, without its infinite loss, as a part of a
    composition.

    The class has the same methods as `sketch.Slice`, so that either can be a part. pair: the finite pair of one
    release. steps: the number of releases.
    """

    pair: FinitePair
    steps: int

    @property
    def largest_loss(self) -> float:
        """An upper bound on the finite losses of one release."""
        return self.pair.largest_loss + 1e-12 * abs(self.pair.largest_loss)

    def sketch(self, size: int) -> Sketch:
        """The law of the loss of one release, with all its terms; `size`, the number asked for, is ignored."""
        return Sketch(self.pair.loss, log_law(self.pair.mass), self.steps)

    def cells(self, tau: float, width: float, lowest: float) -> Cells:
        """The laws of one release on a grid of losses with spacing `width`, tilted by tau > 0 (`cells.Cells`).

        Losses below `lowest` count as `lowest`.
        """
        return self.pair.cells(tau, width, lowest)


def _window(tau: float, sketches: Sequence[Sketch]) -> tuple[float, float, Array]:
    """The range (lowest, highest) of the total loss L that the transform must cover, and two rates, shape (2,).

    Tilted mass is probability under the law of L times e^{tau L}, divided by its total. By Chernoff's bound at most
    e^`_LOG_FOLDED` of it lies above the range, and at most as much below, for the rough laws `sketches` of the
    releases. The first rate is the one with the least such bound above the range, the second that below it. tau: the
    tilt. Raises OverflowError where the variance of L under these laws is not finite and positive.
    """
    laws = [(k.steps, k.loss, *k.tilted(tau)) for k in sketches]
    mean = math.fsum(steps * centre for steps, _, centre, _ in laws)
    variance = math.fsum(steps * float(weights @ (loss - centre) ** 2) for steps, loss, centre, weights in laws)
    if not (math.isfinite(variance) and variance > 0):
        raise OverflowError("losses that a sketch does not resolve")
    centred = [(steps, log_law(weights), loss - centre) for steps, loss, centre, weights in laws]
    rates = np.geomspace(0.02, 50, 24) / math.sqrt(variance)

    def moment(rate: float) -> float:
        return math.fsum(steps * log_sum(log_weights, rate, loss) for steps, log_weights, loss in centred)

    up, best_up = best_rate(moment, rates, _LOG_FOLDED)
    down, best_down = best_rate(lambda rate: moment(-rate), rates, _LOG_FOLDED)
    return mean - down, mean + up, np.array([best_up, best_down])


@dataclass(frozen=True)
class _Sum:
    """A tilted law of the total loss: the mass[k] e^{log_scale} at the loss (first + k) H, where H is the grid's
    spacing.

    All mass[k] sum to 1. error: a bound on the Euclidean norm of the rounding errors of `mass`.
    tail: a bound on the part of `mass` at losses beyond the range of the transform, which is folded into the range.
    few: the law by its transform at few frequencies; where that is known, `mass` is empty and `error` is 0.
    """

    first: int
    mass: Array
    log_scale: float
    error: float
    tail: float
    few: Frequencies | None = None

    def falling(self, start: int, rate: float) -> tuple[float, float]:
        """The sum over l >= 0 of the mass at the loss (start + l) H times e^{-rate l}, and a bound on its error.

        The law must be one with `few`.

        start: `first` or a larger integer; sums beyond the range are 0.
        """
        assert self.few is not None
        count = self.first + self.few.size - start
        return self.few.falling(start, count, rate) if count > 0 else (0.0, 0.0)


def grid_delta(
    epsilon: float,
    parts: Parts,
    gdp: float = 0.0,
    *,
    points: int = 2**18,
) -> Bracket:
    """Certified bracket of delta(epsilon) for the composition of `parts` (pair, steps) and a `gdp`-GDP mechanism.

    Args:
        epsilon: epsilon >= 0.
        parts: at least one pair with sample_rate < 1, and its number of steps.
        gdp: the mu >= 0 of Gaussian DP of the full-batch releases in the same composition (0 for none).
        points: the length of the Fourier transforms, a power of two; the width upper - lower falls about as points^-2.

    Raises:
        OverflowError: rounding errors exceed the answer, or the losses are not resolved by floats.
    """
    whole = everything(parts, gdp)
    steps = sum(count for _, count in whole)
    infinite = _infinite(parts)
    log_cut, rough = rough_cut(epsilon, parts, gdp)
    for _ in range(2):
        enough = rough + math.log(_LEFT_OUT)
        if split(epsilon, whole, enough)[0] - rough < _CHERNOFF_GAP:
            span = Span(reach_of(enough, steps), reach_of(enough, steps))
            terms = [_bracket(epsilon, [Slice(pair, count, span) for pair, count in whole], points)]
            left_out = 2 * math.exp(enough)
        else:
            terms, left_out = _apart(epsilon, whole, points, min(log_cut, (enough + math.log(8)) / 2))
        lower = math.fsum(term.lower for term in terms)
        if not 0 < lower < 1e3 * left_out:
            break
        rough = math.log(lower)
    return _total(terms, left_out + infinite)


def _infinite(parts: Parts) -> float:
    """An upper bound on the probability that some release in `parts` has an infinite loss."""
    return math.fsum(count * pair.infinite for pair, count in parts if isinstance(pair, OneOf))


def grid_delta_beside(
    epsilon: float,
    finite: Sequence[tuple[FinitePair, int]],
    parts: Parts,
    gdp: float,
    log_cut: float,
    *,
    points: int,
    ends: Ends = "both",
) -> Bracket:
    """Certified bracket of delta(epsilon) of a composition with finite pairs, subsampled releases and a `gdp`-GDP
    mechanism.

    Args:
        epsilon: epsilon >= 0.
        finite: pairs of laws with finitely many outcomes, each with its number of releases.
        parts: the dominating pairs of the subsampled releases, with their numbers; it may be empty.
        gdp: the mu >= 0 of Gaussian DP of the full-batch releases in the same composition (0 for none).
        log_cut: outputs of `parts` with about the probability e^{log_cut} are left out of the sums; twice that
            probability is added to the upper end.
        points: the length of the Fourier transforms, a power of two; the width upper - lower falls about as points^-2.
        ends: which ends of the bracket are wanted. The other one may be 0 or 1.

    Raises:
        OverflowError: rounding errors exceed the answer, or the losses are not resolved by floats.
    """
    whole = everything(parts, gdp)
    reach = reach_of(log_cut, max(sum(count for _, count in whole), 1))
    slices = [Slice(pair, count, Span(reach, reach)) for pair, count in whole]
    releases: list[Slice | _Finite] = [*(_Finite(pair, count) for pair, count in finite), *slices]
    left_out = math.fsum(count * pair.infinite for pair, count in finite) + _infinite(parts)
    left_out += 2 * math.exp(log_cut) if slices else 0.0
    bracket = _total([_bracket(epsilon, releases, points, ends)], left_out)
    if (ends == "upper" and bracket.upper <= _RARE_DELTA) or (ends == "lower" and bracket.lower <= _RARE_DELTA):
        bracket = _total([_bracket(epsilon, releases, points)], left_out)
    elif ends != "both":
        return replace(bracket, value=bracket.upper if ends == "upper" else bracket.lower)
    if bracket.upper > _RARE_DELTA or bracket.upper <= _UNSHARP * bracket.lower:
        return bracket
    try:
        apart = _finite_apart(epsilon, finite, slices, log_cut, points)
    except OverflowError:
        apart = None
    if apart is None:
        return bracket
    other = _total(apart, left_out + math.exp(log_cut))
    lower, upper = max(bracket.lower, other.lower), min(bracket.upper, other.upper)
    return Bracket(lower, min(max(other.value, lower), upper), upper, bracket.method)


def _finite_apart(
    epsilon: float,
    finite: Sequence[tuple[FinitePair, int]],
    slices: Sequence[Slice],
    log_cut: float,
    points: int,
) -> "list[_Term] | None":
    """The parts of delta(epsilon): from runs where no release of a finite pair has a large loss, then from runs where
    one of them has.

    finite: the finite pairs with their numbers of releases. slices: the other releases. A loss is large if it is beyond
    a cut, which is chosen so that two large losses in a run have at most the probability e^{log_cut}. points: those of
    the grid. None is returned if a pair has no output on one side of its cut.
    """
    share = math.exp(log_cut / 2) / len(finite)
    parts = [(pair.parted(share / count), count) for pair, count in finite]
    known = [(part, count) for part, count in parts if part is not None]
    if len(known) < len(parts):
        return None
    terms = [_bracket(epsilon, [*(_Finite(near, count) for (near, _), count in known), *slices], points)]
    for one, ((_, far), count) in enumerate(known):
        rest = [_Finite(near, number - (k == one)) for k, ((near, _), number) in enumerate(known)]
        term = _bracket(epsilon, [_Finite(far, 1), *(other for other in rest if other.steps), *slices], points)
        terms.append(_Term(count * term.lower, count * term.upper))
    return terms


@dataclass(frozen=True)
class _Term:
    """A certified bracket, from `lower` to `upper`, of one of several parts whose sum is delta.

    A part is what the runs with some of the possible outputs contribute to delta.
    """

    lower: float
    upper: float

    @property
    def width(self) -> float:
        return self.upper - self.lower


def _total(terms: Sequence[_Term], left_out: float) -> Bracket:
    """The bracket of delta from the brackets `terms` of its parts.

    left_out: a bound on the probability of the outputs in none of the parts.
    """
    upper = min((math.fsum(term.upper for term in terms) + left_out) * (1 + 4 * UNIT) + 5e-324, 1.0)
    lower = min(math.fsum(term.lower for term in terms) * (1 - 4 * UNIT), upper)
    # With H the spacing of the grid, the variance of the dominating law's loss is too large by H^2/6 a release on
    # average (where a loss is split between two points of the grid), and that of the dominated law's is too small by
    # H^2/12. So delta is estimated at a third of the way from the lower bound.
    return Bracket(lower, lower + (upper - lower) / 3, upper, "grid")


def _apart(epsilon: float, parts: Parts, points: int, log_cut: float) -> tuple[list[_Term], float]:
    """The parts of delta(epsilon): from runs where no output has a large loss, then for each pair from runs where one
    of its outputs has.

    parts: the dominating pairs of single releases, each with its number of releases. A loss is large if it is beyond a
    cut, which is chosen so that a run has a large loss with at most the probability e^{log_cut}/2. points: those of the
    grid.

    Returns the parts, and a bound on the probability of all other runs.
    """
    steps = sum(count for _, count in parts)
    near, far = reach_of(log_cut, steps), reach_of(log_cut - FAR, steps)
    inside, outside = Span(near, far), Span(near, far, outside=True)
    terms = [_bracket(epsilon, [Slice(pair, count, inside) for pair, count in parts], points)]
    for one, (pair, steps_of_pair) in enumerate(parts):
        others = [Slice(p, count - (k == one), inside) for k, (p, count) in enumerate(parts)]
        slices = [Slice(pair, 1, outside), *(other for other in others if other.steps > 0)]
        term = _bracket(epsilon, slices, min(points, _FIRST_LOOK))
        if points > _FIRST_LOOK and steps_of_pair * term.width > _NARROW_SHARE * terms[0].width:
            term = _bracket(epsilon, slices, points)
        terms.append(_Term(steps_of_pair * term.lower, steps_of_pair * term.upper))
    return terms, math.exp(2 * log_cut) / 8 + 2 * math.exp(log_cut - FAR)


@dataclass(frozen=True)
class _Grid:
    """The grid of losses on which one part of delta(epsilon) is summed: `points` losses, `width` apart, from `bottom`
    on.

    tau: the tilt.
    sketches: the rough law of the loss of each slice (a pair with its number of releases, and the outputs that count).
    laws: the cells of each slice, and its number of releases.
    rates: the rates at which Chernoff's bounds on the tilted mass above and below the grid are least.
    error: a bound on the relative error of every mass after composition.
    shift: a bound on the absolute error of the total loss.
    """

    epsilon: float
    tau: float
    sketches: Sequence[Sketch]
    laws: Sequence[tuple[Cells, int]]
    bottom: float
    width: float
    points: int
    rates: Array
    error: float
    shift: float

    def composed(self, masses: Sequence[Array], bottom: float, *, extended: bool, whole: bool = False) -> _Sum:
        """The tilted law of the total loss, on the grid from the loss `bottom` on. A slice stands for several releases
        that have the same law, and the laws of all releases are composed.

        masses[j] has the weights of the law of one release of slice j on the cells of `laws`. extended: whether to
        compute in extended precision. whole: whether all masses on the grid are wanted; if not, the law may be given by
        its transform at few frequencies, in double precision. Raises OverflowError if the weights of a slice underflow.
        """
        start = math.floor(bottom / self.width)
        laws = [(c, mass, float(np.sum(mass)), count) for (c, count), mass in zip(self.laws, masses, strict=True)]
        if not min(total for _, _, total, _ in laws) > _LEAST_MASS:
            raise OverflowError("a tilt at which a law underflows")
        ones = [(mass / total, c.first, count) for c, mass, total, count in laws]
        seldom = math.fsum(count * (1 - float(np.max(mass))) for mass, _, count in ones) < _FEW_JUMPS
        few = None if extended or whole or seldom else frequencies(ones, self.points)
        law, error = np.zeros(0), 0.0
        rare = compose_rare(ones, start, self.points) if few is None and not extended else None
        if rare is not None:
            law, error = rare
        elif few is None:
            spectra = [(transform(mass, first, self.points, extended=extended), count) for mass, first, count in ones]
            law, error = compose(spectra, start)
        up, down = (float(rate) for rate in self.rates)
        tails = [-up * self.width * (start + self.points), down * self.width * start]
        for c, mass, total, count in laws:
            points = (c.first + np.arange(len(mass), dtype=np.float64)) * self.width
            for k, rate in enumerate((up, -down)):
                tails[k] += count * log_sum(log_law(mass / total), rate, points)
        log_scale = math.fsum(count * (math.log(total) + c.log_scale) for c, _, total, count in laws)
        tail = sum(math.exp(min(tail, 0.0)) for tail in tails)
        return _Sum(start, law, log_scale, error / math.sqrt(self.points), tail, few)


def _grid(epsilon: float, slices: Sequence[Slice | _Finite], points: int) -> _Grid:
    """The grid of losses on which one part of delta(epsilon) is summed.

    The part comes from runs in which every output is among those of its slice. slices: the releases, each kind with the
    outputs that count. points: the number of losses on the grid.
    """
    sketches = [part.sketch(4000) for part in slices]
    tau = saddle(epsilon, sketches)
    bottom, top, rates = _window(tau, sketches)
    # Losses of one release below `lowest` count as `lowest`.
    lowest = bottom - top
    broadest = max(float(np.max(k.loss)) - max(float(np.min(k.loss)), lowest) for k in sketches)
    # The laws on the grid spread the loss a little more than the exact law does, for which the range was computed; so
    # the range is widened by 1% of it to both sides.
    bottom, top = bottom - 0.01 * (top - bottom), top + 0.01 * (top - bottom)
    width = max((top - bottom) / points, broadest * max(1 / _MOST_CELLS, 4 / points))
    laws = [(part.cells(tau, width, lowest), part.steps) for part in slices]
    common = math.fsum(count * (c.error + 40 * UNIT) for c, count in laws)
    common = 1.1 * common + 16 * UNIT * (tau * epsilon + (1 + tau) * (abs(top) + abs(bottom)) + 1)
    if common > 0.1:
        raise OverflowError("rounding errors exceed the answer")
    shift = math.fsum(count * c.slip for c, count in laws) * 1.01
    return _Grid(epsilon, tau, sketches, laws, bottom, width, points, rates, common, shift)


def _bracket(epsilon: float, slices: Sequence[Slice | _Finite], points: int, ends: Ends = "both") -> _Term:
    """The bracket of the part of delta(epsilon) from runs in which every output is among those of its slice.

    slices: the releases, each kind with the outputs that count. points: the number of losses on the grid. ends: which
    ends of the bracket are wanted; the other one is 0 or 1.
    """
    if math.fsum(part.steps * part.largest_loss for part in slices) <= epsilon:
        return _Term(0.0, 0.0)
    grid = _grid(epsilon, slices, points)
    upper, lower = 1.0, 0.0
    for extended in (False, True):
        rounded = lost = 0.0
        if ends != "lower":
            upper, rounded = _upper(grid, extended=extended)
        if rounded > _MOST_ROUNDED and not extended:
            continue
        if ends != "upper":
            lower, lost = _lower(grid, extended=extended)
        if lost <= _MOST_LOST:
            break
    return _Term(min(lower, upper), upper)


def _upper(grid: _Grid, *, extended: bool) -> tuple[float, float]:
    """An upper bound on the part of delta that is summed on `grid`, and the share of the bound that is rounding error.

    It is the delta of the composed dominating laws. extended: whether to compute in extended precision.
    """
    tau, moved = grid.tau, grid.epsilon - grid.shift
    above = grid.composed([c.dominating for c, _ in grid.laws], grid.bottom, extended=extended)
    if above.few:
        start = max(math.floor(moved / grid.width) + 1, above.first)
        over = start * grid.width - moved
        count = above.first + grid.points - start
        fall = math.exp(-tau * over)
        sums = above.few.gain(start, count, tau * grid.width, over, grid.width) if count > 0 else (0.0, 0.0)
        gained, lost = fall * sums[0], fall * sums[1]
    else:
        beyond = (above.first + np.arange(grid.points)) * grid.width - moved
        positive = beyond > 0
        gain = np.exp(-tau * beyond[positive]) * -np.expm1(-beyond[positive])
        gained, lost = dot(above.mass[positive], gain), above.error * norm(gain)
    lost += above.tail * math.exp(log_c(tau))
    gained = gained * (1 + 1e-9) + 1.01 * lost
    if not gained > 0:
        return 0.0, 0.0
    log_upper = above.log_scale - tau * moved + math.log(gained)
    return math.exp(min(log_upper, 700.0)) * (1 + grid.error), lost / gained


def _lower(grid: _Grid, *, extended: bool) -> tuple[float, float]:
    """A lower bound on the part of delta that is summed on `grid`, and the share of the bound that is rounding error.

    It is the largest, over integers k, of P(S >= k) - e^epsilon Q(S >= k) minus its error, where S is the sum over the
    releases of the number of the grid cell that the loss is in. It is 0 if the tilt is so unsuitable that the weights
    of a law underflow or rounding errors overflow. extended: whether to compute in extended precision.
    """
    epsilon, tau, width = grid.epsilon, grid.tau, grid.width
    if min(float(np.sum(mass)) for c, _ in grid.laws for mass in (c.nearest_p, c.nearest_q)) < _LEAST_MASS:
        return 0.0, 1.0
    # `offset` is the mean total loss minus the mean that it has when each loss is replaced by the centre of its cell.
    offset = 0.0
    for sketch, (c, count) in zip(grid.sketches, grid.laws, strict=True):
        at: Array = (c.first + np.arange(float(len(c.nearest_p)))) * width
        offset += count * (sketch.tilted(tau)[0] - dot(at, c.nearest_p) / float(np.sum(c.nearest_p)))
    both = [c.nearest_p for c, _ in grid.laws], [c.nearest_q for c, _ in grid.laws]
    p, q = (grid.composed(masses, grid.bottom - offset, extended=extended) for masses in both)
    if p.few and q.few:
        return _lower_of_few(grid, p, q, offset)
    if p.few or q.few:
        p, q = (grid.composed(masses, grid.bottom - offset, extended=extended, whole=True) for masses in both)
    beyond = (p.first + np.arange(grid.points)) * width + offset - epsilon
    near = beyond > -20 / (1 + tau)
    if not near.any():
        return 0.0, 0.0
    beyond = beyond[near]
    log_fall_p = p.log_scale + tau * (offset - epsilon - beyond)
    log_fall_q = q.log_scale + tau * (offset - epsilon - beyond) + offset - beyond
    if max(float(np.max(log_fall_p)), float(np.max(log_fall_q))) > _LARGEST_LOG:
        return 0.0, 1.0
    fall_p, fall_q = np.exp(log_fall_p), np.exp(log_fall_q)
    mass_p, mass_q = p.mass[near] * fall_p, q.mass[near] * fall_q
    kept, lost = (np.cumsum(mass[::-1])[::-1] for mass in (mass_p * (1 - grid.error), mass_q * (1 + grid.error)))
    slack = 2 * UNIT * len(kept) * (kept + lost)
    rounding = [np.sqrt(np.cumsum((law.error * fall)[::-1] ** 2))[::-1] for law, fall in ((p, fall_p), (q, fall_q))]
    wrong = slack + 1.01 * (rounding[0] + rounding[1] + p.tail * fall_p)
    sure = kept - lost - wrong
    best, middle = int(np.argmax(sure)), int(np.argmax(beyond >= 0))
    # If the difference at the loss epsilon is certainly negative, more exact sums would not make it positive.
    shares = [float(wrong[k] / max(abs(kept[k] - lost[k]), 1e-300)) for k in (best, middle)]
    return max(float(sure[best]), 0.0), min(shares)


def _lower_of_few(grid: _Grid, p: _Sum, q: _Sum, offset: float) -> tuple[float, float]:
    """The lower bound of `_lower`, and its share of rounding error, where the laws p and q of the sum S under P and
    under Q are known at few frequencies.

    The integers k are tried from where the loss is epsilon on, in steps that double as long as the bound rises and are
    halved then. offset: as in `_lower`.
    """
    tau, width = grid.tau, grid.width

    def bound(k: int) -> tuple[float, float]:
        beyond = k * width + offset - grid.epsilon
        log_fall_p = p.log_scale + tau * (offset - grid.epsilon - beyond)
        log_fall_q = q.log_scale + (1 + tau) * (offset - beyond) - tau * grid.epsilon
        if max(log_fall_p, log_fall_q) > _LARGEST_LOG:
            return 0.0, 1.0
        fall_p, fall_q = math.exp(log_fall_p), math.exp(log_fall_q)
        (mass_p, wrong_p), (mass_q, wrong_q) = p.falling(k, tau * width), q.falling(k, (1 + tau) * width)
        gained = fall_p * mass_p * (1 - grid.error) - fall_q * mass_q * (1 + grid.error)
        wrong = 1.01 * (fall_p * (wrong_p + p.tail) + fall_q * wrong_q) + 8 * UNIT * (fall_p * mass_p + fall_q * mass_q)
        return gained - wrong, wrong / max(abs(gained), 1e-300)

    best = max(math.ceil((grid.epsilon - offset) / width), p.first)
    if best >= p.first + grid.points:
        return 0.0, 0.0
    found = bound(best)
    share = found[1]

    def rises(step: int) -> bool:
        """Move `best` by `step` if the bound is larger there, and return whether it is."""
        nonlocal best, found
        there = min(max(best + step, p.first), p.first + grid.points - 1)
        other = bound(there)
        if other[0] <= found[0]:
            return False
        best, found = there, other
        return True

    step = 1
    for way in (1, -1):
        while rises(way * step):
            step *= 2
    longest = step
    while (step := step // 2) * _FINEST_MOVE > longest:
        rises(step) or rises(-step)
    return max(found[0], 0.0), min(share, found[1])
