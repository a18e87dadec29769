"""Rough values of delta(epsilon), in milliseconds, and of the loss from which on losses are better counted apart.

The law of the privacy loss is replaced by a short sum. No number from here is certified. These numbers choose the
tilts, grids and cuts of certified methods, for which any choice gives a bracket that holds, and a good choice a narrow
one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri, ndtri_exp

from dpzero_theory.bisection import halved
from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.laws.arithmetic import (
    GAUSS_ORDER,
    GAUSS_POINTS,
    GAUSS_WEIGHTS,
    log_c,
    log_law,
    log_sum,
)
from dpzero_theory.privacy.certified.laws.cells import Cells, Span, blended, cells
from dpzero_theory.privacy.certified.laws.finite import FinitePair
from dpzero_theory.privacy.certified.laws.pairs import Branch, Pair, loss_at, losses
from dpzero_theory.privacy.certified.laws.parts import OneOf, Parts, expected
from dpzero_theory.privacy.gaussian import log_delta_from_gdp

_LEAST_LOG_CUT, _MOST_LOG_CUT = -1e4, -1.0
"""The range in which `balance` seeks the natural log of the probability that a run has a large loss."""
FEW = 50
"""If the record is in fewer batches of a run than this on average, delta may come from rare large losses; if it is in
more, their sum is close to normal."""
_HARDLY_USED, _HARDLY_USED_QUIET = 0.1, 1.0
"""`rare_log_delta` is used if the record is in at most this many batches of a run on average. The second number is for
noise multipliers of at most `_LOUD`: with so little noise a large loss is that of one release, not a sum."""
_LOUD = 0.5
"""The least noise multiplier at which `rough_epsilon` approximates the sum of the losses by a normal variable. With
less noise the variance of the loss comes from outputs that are hardly ever seen."""
FAR = 40.0
"""Where large losses are counted apart from the others, outputs that are e^40 times less likely than all large losses
together are not summed; their probability is added to the upper end of the bracket."""


@dataclass(frozen=True)
class Sketch:
    """The law of the loss of one release, approximated by the masses e^log_mass at the losses `loss`.

    steps: the number of such releases in the composition.
    """

    loss: Array
    log_mass: Array
    steps: int

    def tilted(self, tau: float) -> tuple[float, Array]:
        """The mean of the loss, and the masses, which sum to 1, under the law whose masses are proportional to those of
        this one times e^{tau loss}."""
        exponent = self.log_mass + tau * self.loss
        weights = np.exp(exponent - np.max(exponent))
        weights /= np.sum(weights)
        return float(weights @ self.loss), weights


@dataclass(frozen=True)
class Slice:
    """A number of releases of one pair, of which only some outputs count.

    steps: the number of releases. span: the outputs that count.
    """

    pair: Pair | OneOf
    steps: int
    span: Span

    @cached_property
    def _laws(self) -> list[tuple[float, Pair | FinitePair]]:
        """For each kind of release its chance, and the pair whose outputs are summed."""
        share, found = float(ndtr(-self.span.near)), list[tuple[float, Pair | FinitePair]]()
        for (chance, pair), listed in zip(self.pair.kinds, self.pair.listed, strict=True):
            law = pair if listed is None else listed.within(share, outside=self.span.outside)
            if law is not None and (law is not pair or any(self._interval(pair, b) for b in pair.branches)):
                found.append((chance, law))
        return found

    def _interval(self, pair: Pair, branch: Branch) -> tuple[float, float] | None:
        """The outputs of `span` on one branch of the pair; None if there are none."""
        low, high = self.span.interval(pair, branch)
        return (low, high) if low < high else None

    @property
    def largest_loss(self) -> float:
        """An upper bound on the loss of one release among the outputs that count.

        It is the larger loss at the ends of `span`, because the loss is monotone in the output on each branch of the
        pair.
        """
        largest = -math.inf
        for _, law in self._laws:
            if isinstance(law, FinitePair):
                largest = max(largest, law.largest_loss)
                continue
            for branch in law.branches:
                ends = np.array(self.span.interval(law, branch))
                largest = max(largest, float(np.max(loss_at(law, branch, ends))))
        return largest + 1e-9 * abs(largest) if math.isfinite(largest) else math.inf

    def sketch(self, size: int) -> Sketch:
        """The law of the loss of one release as a sum with about `size` terms for each branch of a pair. Raises
        OverflowError if no output counts."""
        sums = []
        for chance, law in self._laws:
            if isinstance(law, FinitePair):
                sums.append((law.loss, log_law(chance * law.mass)))
                continue
            for branch in law.branches:
                if interval := self._interval(law, branch):
                    x, width = gauss(*interval, size)
                    log_width = np.log(chance * width / (law.noise * math.sqrt(2 * math.pi)))
                    sums.append(losses(law, branch, x, log_width))
            if law.atom > 0 and not self.span.outside:
                sums.append((np.zeros(1), np.log([chance * law.atom])))
        if not sums:
            raise OverflowError("no outputs in a slice")
        return Sketch(np.concatenate([f[0] for f in sums]), np.concatenate([f[1] for f in sums]), self.steps)

    def cells(self, tau: float, width: float, lowest: float) -> Cells:
        """The laws of one release on a grid of losses with spacing `width`, tilted by tau > 0 (`cells.Cells`).

        Losses below `lowest` count as `lowest`. Only outputs in `span` count.
        """
        kinds = []
        for chance, law in self._laws:
            if isinstance(law, FinitePair):
                kinds.append((chance, law.cells(tau, width, lowest)))
            else:
                kinds.append((chance, cells(law, tau, width, self.span, lowest)))
        return kinds[0][1] if len(self.pair.kinds) == 1 else blended(kinds)


def gauss(low: float, high: float, size: int) -> tuple[Array, Array]:
    """The nodes and weights of a Gauss-Legendre rule with 16 nodes on each of equal panels of [low, high], about `size`
    nodes in all."""
    edges = np.linspace(low, high, max(size // GAUSS_ORDER, 1) + 1)
    centre, radius = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    return (centre[:, None] + radius[:, None] * GAUSS_POINTS).ravel(), (radius[:, None] * GAUSS_WEIGHTS).ravel()


def saddle(epsilon: float, sketches: Sequence[Sketch]) -> float:
    """The tilt tau at which Chernoff's bound c(tau) E e^{tau L} e^{-tau epsilon} on delta is least, found to 10% of
    tau.

    sketches: the laws of the losses of the releases. L is the total loss, and c(tau) is the factor whose log is
    `arithmetic.log_c`. At this tau the mean of the total loss under the tilted law is epsilon + 1/tau + 1/(1 + tau).
    """

    def early(tau: float) -> bool:
        mean = math.fsum(k.steps * k.tilted(tau)[0] for k in sketches)
        return mean < epsilon + 1 / tau + 1 / (1 + tau)

    return halved(early, 1e-6, 1e6, middle=lambda low, high: math.sqrt(low * high) if high > 1.1 * low else low)[0]


def reach_of(log_cut: float, steps: float) -> float:
    """The number z of standard deviations with 2 steps Phi(-z) = e^{log_cut}.

    If in each of `steps` releases the outputs more than z standard deviations beyond the means are left out, a run has
    one of them with at most the probability e^{log_cut}.
    """
    return -float(ndtri_exp(log_cut - math.log(2 * steps)))


def rough_log_delta(epsilon: float, parts: Parts, gdp: float = 0.0) -> float:
    """The natural log of a rough delta(epsilon), which is no bound and mostly too large by a small factor. It is finite
    even if delta is too small for a float.

    parts: the dominating pairs of single releases, each with its number of releases. gdp: the mu >= 0 of Gaussian DP of
    the full-batch releases in the same composition (0 for none).
    """
    return balance(epsilon, everything(parts, gdp), 0.02)[1]


def rare_log_delta(epsilon: float, parts: Parts, gdp: float = 0.0) -> float | None:
    """The natural log of a rough delta(epsilon), which is no bound, where the record is seldom in any batch; else None.

    The arguments are those of `rough_log_delta`. The record is taken to be in one batch at most, so that the deltas of
    single releases are added. Each is q delta'(x), where q is the sample rate and delta' the delta of one release of a
    full batch. Here e^x = 1 + (e^epsilon - 1)/q, and (1 - q) (e^epsilon - 1)/q for a record that takes another's place,
    as large losses come from outputs that hardly occur without it. None is also returned for pairs of kind `add`, whose
    loss is at most log 1/(1 - q).
    """
    kinds = expected(parts)
    most = _HARDLY_USED_QUIET if all(pair.noise <= _LOUD for pair, _ in kinds) else _HARDLY_USED
    if gdp > 0 or math.fsum(steps * pair.sample_rate for pair, steps in kinds) > most:
        return None
    found = -math.inf
    for pair, steps in kinds:
        if pair.kind == "add":
            return None
        q, gained = pair.sample_rate, math.expm1(min(epsilon, 600.0))
        odds = (1 - q) * gained / q if pair.kind == "replace" else 1 + gained / q
        if odds < 1:
            return None
        x = math.log(odds) + max(epsilon - 600.0, 0.0)
        found = float(np.logaddexp(found, math.log(steps * q) + float(log_delta_from_gdp(x, 1 / pair.noise))))
    return found if found > -math.inf else None


def rough_epsilon(target: float, parts: Parts, gdp: float = 0.0) -> tuple[float, float]:
    """A guess of the epsilon at which delta is `target`, and of the slope d log delta / d log epsilon there; the errors
    of both are not bounded.

    parts: the dominating pairs of single releases, each with its number of releases. gdp: the mu >= 0 of Gaussian DP of
    the full-batch releases in the same composition (0 for none). The epsilon is the larger of two values. One takes the
    sum of the losses for Gaussian, which is sharp for many releases. The other takes the record to be in one batch at
    most, which is sharp where it is seldom in any: if p is the probability that it is in one, delta(epsilon) = p
    delta'(x), where e^epsilon = 1 + q (e^x - 1), q is the sample rate, and delta' is the delta of one release of a full
    batch.
    """
    variance, best = gdp * gdp, (0.0, -1.0)
    for pair, steps in expected(parts):
        q = pair.sample_rate
        if pair.noise >= _LOUD:
            variance += steps * q * q * _spread(pair)
        used = -math.expm1(steps * math.log1p(-q)) if q < 1 else 1.0
        if target < used:
            x, fall = _gaussian_epsilon(1 / pair.noise, target / used)
            near = math.log1p(q * math.expm1(x)) if x < 600 else x + math.log(q)
            best = max(best, (near, fall * near / (-math.expm1(-near) + q * math.exp(-near))))
    if variance > 0:
        all_of_them, fall = _gaussian_epsilon(math.sqrt(variance), target)
        best = max(best, (all_of_them, fall * all_of_them))
    return best[0], min(best[1], -1e-3)


def _spread(pair: Pair) -> float:
    """Roughly the variance of the loss of one release of `pair`, over q^2 with q the sample rate: its limit for q ->
    0."""
    square, half = 1 / pair.noise**2, 0.5 / pair.noise
    if pair.kind == "replace":
        return 4 * math.sinh(square)
    if pair.kind == "fixed-size":
        return 2 * float(math.exp(square) * ndtr(3 * half) - 2 * ndtr(half) + ndtr(-half))
    return math.expm1(square)


def _gaussian_epsilon(mu: float, target: float) -> tuple[float, float]:
    """The epsilon of a mu-GDP mechanism at delta = `target`, with a relative error of about 1e-3, and the slope d log
    delta / d epsilon there."""

    def terms(epsilon: float) -> tuple[float, float]:
        """The log of the first term of delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), and the log
        of the second term over the first."""
        first, second = (float(log_ndtr(side * mu / 2 - epsilon / mu)) for side in (1, -1))
        return first, epsilon + second - first

    def excess(epsilon: float) -> float:
        first, log_share = terms(epsilon)
        return first + math.log(max(-math.expm1(log_share), 5e-324)) - math.log(target)

    most = (mu * (mu / 2 - float(ndtri(target)))) * (1 + 1e-9)  # here delta's first term is `target`
    if not (most > 0 and excess(0.0) > 0):
        return 0.0, -1.0
    epsilon = float(brentq(excess, 0.0, most, xtol=1e-300, rtol=1e-3))
    share = math.exp(terms(epsilon)[1])
    return epsilon, -share / (1 - share)


def rough_cut(epsilon: float, parts: Parts, gdp: float) -> tuple[float, float]:
    """The natural log of the probability of the large losses that are best counted apart from the others, and that of a
    rough delta(epsilon); neither is a bound.

    parts: the dominating pairs of single releases, each with its number of releases. gdp: the mu >= 0 of Gaussian DP of
    the full-batch releases in the same composition (0 for none).
    """
    return balance(epsilon, everything(parts, gdp), 0.5)


def split(epsilon: float, parts: Parts, log_cut: float) -> tuple[float, float]:
    """The natural logs of two parts of a rough delta(epsilon), which is no bound: that from runs without a large loss,
    and that from runs with one.

    parts: the dominating pairs of single releases, each with its number of releases. Large losses are those of outputs
    so far from the means that a run has one with the probability e^{log_cut} (`reach_of`). The first part is Chernoff's
    bound; for the second the other losses of the run are replaced by their mean.
    """
    steps = sum(count for _, count in parts)
    near, far = reach_of(log_cut, steps), reach_of(log_cut - FAR, steps)
    small = [Slice(pair, count, Span(near, far)).sketch(300) for pair, count in parts]
    tau = saddle(epsilon, small)
    moment = math.fsum(k.steps * log_sum(k.log_mass, tau, k.loss) for k in small)
    rest = epsilon - math.fsum(k.steps * k.tilted(0.0)[0] for k in small)
    alone = -math.inf
    for pair, count in parts:
        large = Slice(pair, count, Span(near, far, outside=True)).sketch(100)
        beyond = large.loss > rest
        if beyond.any():
            gain = large.log_mass[beyond] + np.log(-np.expm1(rest - large.loss[beyond]))
            alone = float(np.logaddexp(alone, math.log(count) + np.logaddexp.reduce(gain)))
    return moment - tau * epsilon + log_c(tau), alone


@lru_cache(maxsize=8)
def balance(epsilon: float, parts: Parts, accuracy: float) -> tuple[float, float]:
    """The log of the probability of large losses at which two parts of a rough delta(epsilon) are equal, and log delta.

    The parts are those of `split`, from runs without a large loss and from runs with one. parts: the dominating pairs
    of single releases, each with its number of releases. accuracy: about the absolute error that the first result may
    have; log delta is rough whatever it is. As the probability rises the first part falls and the second one rises. If
    they are equal at several probabilities, because sums with few nodes are not quite monotone, the smallest is
    returned. If they are equal at none, the end of the range from e^-1e4 to e^-1 that is nearer to equality is
    returned, and at its lower end log delta is that end too.
    """

    def excess(log_cut: float) -> float:
        small, large = split(epsilon, parts, log_cut)
        return small - max(large, 2 * log_cut)

    below = _LEAST_LOG_CUT
    if excess(below) < 0:
        return _LEAST_LOG_CUT, _LEAST_LOG_CUT
    for above in -np.geomspace(-_LEAST_LOG_CUT, -_MOST_LOG_CUT, 14)[1:]:
        if excess(float(above)) < 0:
            log_cut = float(brentq(excess, below, float(above), xtol=accuracy))
            return log_cut, min(split(epsilon, parts, log_cut)[0] + math.log(2), 0.0)
        below = float(above)
    return _MOST_LOG_CUT, min(split(epsilon, parts, _MOST_LOG_CUT)[0], 0.0)


def everything(parts: Parts, gdp: float) -> Parts:
    """The composition `parts` together with a `gdp`-GDP mechanism, as one more Gaussian release of a full batch."""
    return (*parts, *([(Pair("remove", 1.0, 1 / gdp), 1)] if gdp > 0 else []))
