"""About delta(epsilon), for little: the loss laws by short Gauss-Legendre sums, and where large losses begin.

Nothing here is certified: it chooses tilts, grids and cuts, of which any are correct.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr, ndtri, ndtri_exp

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.laws.cells import Cells, Span, cells
from dpzero_theory.privacy.certified.laws.logarithms import log_c, log_sum
from dpzero_theory.privacy.certified.laws.pairs import Pair, Parts, losses

_LEAST, _MOST = -1e4, -1.0
"""Range of logs of the probability of large losses."""
_ORDER = 16
_POINTS, _WEIGHTS = np.polynomial.legendre.leggauss(_ORDER)
FEW = 50
"""Batches with the record, on average, from which no losses are rare."""
_LOUD = 0.5
"""Noise over the shift from which many rare losses may be far from a Gaussian."""
FAR = 40.0
"""How much less likely, in logs, are outputs that are left out altogether."""


@dataclass(frozen=True)
class Sketch:
    """The loss law by a Gauss-Legendre sum, steps times."""

    loss: Array
    log_mass: Array
    steps: int

    def tilted(self, tau: float) -> tuple[float, Array]:
        exponent = self.log_mass + tau * self.loss
        weights = np.exp(exponent - np.max(exponent))
        weights /= np.sum(weights)
        return float(weights @ self.loss), weights


@dataclass(frozen=True)
class Slice:
    """`steps` releases of `pair` with outputs in `span` only."""

    pair: Pair
    steps: int
    span: Span

    @property
    def largest_loss(self) -> float:
        """An upper bound on the loss: it is monotone in each branch."""
        ends = [(branch, np.array(self.span.interval(self.pair, branch))) for branch in self.pair.branches]
        found = max(float(np.max(losses(self.pair, branch, x, np.zeros(2))[0])) for branch, x in ends)
        return found + 1e-9 * abs(found) if math.isfinite(found) else math.inf

    def sketch(self, size: int) -> Sketch:
        pair, found = self.pair, []
        for branch in pair.branches:
            low, high = self.span.interval(pair, branch)
            if low < high:
                x, width = gauss(low, high, size)
                found.append(losses(pair, branch, x, np.log(width / (pair.noise * math.sqrt(2 * math.pi)))))
        if pair.atom > 0 and not self.span.outside:
            found.append((np.zeros(1), np.log([pair.atom])))
        if not found:
            raise OverflowError("no outputs in a slice")
        return Sketch(np.concatenate([f[0] for f in found]), np.concatenate([f[1] for f in found]), self.steps)

    def cells(self, tau: float, width: float, lowest: float) -> Cells:
        return cells(self.pair, tau, width, self.span, lowest)


def gauss(low: float, high: float, size: int) -> tuple[Array, Array]:
    """Nodes and weights of the composite rule on [low, high], about `size` of them."""
    edges = np.linspace(low, high, max(size // _ORDER, 1) + 1)
    centre, radius = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    return (centre[:, None] + radius[:, None] * _POINTS).ravel(), (radius[:, None] * _WEIGHTS).ravel()


def saddle(epsilon: float, sketches: Sequence[Sketch]) -> float:
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


def rough_log_delta(epsilon: float, parts: Parts, gdp: float = 0.0) -> float:
    """Log of about delta(epsilon), mostly too large by a small factor; always finite."""
    return balance(epsilon, everything(parts, gdp), 0.02)[1]


def rough_epsilon(target: float, parts: Parts, gdp: float = 0.0) -> tuple[float, float]:
    """(about epsilon, d log delta / d log epsilon there) at delta = target; the larger of two, each sharp somewhere.

    That of a Gaussian of the losses' variance, which many of them come near; and that of one batch with the record,
    where it is seldom in any: with probability p in one, delta = p delta'(x) where e^epsilon = 1 + q (e^x - 1).
    """
    variance, found = gdp * gdp, (0.0, -1.0)
    for pair, steps in parts:
        q = pair.sample_rate
        if pair.noise >= _LOUD:
            variance += steps * q * q * _spread(pair)
        used = -math.expm1(steps * math.log1p(-q)) if q < 1 else 1.0
        if target < used / 2:
            x, fall = _gaussian_epsilon(1 / pair.noise, target / used)
            near = math.log1p(q * math.expm1(x)) if x < 600 else x + math.log(q)
            found = max(found, (near, fall * near / (-math.expm1(-near) + q * math.exp(-near))))
    if variance > 0:
        all_of_them, fall = _gaussian_epsilon(math.sqrt(variance), target)
        found = max(found, (all_of_them, fall * all_of_them))
    return found[0], min(found[1], -1e-3)


def _spread(pair: Pair) -> float:
    """About the variance of the loss over q^2, for small q: that of the ratio of densities."""
    square, half = 1 / pair.noise**2, 0.5 / pair.noise
    if pair.kind == "replace":
        return 4 * math.sinh(square)
    if pair.kind == "fixed-size":
        return 2 * float(math.exp(square) * ndtr(3 * half) - 2 * ndtr(half) + ndtr(-half))
    return math.expm1(square)


def _gaussian_epsilon(mu: float, target: float) -> tuple[float, float]:
    """(epsilon, d log delta / d epsilon) of mu-GDP at delta = target, to about 1e-3, by Newton's method."""
    epsilon, fall = mu * (mu / 2 - float(ndtri(target))), -1.0
    for _ in range(8):
        if not epsilon > 0:
            return 0.0, -1.0
        first, second = (float(log_ndtr(side * mu / 2 - epsilon / mu)) for side in (1, -1))
        share = math.exp(min(epsilon + second - first, 0.0))
        if not share < 1:
            return epsilon, fall
        fall = -share / (1 - share)
        step = (first + math.log1p(-share) - math.log(target)) / fall
        epsilon -= step
        if abs(step) < 1e-3 * epsilon:
            break
    return epsilon, fall


def rough_cut(epsilon: float, parts: Parts, gdp: float) -> tuple[float, float]:
    """(log of 2 steps Phi(-reach), log of about delta): the reach beyond which outputs are well counted apart."""
    return balance(epsilon, everything(parts, gdp), 0.5)


def split(epsilon: float, parts: Parts, log_cut: float) -> tuple[float, float]:
    """Logs of two parts of delta, by sketches: what Chernoff's bound says where no step has a large loss, and what one
    large loss beside the others' mean says; e^{log_cut} bounds twice the probability of large losses."""
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
    """(log_cut, log of about delta) where the parts of `split` are equal; one falls in log_cut, the other rises.

    The first such place from below: sketches of few outputs are not monotone near the top.
    """

    def excess(log_cut: float) -> float:
        small, large = split(epsilon, parts, log_cut)
        return small - max(large, 2 * log_cut)

    below = _LEAST
    if excess(below) < 0:
        return _LEAST, _LEAST
    for above in -np.geomspace(-_LEAST, -_MOST, 14)[1:]:
        if excess(float(above)) < 0:
            log_cut = float(brentq(excess, below, float(above), xtol=accuracy))
            return log_cut, min(split(epsilon, parts, log_cut)[0] + math.log(2), 0.0)
        below = float(above)
    return _MOST, min(split(epsilon, parts, _MOST)[0], 0.0)


def everything(parts: Parts, gdp: float) -> Parts:
    return (*parts, *([(Pair("remove", 1.0, 1 / gdp), 1)] if gdp > 0 else []))
