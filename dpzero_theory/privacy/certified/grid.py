"""delta(epsilon) of few or rare subsampled releases on a grid of losses, with a certified bracket.

The loss law of few steps is nearly discrete (the record is in no batch, in one, in two...), so that its
characteristic function hardly decays and the contour of `subsampled` needs too many nodes. Here the line of x is
cut where the loss crosses the multiples of a spacing H, and the composition is a power of a Fourier transform
under the tilt e^{tau L}, which keeps rounding errors relative to the answer. The companion text derivation.md
derives the bracket in section 5; its width is of second order in H.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri_exp

from dpzero_theory.check import Array
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.cells import Cells, Span, cells
from dpzero_theory.privacy.certified.contour import log_c
from dpzero_theory.privacy.certified.convolution import compose, dot, log_law, log_sum, norm, transform
from dpzero_theory.privacy.certified.finite import FinitePair
from dpzero_theory.privacy.certified.pairs import Pair
from dpzero_theory.privacy.certified.quadrature import gauss, losses

_UNIT = 2.0**-53
_LOG_TAIL = math.log(1e-15)
_CUT = 1e-9
"""Share of delta, about, that may be left out and added to the upper end."""
_ROUNDED = 1e-6
"""Share of the answer that rounding may have before extended precision is used, which is five times slower."""
_LEAST, _MOST = -1e4, -1.0
"""Range of logs of the probability of large losses."""
_GAP = 12.0
"""Log of the most that Chernoff's bound may exceed delta by; beyond, large losses are counted apart."""
FEW = 50
"""Batches with the record, on average, from which no losses are rare."""
_FAR = 40.0
"""How much less likely, in logs, are outputs that are left out altogether."""
_CELLS = 2**17
"""Cells for the losses of one step, at most."""


@dataclass(frozen=True)
class _Sketch:
    """The loss law by a Gauss-Legendre sum, steps times: for choosing tilt and grid, not for the bracket."""

    loss: Array
    log_mass: Array
    steps: int

    def tilted(self, tau: float) -> tuple[float, Array]:
        exponent = self.log_mass + tau * self.loss
        weights = np.exp(exponent - np.max(exponent))
        weights /= np.sum(weights)
        return float(weights @ self.loss), weights


@dataclass(frozen=True)
class _Slice:
    """`steps` releases of `pair` with outputs in `span` only."""

    pair: Pair
    steps: int
    span: Span

    def sketch(self, size: int) -> _Sketch:
        pair, found = self.pair, []
        for branch in pair.branches:
            low, high = self.span.interval(pair, branch)
            if low < high:
                x, width = gauss(low, high, size)
                found.append(losses(pair, branch, x, np.log(width / (pair.noise * math.sqrt(2 * math.pi))))[:2])
        if pair.atom > 0 and not self.span.outside:
            found.append((np.zeros(1), np.log([pair.atom])))
        if not found:
            raise OverflowError("no outputs in a slice")
        return _Sketch(np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found]), self.steps)

    def cells(self, tau: float, width: float, lowest: float) -> Cells:
        return cells(self.pair, tau, width, self.span, lowest)


@dataclass(frozen=True)
class _Finite:
    """`steps` releases of a finite pair, but for what is beyond all its losses."""

    pair: FinitePair
    steps: int

    def sketch(self, size: int) -> _Sketch:
        return _Sketch(self.pair.loss, log_law(self.pair.mass), self.steps)

    def cells(self, tau: float, width: float, lowest: float) -> Cells:
        return self.pair.cells(tau, width, lowest)


def _saddle(epsilon: float, sketches: Sequence[_Sketch]) -> float:
    """The tilt that makes S_0 c(tau) about least: mean loss epsilon + 1/tau + 1/(1 + tau), to a tenth."""
    low, high = 1e-6, 1e6
    while high > 1.1 * low:
        tau = math.sqrt(low * high)
        mean = math.fsum(k.steps * k.tilted(tau)[0] for k in sketches)
        low, high = (tau, high) if mean < epsilon + 1 / tau + 1 / (1 + tau) else (low, tau)
    return low


def reach_of(log_cut: float, steps: float) -> float:
    """z with 2 steps Phi(-z) = e^{log_cut}: where the outputs of so many steps may be cut."""
    return -float(ndtri_exp(log_cut - math.log(2 * steps)))


def rough_log_delta(epsilon: float, parts: Sequence[tuple[Pair, int]], gdp: float = 0.0) -> float:
    """Log of about delta(epsilon), mostly too large by a small factor; always finite."""
    return _balance(epsilon, _everything(parts, gdp), 0.02)[1]


def rough_cut(epsilon: float, parts: Sequence[tuple[Pair, int]], gdp: float) -> tuple[float, float]:
    """(log of 2 steps Phi(-reach), log of about delta): the reach beyond which outputs are well counted apart."""
    return _balance(epsilon, _everything(parts, gdp), 0.5)


def _split(epsilon: float, parts: Sequence[tuple[Pair, int]], log_cut: float) -> tuple[float, float]:
    """Logs of two parts of delta, by sketches: what Chernoff's bound says where no step has a large loss, and what one
    large loss beside the others' mean says; e^{log_cut} bounds twice the probability of large losses."""
    steps = sum(count for _, count in parts)
    near, far = reach_of(log_cut, steps), reach_of(log_cut - _FAR, steps)
    small = [_Slice(pair, count, Span(near, far)).sketch(300) for pair, count in parts]
    tau = _saddle(epsilon, small)
    moment = math.fsum(k.steps * log_sum(k.log_mass, tau, k.loss) for k in small)
    rest = epsilon - math.fsum(k.steps * k.tilted(0.0)[0] for k in small)
    alone = -math.inf
    for pair, count in parts:
        large = _Slice(pair, count, Span(near, far, outside=True)).sketch(100)
        beyond = large.loss > rest
        if beyond.any():
            gain = large.log_mass[beyond] + np.log(-np.expm1(rest - large.loss[beyond]))
            alone = float(np.logaddexp(alone, math.log(count) + np.logaddexp.reduce(gain)))
    return moment - tau * epsilon + log_c(tau), alone


def _balance(epsilon: float, parts: Sequence[tuple[Pair, int]], accuracy: float) -> tuple[float, float]:
    """(log_cut, log of about delta) where the parts of `_split` are equal; one falls in log_cut, the other rises.

    The first such place from below: sketches of few outputs are not monotone near the top.
    """

    def excess(log_cut: float) -> float:
        small, large = _split(epsilon, parts, log_cut)
        return small - max(large, 2 * log_cut)

    below = _LEAST
    if excess(below) < 0:
        return _LEAST, _LEAST
    for above in -np.geomspace(-_LEAST, -_MOST, 14)[1:]:
        if excess(float(above)) < 0:
            log_cut = float(brentq(excess, below, float(above), xtol=accuracy))
            return log_cut, min(_split(epsilon, parts, log_cut)[0] + math.log(2), 0.0)
        below = float(above)
    return _MOST, min(_split(epsilon, parts, _MOST)[0], 0.0)


def _everything(parts: Sequence[tuple[Pair, int]], gdp: float) -> list[tuple[Pair, int]]:
    return [*parts, *([(Pair("remove", 1.0, 1 / gdp), 1)] if gdp > 0 else [])]


def _window(tau: float, sketches: Sequence[_Sketch]) -> tuple[float, float, Array]:
    """(lowest, highest) sum of losses that matters under the tilted law, and Chernoff's best rates for its tails."""
    laws = [(k, *k.tilted(tau)) for k in sketches]
    mean = math.fsum(k.steps * centre for k, centre, _ in laws)
    variance = math.fsum(k.steps * float(weights @ (k.loss - centre) ** 2) for k, centre, weights in laws)
    if not (math.isfinite(variance) and variance > 0):
        raise OverflowError("losses that a sketch does not resolve")
    rates = np.geomspace(0.02, 50, 24) / math.sqrt(variance)

    def reach(rate: float) -> float:
        moment = math.fsum(k.steps * log_sum(log_law(weights), rate, k.loss - centre) for k, centre, weights in laws)
        return (moment - _LOG_TAIL) / abs(rate)

    up, down = ([reach(sign * float(rate)) for rate in rates] for sign in (1, -1))
    best = np.array([rates[int(np.argmin(up))], rates[int(np.argmin(down))]])
    return mean - min(down), mean + min(up), best


@dataclass(frozen=True)
class _Sum:
    """The composed tilted law at (first + k) H, k >= 0, with total 1 and its scale apart.

    `error` bounds the rounding of the weights in Euclidean norm, `tail` the mass that lies beyond and is folded in.
    """

    first: int
    mass: Array
    log_scale: float
    error: float
    tail: float


def _compose(
    laws: Sequence[tuple[int, Array, float, int]],
    width: float,
    bottom: float,
    size: int,
    rates: Array,
    *,
    extended: bool,
) -> _Sum:
    """The sum of the laws (first, mass, its log scale, steps) on `size` points from `bottom`; tails by Chernoff."""
    start = math.floor(bottom / width)
    totals = [float(np.sum(mass)) for _, mass, _, _ in laws]
    spectra = [
        (transform(mass / total, first, size, extended=extended), steps)
        for (first, mass, _, steps), total in zip(laws, totals, strict=True)
    ]
    law, error = compose(spectra, start)
    tails = [-float(rates[0]) * width * (start + size), float(rates[1]) * width * start]
    for (first, mass, _, steps), total in zip(laws, totals, strict=True):
        points = (first + np.arange(len(mass), dtype=np.float64)) * width
        for k, rate in enumerate((float(rates[0]), -float(rates[1]))):
            tails[k] += steps * log_sum(log_law(mass / total), rate, points)
    log_scale = math.fsum(
        steps * (math.log(total) + scale) for (_, _, scale, steps), total in zip(laws, totals, strict=True)
    )
    return _Sum(start, law, log_scale, error / math.sqrt(size), sum(math.exp(min(tail, 0.0)) for tail in tails))


def grid_delta(
    epsilon: float,
    parts: Sequence[tuple[Pair, int]],
    gdp: float = 0.0,
    *,
    points: int = 2**18,
) -> Bracket:
    """Certified bracket of delta(epsilon) for the composition of `parts` (pair, steps) and a `gdp`-GDP mechanism.

    Args:
        epsilon: epsilon >= 0.
        parts: at least one pair with sample_rate < 1, and its number of steps.
        gdp: mu >= 0 of full-batch releases in the same composition.
        points: length of the transforms, a power of two; the width of the bracket falls as its square.

    Raises:
        OverflowError: outside the range of the method.
    """
    everything = _everything(parts, gdp)
    steps = sum(count for _, count in everything)
    log_cut, rough = _balance(epsilon, everything, 0.5)
    for _ in range(2):
        enough = rough + math.log(_CUT)
        if _split(epsilon, everything, enough)[0] - rough < _GAP:
            span = Span(reach_of(enough, steps), reach_of(enough, steps))
            terms = [_bracket(epsilon, [_Slice(pair, count, span) for pair, count in everything], points)]
            left_out = 2 * math.exp(enough)
        else:
            terms, left_out = _apart(epsilon, everything, points, min(log_cut, (enough + math.log(8)) / 2))
        found = math.fsum(term.lower for term in terms)
        if not 0 < found < 1e3 * left_out:
            break
        rough = math.log(found)
    return _total(terms, left_out)


def grid_delta_beside(
    epsilon: float,
    finite: Sequence[tuple[FinitePair, int]],
    parts: Sequence[tuple[Pair, int]],
    gdp: float,
    log_cut: float,
    *,
    points: int,
) -> Bracket:
    """`grid_delta` for compositions with finite pairs: outputs of probability e^{log_cut} are left out.

    Raises:
        OverflowError: outside the range of the method.
    """
    everything = _everything(parts, gdp)
    reach = reach_of(log_cut, max(sum(count for _, count in everything), 1))
    slices = [_Slice(pair, count, Span(reach, reach)) for pair, count in everything]
    term = _bracket(epsilon, [*(_Finite(pair, count) for pair, count in finite), *slices], points)
    left_out = math.fsum(count * pair.infinite for pair, count in finite) + (2 * math.exp(log_cut) if slices else 0.0)
    return _total([term], left_out)


@dataclass(frozen=True)
class _Term:
    """A bracket of the part of delta that some outputs give."""

    lower: float
    upper: float


def _total(terms: Sequence[_Term], left_out: float) -> Bracket:
    """The parts of delta together, and what none of them holds."""
    upper = min((math.fsum(term.upper for term in terms) + left_out) * (1 + 4 * _UNIT) + 5e-324, 1.0)
    lower = min(math.fsum(term.lower for term in terms) * (1 - 4 * _UNIT), upper)
    # the variance of the loss is too large by up to H^2/4 a step above, and too small by H^2/12 below
    return Bracket(lower, lower + (upper - lower) / 3, upper, "grid")


def _apart(epsilon: float, parts: Sequence[tuple[Pair, int]], points: int, log_cut: float) -> tuple[list[_Term], float]:
    """The parts of delta where no step's output has a large loss, and where one step of each pair has; and the rest.

    At most e^{log_cut}/2 is the probability that any output has a large loss.
    """
    steps = sum(count for _, count in parts)
    near, far = reach_of(log_cut, steps), reach_of(log_cut - _FAR, steps)
    inside, outside = Span(near, far), Span(near, far, outside=True)
    terms = [_bracket(epsilon, [_Slice(pair, count, inside) for pair, count in parts], points)]
    for one, (pair, steps_of_pair) in enumerate(parts):
        others = [_Slice(p, count - (k == one), inside) for k, (p, count) in enumerate(parts)]
        slices = [_Slice(pair, 1, outside), *(other for other in others if other.steps > 0)]
        term = _bracket(epsilon, slices, points)
        terms.append(_Term(steps_of_pair * term.lower, steps_of_pair * term.upper))
    return terms, math.exp(2 * log_cut) / 8 + 2 * math.exp(log_cut - _FAR)


def _bracket(epsilon: float, slices: Sequence[_Slice | _Finite], points: int, *, extended: bool = False) -> _Term:
    """The part of delta where every output is in its slice."""
    sketches = [part.sketch(4000) for part in slices]
    tau = _saddle(epsilon, sketches)
    bottom, top, rates = _window(tau, sketches)
    # a loss below `lowest` counts as if it were there
    lowest = bottom - top
    broadest = max(float(np.max(k.loss)) - max(float(np.min(k.loss)), lowest) for k in sketches)
    # the laws on the grid are a little broader than the exact one
    bottom, top = bottom - 0.01 * (top - bottom), top + 0.01 * (top - bottom)
    width = max((top - bottom) / points, broadest * max(1 / _CELLS, 4 / points))
    laws = [(part.cells(tau, width, lowest), part.steps) for part in slices]
    common = math.fsum(count * (c.error + 40 * _UNIT) for c, count in laws)
    common = 1.1 * common + 16 * _UNIT * (tau * epsilon + (1 + tau) * (abs(top) + abs(bottom)) + 1)
    shift = math.fsum(count * c.slip for c, count in laws) * 1.01
    if common > 0.1:
        raise OverflowError("rounding errors exceed the answer")

    dominating = [(c.first, c.dominating, c.log_scale, count) for c, count in laws]
    above = _compose(dominating, width, bottom, points, rates, extended=extended)
    beyond = (above.first + np.arange(points)) * width - (epsilon - shift)
    positive = beyond > 0
    gain = np.exp(-tau * beyond[positive]) * -np.expm1(-beyond[positive])
    log_scale = above.log_scale - tau * (epsilon - shift)
    lost = above.error * norm(gain) + above.tail * math.exp(log_c(tau))
    found = dot(above.mass[positive], gain) * (1 + 1e-9) + 1.01 * lost
    if not extended and lost > _ROUNDED * found:
        return _bracket(epsilon, slices, points, extended=True)
    upper = math.exp(min(log_scale + math.log(found), 700.0)) * (1 + common) if found > 0 else 0.0
    window = (bottom, width, points)
    lower = min(_lower(epsilon, tau, sketches, laws, window, rates, common, extended=extended), upper)
    return _Term(lower, upper)


def _lower(
    epsilon: float,
    tau: float,
    sketches: Sequence[_Sketch],
    laws: Sequence[tuple[Cells, int]],
    window: tuple[float, float, int],
    rates: Array,
    error: float,
    *,
    extended: bool,
) -> float:
    """max over k of P(sum of cells >= k) - e^epsilon Q(sum of cells >= k), less the errors of the composition."""
    bottom, width, points = window
    # the mean loss above the cells' centres, in all
    offset = 0.0
    for sketch, (c, count) in zip(sketches, laws, strict=True):
        at: Array = (c.first + np.arange(float(len(c.nearest_p)))) * width
        offset += count * (sketch.tilted(tau)[0] - dot(at, c.nearest_p) / float(np.sum(c.nearest_p)))
    p, q = (
        _compose(
            [(c.first, mass, c.log_scale, count) for (c, count), mass in zip(laws, masses, strict=True)],
            width,
            bottom - offset,
            points,
            rates,
            extended=extended,
        )
        for masses in ([c.nearest_p for c, _ in laws], [c.nearest_q for c, _ in laws])
    )
    beyond = (p.first + np.arange(points)) * width + offset - epsilon
    near = beyond > -20 / (1 + tau)
    if not near.any():
        return 0.0
    beyond = beyond[near]
    fall_p = np.exp(p.log_scale + tau * (offset - epsilon - beyond))
    fall_q = np.exp(q.log_scale + tau * (offset - epsilon - beyond) + offset - beyond)
    mass_p, mass_q = p.mass[near] * fall_p, q.mass[near] * fall_q
    kept, lost = (np.cumsum(mass[::-1])[::-1] for mass in (mass_p * (1 - error), mass_q * (1 + error)))
    slack = 2 * _UNIT * len(kept) * (kept + lost)
    rounding = [np.sqrt(np.cumsum((law.error * fall)[::-1] ** 2))[::-1] for law, fall in ((p, fall_p), (q, fall_q))]
    return max(float(np.max(kept - lost - slack - 1.01 * (rounding[0] + rounding[1] + p.tail * fall_p))), 0.0)
