"""About delta(epsilon), for little: the loss laws by short Gauss-Legendre sums, and where large losses begin.

Nothing here is certified: it chooses tilts, grids and cuts, of which any are correct.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri_exp

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.cells import Cells, Span, cells
from dpzero_theory.privacy.certified.contour import log_c
from dpzero_theory.privacy.certified.convolution import log_sum
from dpzero_theory.privacy.certified.pairs import Pair
from dpzero_theory.privacy.certified.quadrature import gauss, losses

_LEAST, _MOST = -1e4, -1.0
"""Range of logs of the probability of large losses."""
FEW = 50
"""Batches with the record, on average, from which no losses are rare."""
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


def rough_log_delta(epsilon: float, parts: Sequence[tuple[Pair, int]], gdp: float = 0.0) -> float:
    """Log of about delta(epsilon), mostly too large by a small factor; always finite."""
    return balance(epsilon, everything(parts, gdp), 0.02)[1]


def rough_cut(epsilon: float, parts: Sequence[tuple[Pair, int]], gdp: float) -> tuple[float, float]:
    """(log of 2 steps Phi(-reach), log of about delta): the reach beyond which outputs are well counted apart."""
    return balance(epsilon, everything(parts, gdp), 0.5)


def split(epsilon: float, parts: Sequence[tuple[Pair, int]], log_cut: float) -> tuple[float, float]:
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
def balance(epsilon: float, parts: tuple[tuple[Pair, int], ...], accuracy: float) -> tuple[float, float]:
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


def everything(parts: Sequence[tuple[Pair, int]], gdp: float) -> tuple[tuple[Pair, int], ...]:
    return (*parts, *([(Pair("remove", 1.0, 1 / gdp), 1)] if gdp > 0 else []))
