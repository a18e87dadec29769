"""A law with finitely many outcomes in place of the law of the privacy loss L of a `Pair`, with bounds on every error.

`build` covers the line of outputs x with panels, each with a 16-point Gauss-Legendre rule, so that the moment M(z) =
E_P exp(z L) at a complex z = tau + i t becomes a finite sum over nodes. `LossLaw` has the nodes. It has bounds on the
quadrature error (by Bernstein ellipses), on the mass beyond the panels (by Gaussian tails) and on the rounding error of
every node. The integral over x may be moved to a parallel line of complex outputs, where the integrand of a large t is
smaller. A is the density ratio of the module `pairs`, B(x) = A(-x), s the noise and q the sample rate. Derived in
derivation.md, sections 4 to 6.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.laws.arithmetic import GAUSS_ORDER, GAUSS_POINTS, GAUSS_WEIGHTS, LOG_SQRT_2PI, UNIT
from dpzero_theory.privacy.certified.laws.pairs import Branch, Pair, losses, rounding

_ELLIPSES = np.array([1.3, 1.6, 2.0, 2.6, 3.4, 4.5, 6.0, 8.0, 11.0, 15.0])[:, None]
"""The Bernstein ellipses that are tried for each panel, by the sum of their half axes in units of half the panel's
length; the one with the smallest error bound is used."""
_MAX_PANELS = 3_000
"""The most panels of a branch: more would take longer than the methods that the router tries next."""
_SMALL_POWER = 1.0
"""A power A^a, a < 0, of the density ratio A >= 1 - q is bounded by (1 - q)^a if the log of that bound is below this,
else by Jensen's inequality."""


def _moment_terms(pair: Pair, branch: Branch, tau: float) -> list[tuple[float, float]]:
    """The terms (log c, beta) of a bound A(x)^a B(x)^b <= sum of c exp(beta x / s^2).

    A^a B^b is the factor of the normal density N(0, s^2) in the integrand of the moment M(tau) on one branch of the
    pair (`pairs.Branch`, which has the density ratio A(x) and B(x) = A(-x)); s is the noise. Each of the powers a and b
    must be at least 1 or at most 0.
    """
    q, s = pair.sample_rate, pair.noise
    keep, take = (math.log1p(-q) if q < 1 else -math.inf), math.log(q)

    def terms(power: float, sign: float) -> list[tuple[float, float]]:
        if power <= 0 and (power * keep < _SMALL_POWER or (q < 1 and power < -_MAX_PANELS / 4 * s)):
            return [(power * keep, 0.0)]  # (1 - q)^power >= A^power, as A >= 1 - q and power <= 0
        return [(keep, 0.0), (take - power / (2 * s * s), sign * power)]  # a bound by Jensen's inequality

    a, b = branch.a + branch.a_slope * tau, branch.b_slope * tau
    first = terms(a, 1.0)
    if b == 0:
        return first
    second = terms(b, -1.0)
    return [(c1 + c2, b1 + b2) for c1, b1 in first for c2, b2 in second]


def log_moment_floor(pair: Pair, tau: float) -> float:
    """A lower bound on the log of the moment M(tau) = E_P e^{tau L} of one release, for tau > 0 or tau <= -1.

    L is the privacy loss, q the sample rate and s the noise. For a pair without some of its outputs (`Pair.partial`) it
    is a rough log M(tau) instead. M >= 1 by Jensen's inequality. With c = 1 + tau and the density ratio A,
    M >= E A^c / 2 >= q^c exp((c^2 - c)/(2 s^2)) / 2.
    """
    if pair.partial:
        return max(_log_peak(pair, branch, tau) for branch in pair.branches)
    if pair.kind == "add" or tau < 0:
        return 0.0
    c = 1 + tau
    return max(0.0, c * math.log(pair.sample_rate) + (c * c - c) / (2 * pair.noise**2) - math.log(2))


def _log_peak(pair: Pair, branch: Branch, tau: float) -> float:
    """A rough log of the moment M(tau) = E_P e^{tau L} on one branch of the pair, mostly too small.

    L is the privacy loss. The outputs are cut into 400 intervals, and the log of the largest interval's contribution is
    returned.
    """
    s = pair.noise
    a, b = branch.a + branch.a_slope * tau, branch.b_slope * tau
    low = max(branch.start, min(-b, 0.0) - 12 * s)
    high = min(branch.stop, max(low, 0.0, a) + max(-b, 0.0) + 12 * s)
    x = np.linspace(low, high, 401)
    log_f = -x * x / (2 * s * s) + a * pair.log_mixture(x)
    if b:
        log_f = log_f + b * pair.log_mixture(-x)
    return float(np.max(log_f)) + math.log((x[1] - x[0]) / s) - LOG_SQRT_2PI


def support(pair: Pair, branch: Branch, tau: float, log_tolerance: float) -> tuple[float, float]:
    """An interval of outputs x on one branch of a pair, beyond which the moment M(tau) = E_P e^{tau L} has little mass.

    L is the privacy loss. Each term of the bound by `_moment_terms` integrates to less than exp(log_tolerance) outside
    it.
    """
    s = pair.noise
    low, high = 0.0, 1.0
    for log_c, beta in _moment_terms(pair, branch, tau):
        k = math.sqrt(2 * max(log_c + beta * beta / (2 * s * s) - log_tolerance, 1.0))
        low, high = min(low, beta - s * k), max(high, beta + s * k)
    return max(low, branch.start), high if branch.stop == math.inf else branch.stop


def _odds(pair: Pair, x: Array) -> Array:
    """The odds, given the output x of this pair, that the batch holds the record: the probability that it does over the
    rest."""
    u = (2 * x - 1) / (2 * pair.noise**2)
    return np.exp(np.clip(math.log(pair.sample_rate) - math.log1p(-pair.sample_rate) + u, -700.0, 700.0))


def _argument(pair: Pair, x: Array, angle: Array) -> Array:
    """The polar angle of the pair's density ratio A at the complex output x + i s^2 angle, with s the noise and 0 <=
    angle < pi.

    It rises in x; in `angle` it rises and then falls.
    """
    odds = _odds(pair, x)
    result: Array = np.arctan2(odds * np.sin(angle), 1 + odds * np.cos(angle))
    return result


def _largest_argument(pair: Pair, x: Array, angle: Array) -> Array:
    """The largest polar angle of the pair's density ratio A(x + i s^2 phi) over 0 <= phi <= angle, with s the noise."""
    odds = _odds(pair, x)
    return np.where(np.cos(angle) >= -odds, _argument(pair, x, angle), np.arcsin(np.minimum(odds, 1.0)))


def _log_dip(pair: Pair, x: Array, angle: Array) -> Array:
    """The log of a lower bound on |A(y + i s^2 phi)| / A(y) for all y <= x and |phi| <= angle < pi.

    A is the pair's density ratio and s its noise. |A(y + i s^2 phi)|^2 = A(y)^2 (1 - 4 p (1 - p) sin^2(phi/2)), where p
    is `Pair.posterior` at y, which increases in y.
    """
    p = np.minimum(pair.posterior(x, pair.log_mixture(x)), 0.5)
    result: Array = 0.5 * np.log1p(-4 * p * (1 - p) * np.sin(angle / 2) ** 2)
    return result


def _panel_errors(pair: Pair, branch: Branch, panels: tuple[Array, Array], contour: "Contour") -> Array:
    """For each panel the log of a bound on its Gauss-Legendre error, for all z of the contour.

    panels: the lower and the upper ends of the panels on this branch of the pair.
    """
    s, tau = pair.noise, contour.tau
    low, high = panels
    centre, radius = (low + high) / 2, (high - low) / 2
    reach = radius * (_ELLIPSES + 1 / _ELLIPSES) / 2
    left, right = centre - reach, centre + reach
    spread = radius * (_ELLIPSES - 1 / _ELLIPSES) / 2 / s**2
    widest = spread + contour.angle
    analytic = widest < 3.0
    widest = np.minimum(widest, 3.0)
    turned = contour.angle - spread
    nearest = np.maximum(np.maximum(left, -right), 0.0)
    log_sup = (-(nearest**2) + (widest * s**2) ** 2) / (2 * s * s) - LOG_SQRT_2PI - math.log(s)

    def largest(power: float, slope: float, smallest_x: Array, largest_x: Array) -> Array:
        """An upper bound on log |A(x + i y)^(power + i slope t)| over a panel's ellipse and over the t of the contour.

        A is the density ratio of the pair. power, slope: the two numbers in the exponent. smallest_x, largest_x: the
        ends of the ellipse on the real line, for each panel.
        """
        if power > 0:
            modulus = pair.log_mixture(largest_x)
        else:
            modulus = pair.log_mixture(smallest_x) + _log_dip(pair, largest_x, widest)
        if contour.t_high == 0:
            return power * modulus
        least = np.minimum(_argument(pair, smallest_x, np.maximum(turned, 0.0)), _argument(pair, smallest_x, widest))
        growth = _largest_argument(pair, largest_x, np.clip(-turned, 0.0, 3.0))
        phase = np.where(turned >= 0, -contour.t_low * least, contour.t_high * growth)
        return power * modulus + abs(slope) * phase

    log_sup = log_sup + largest(branch.a + branch.a_slope * tau, branch.a_slope, left, right)
    if branch.b_slope:
        log_sup = log_sup + largest(branch.b_slope * tau, branch.b_slope, -right, -left)
    bound = log_sup - 2 * GAUSS_ORDER * np.log(_ELLIPSES) - np.log1p(-(_ELLIPSES**-2)) + math.log(64 / 15)
    result: Array = np.log(radius) + np.min(np.where(analytic, bound, np.inf), axis=0)
    return result


@dataclass(frozen=True)
class Contour:
    """The values of z = tau + i t with t_low <= t <= t_high, and the line of outputs on which their integrals run.

    The outputs are x + i s^2 angle with real x (for the kind `add`: x - i s^2 angle), where s is the noise.
    """

    tau: float
    t_low: float = 0.0
    t_high: float = 0.0
    angle: float = 0.0


def _shift_cost(pair: Pair, branch: Branch, contour: Contour) -> float:
    """The log of a factor, for one branch of a pair, by which shifting the line of outputs may enlarge the integrand.

    It is the largest quotient of the absolute integrand at t = 0 on the contour's shifted line to that on the real
    line.
    """
    powers = (branch.a + branch.a_slope * contour.tau, branch.b_slope * contour.tau)
    cosine = math.log(math.cos(contour.angle / 2))
    return (contour.angle * pair.noise) ** 2 / 2 + sum(min(power, 0.0) * cosine for power in powers)


def glance(pair: Pair, tau: float, log_tolerance: float) -> "LossLaw":
    """The law of a pair's loss as finitely many nodes, on panels of at most two standard deviations of the noise. No
    bound on its error is computed.

    Such a law serves to guide searches. It covers the outputs but for about the share e^{log_tolerance} of the moment
    M(tau) = E_P e^{tau L}, with L the loss.

    Raises:
        OverflowError: more than 3,000 panels would be needed.
    """
    panels = []
    for branch in pair.branches:
        start, stop = support(pair, branch, tau, log_tolerance + log_moment_floor(pair, tau))
        count = math.ceil((stop - start) / (2 * pair.noise))
        if count > _MAX_PANELS:
            raise OverflowError("too many quadrature panels")
        edges = np.linspace(start, stop, count + 1)
        panels.append((edges[:-1], edges[1:]))
    return LossLaw(pair, Contour(tau), tuple(panels))


def build(pair: Pair, contour: Contour, log_tolerance: float) -> "LossLaw":
    """The law of a pair's loss as finitely many nodes, on panels so short that the error of its moment is small.

    The moment M(z) = E_P exp(z L) of the loss L has an error that is about exp(log_tolerance) M(tau) at most;
    `LossLaw.quadrature_error` gives a bound on it. contour: the z = tau + i t at which it is needed.

    Raises:
        OverflowError: more than 3,000 panels would be needed.
    """
    panels = []
    log_tolerance += log_moment_floor(pair, contour.tau)
    for branch in pair.branches:
        start, stop = support(pair, branch, contour.tau, log_tolerance - _shift_cost(pair, branch, contour))
        count = math.ceil((stop - start) / pair.noise)
        if count > _MAX_PANELS:
            raise OverflowError("too many quadrature panels")
        edges = np.linspace(start, stop, count + 1)
        low, high = edges[:-1], edges[1:]
        good: list[tuple[Array, Array]] = []
        while True:
            bad = _panel_errors(pair, branch, (low, high), contour) > log_tolerance - math.log(count)
            good.append((low[~bad], high[~bad]))
            if not bad.any():
                break
            count += int(bad.sum())
            if count > _MAX_PANELS:
                raise OverflowError("too many quadrature panels")
            middle = (low[bad] + high[bad]) / 2
            low, high = np.concatenate([low[bad], middle]), np.concatenate([middle, high[bad]])
        low, high = (np.concatenate(ends) for ends in zip(*good, strict=True))
        order = np.argsort(low)
        panels.append((low[order], high[order]))
    return LossLaw(pair, contour, tuple(panels))


def decay(pair: Pair, tau: float, angles: Sequence[float], t: Array) -> Array:
    """For each t the log of a bound on |E_P e^{(tau + i t') L}|, with L the loss of a pair, that holds for all t' >= t.

    There is one row for each entry of `angles`, by the integral along the line of complex outputs x + i s^2 angle, with
    s the noise. On the line at angle theta the modulus of the integrand is at most N(0,s^2)(x) e^{theta^2 s^2/2} |A|^a
    |B|^b exp(-t arg A - t arg B), where A is the density ratio, B(x) = A(-x), and a, b are their powers at tau. That is
    bounded on each of 400 intervals of x by monotonicity.
    """
    s = pair.noise
    (branch,) = pair.branches
    a, b = branch.a + branch.a_slope * tau, branch.b_slope * tau
    log_tolerance = -60.0 + log_moment_floor(pair, tau)
    start, stop = support(pair, branch, tau, log_tolerance)
    x = np.linspace(start, stop, 401)
    left, right = x[:-1], x[1:]
    edges = np.where(left > 0, -left, right) / s, np.where(left > 0, -right, left) / s
    log_mass = log_ndtr(edges[0]) + np.log(-np.expm1(np.minimum(log_ndtr(edges[1]) - log_ndtr(edges[0]), -1e-300)))
    rows = []
    for angle in angles:
        turn, modulus = np.zeros(400), log_mass + (angle * s) ** 2 / 2
        for power, low, high in ((a, left, right), (b, -right, -left)):
            if power == 0:
                continue
            dip = _log_dip(pair, high, np.asarray(angle)) if power < 0 else 0.0
            modulus = modulus + power * (pair.log_mixture(high if power > 0 else low) + dip)
            turn = turn + _argument(pair, low, np.asarray(angle))
        inside = np.logaddexp.reduce(modulus - t[:, None] * turn, axis=1)
        outside = log_tolerance + math.log(8) + _shift_cost(pair, branch, Contour(tau, angle=angle))
        rows.append(np.logaddexp(inside, outside) + 1e-9)
    return np.array(rows)


@dataclass(frozen=True)
class LossLaw:
    """The law of the privacy loss of `pair` with finitely many outcomes: losses L_i with masses p_i = exp(log_mass_i)
    under P, the pair's first law.

    contour: the values of z for which the panels were chosen.
    panels: for each branch of the pair the lower and the upper ends of its panels.
    """

    pair: Pair
    contour: Contour
    panels: tuple[tuple[Array, Array], ...]

    @cached_property
    def _nodes(self) -> list[tuple[Branch, Array, Array]]:
        """For each branch of the pair its nodes x, and the logs of their quadrature weights over sqrt(2 pi) s, s the
        noise."""
        nodes = []
        for branch, (low, high) in zip(self.pair.branches, self.panels, strict=True):
            centre, radius = (low + high) / 2, (high - low) / 2
            x = (centre[:, None] + radius[:, None] * GAUSS_POINTS).ravel()
            width = np.log((radius[:, None] * GAUSS_WEIGHTS).ravel() / self.pair.noise) - LOG_SQRT_2PI
            nodes.append((branch, x, width))
        return nodes

    @cached_property
    def _values(self) -> tuple[Array, Array]:
        parts = [losses(self.pair, *node) for node in self._nodes]
        if self.pair.atom > 0:
            parts.append((np.zeros(1), np.log(np.array([self.pair.atom]))))
        loss, log_mass = (np.concatenate(column) for column in zip(*parts, strict=True))
        return loss, log_mass

    @cached_property
    def _errors(self) -> tuple[Array, Array]:
        parts = [rounding(self.pair, *node) for node in self._nodes]
        if self.pair.atom > 0:
            parts.append((np.zeros(1), np.full(1, 24 * UNIT)))
        loss_error, mass_error = (np.concatenate(column) for column in zip(*parts, strict=True))
        return loss_error, mass_error

    def refined(self, width: float) -> "LossLaw":
        """The law of the same loss with more nodes: its panels are cut into ones that are at most `width` long, in the
        unit of the outputs."""
        panels = []
        for low, high in self.panels:
            pieces = np.maximum(np.ceil((high - low) / width), 1).astype(np.int64)
            part = np.repeat((high - low) / pieces, pieces)
            start = np.repeat(low, pieces) + part * (
                np.arange(len(part)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
            )
            panels.append((start, np.append(start[1:], high[-1])))
        return LossLaw(self.pair, self.contour, tuple(panels))

    @property
    def loss(self) -> Array:
        """The privacy losses L_i at the nodes of the quadrature rule."""
        return self._values[0]

    @property
    def log_mass(self) -> Array:
        """The logs of the masses p_i under P, the pair's first law, that the nodes of the quadrature rule stand for."""
        return self._values[1]

    @property
    def loss_error(self) -> Array:
        """Bounds on the absolute rounding errors of the losses at the nodes."""
        return self._errors[0]

    @property
    def mass_error(self) -> Array:
        """Bounds on the relative rounding errors of the masses at the nodes."""
        return self._errors[1]

    def shifted(self) -> tuple[NDArray[np.complex128], NDArray[np.complex128], Array, Array]:
        """The losses, the log masses, and bounds on the rounding errors of both, at the nodes on the contour's line of
        complex outputs."""
        pair, s = self.pair, self.pair.noise
        q, angle = pair.sample_rate, self.contour.angle
        if angle == 0:
            real = self.loss.astype(np.complex128), self.log_mass.astype(np.complex128)
            return (*real, self.loss_error, self.mass_error)
        ((branch, x, width),) = self._nodes
        height = angle * math.copysign(1.0, branch.a_slope)
        log_a = pair.log_mixture_shifted(x, height)
        gaussian = -((x + 1j * s * s * height) ** 2) / (2 * s * s)
        loss = branch.a_slope * log_a

        def error(y: Array, log_mixture: NDArray[np.complex128]) -> Array:
            u = (2 * y - 1) / (2 * s * s)
            post = np.exp(np.minimum(math.log(q) + u - log_mixture.real, 2.0))
            coarse = np.where(u > -math.log(q), abs(math.log(q)), 0.0)
            size: Array = 64 * UNIT * (np.abs(log_mixture) + (2 + np.abs(u)) * post + coarse)
            return size

        loss_error = error(x, log_a)
        if branch.b_slope:
            log_b = pair.log_mixture_shifted(-x, -height)
            loss = loss + branch.b_slope * log_b
            loss_error = loss_error + error(-x, log_b)
        mass_error = UNIT * (24 + 8 * np.abs(gaussian) + 4 * np.abs(width) + 4 * np.abs(branch.a * log_a))
        return loss, gaussian + width + branch.a * log_a, loss_error, mass_error + branch.a * loss_error

    def quadrature_error(self, contour: Contour) -> float:
        """The log of a bound on |M(z) - sum_i p_i exp(z L_i)| for all z of `contour`, whose angle must be that of this
        law.

        M(z) is the exact moment of the loss, and the sum is that over this law's nodes.
        """
        pair, s = self.pair, self.pair.noise
        logs = []
        for branch, panels in zip(pair.branches, self.panels, strict=True):
            logs.append(_panel_errors(pair, branch, panels, contour))
            low, high = panels[0][0], panels[1][-1]
            for log_c, beta in _moment_terms(pair, branch, contour.tau):
                scale = log_c + beta * beta / (2 * s * s) + _shift_cost(pair, branch, contour)
                tails = [scale + log_ndtr((beta - high) / s)] if branch.stop == math.inf else []
                if branch.start == -math.inf:
                    tails.append(scale + log_ndtr((low - beta) / s))
                logs.append(np.array(tails))
        return float(np.logaddexp.reduce(np.concatenate(logs)))
