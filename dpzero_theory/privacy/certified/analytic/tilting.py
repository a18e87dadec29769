"""The loss law tilted by e^{tau L}: its cumulant with an error bound, and the tau at which to integrate."""

import math
from dataclasses import dataclass

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.analytic.quadrature import Contour, LossLaw, build, glance, log_moment_floor
from dpzero_theory.privacy.certified.laws.pairs import Pair, Parts

_UNIT = 2.0**-53
_PRICE = 5.0
"""Log of the precision that is given for fewer nodes."""
_MISSING = 1e-12
"""Relative error of a Gaussian tail, with room."""
_GLANCE, _SPIKY = -30.0, 0.25
"""Log of the error with which a search is guided, and the largest share of a node beyond which panels are refined."""
_BEYOND = 50.0
"""A height, in logs, that no saddle has."""


@dataclass(frozen=True)
class Tilted:
    """The loss law of one pair under P e^{tau L} / M(tau)."""

    law: LossLaw
    steps: int
    cumulant: float
    mean: float
    variance: float
    weights: Array
    centred: Array


def tilt(law: LossLaw, steps: int, tau: float) -> Tilted:
    exponent = law.log_mass + tau * law.loss
    top = float(np.max(exponent))
    v = np.exp(exponent - top)
    total = float(np.sum(v))
    cumulant = top + math.log(total)
    if _near_one(law.pair, cumulant):
        x = tau * law.loss
        small = np.abs(x) < 1
        excess = np.where(
            small, np.exp(law.log_mass) * np.expm1(np.where(small, x, 0.0)), np.exp(exponent) - np.exp(law.log_mass)
        )
        cumulant = math.log1p(float(np.sum(excess)) - law.pair.missing)
    v /= total
    mean = float(v @ law.loss)
    centred = law.loss - mean
    return Tilted(law, steps, cumulant, mean, float(v @ centred**2), v, centred)


def _near_one(pair: Pair, cumulant: float) -> bool:
    """Whether M(tau) is better taken as 1, less what is missing, and the rest."""
    return cumulant < 1 and pair.start == -math.inf


def tilt_all(parts: Parts, tau: float, log_tolerance: float) -> list[Tilted]:
    return [tilt(build(pair, Contour(tau), log_tolerance), steps, tau) for pair, steps in parts]


def glanced(parts: Parts, tau: float) -> list[Tilted]:
    """About `tilt_all`, for less: what is so found guides a search."""
    found = []
    for pair, steps in parts:
        part = tilt(glance(pair, tau, _GLANCE), steps, tau)
        spiky = float(np.max(part.weights)) > _SPIKY
        found.append(tilt(build(pair, Contour(tau), _GLANCE), steps, tau) if spiky else part)
    return found


def saddle(epsilon: float, parts: Parts, gdp: float) -> float:
    """A point near the minimiser over tau > 0 of sum T_j K_j(tau) + gdp^2 tau(tau+1)/2 - tau epsilon - log tau(tau+1).

    Any tau > 0 gives a correct bracket; a good one a narrow bracket. K can be all but flat and then rise like a
    wall (rare events). Just before the wall the tilted law has two far modes, so that its characteristic function
    hardly decays, and there is no room for the second alias: 0.8 or 0.9 of the saddle need 10 to 300 times fewer nodes.
    """

    def moments(tau: float) -> tuple[float, float, float, float]:
        """The height, the mean loss, its variance and third moment."""
        tilted = glanced(parts, tau)
        height = math.fsum(p.steps * p.cumulant for p in tilted) + gdp**2 * tau * (tau + 1) / 2
        mean = math.fsum(p.steps * p.mean for p in tilted) + gdp**2 * (tau + 0.5)
        variance = math.fsum(p.steps * p.variance for p in tilted) + gdp**2
        third = math.fsum(p.steps * float(p.weights @ (p.centred * p.centred * p.centred)) for p in tilted)
        height -= tau * epsilon + math.log(tau * (tau + 1))
        return height, mean, variance, third

    low, high, flat = 0.0, math.inf, False
    tau = _gaussian_saddle(epsilon, parts, gdp)
    # certainly beyond: there the height is above what it is near 0
    while (
        not any(pair.partial for pair, _ in parts)
        and math.fsum(steps * log_moment_floor(pair, tau) for pair, steps in parts) > tau * epsilon + _BEYOND
    ):
        tau /= 2
    for _ in range(200):
        height, mean, variance, third = moments(tau)
        flat = 0.15 * tau * abs(third) < 0.2 * variance
        wanted, bend = epsilon + 1 / tau + 1 / (1 + tau), 1 / tau**2 + 1 / (1 + tau) ** 2
        value = mean - wanted
        low, high = (low, tau) if value > 0 else (tau, high)
        if value * value < 0.02 * (variance + bend) or high - low < 1e-3 * low:
            break
        if mean > 0:  # Newton for the logarithms: the mean rises like an exponential at the wall
            change = -math.log(mean / wanted) / (variance / mean + bend / wanted)
        else:
            change = -value / (variance + bend)
        # only a little way up where K bends
        new = min(max(tau + change, tau / 4), (5 if flat else 1.7) * tau)
        if not low < new < high:
            new = math.sqrt(low * high) if low > 0 else tau / 4
        tau = new
    for share in () if flat else (0.8, 0.9):
        if moments(share * tau)[0] < height + _PRICE:
            return share * tau
    return tau


def _gaussian_saddle(epsilon: float, parts: Parts, gdp: float) -> float:
    """The saddle if the loss were Gaussian, of the variance that it has to first order in q."""
    square = gdp**2
    for pair, steps in parts:
        inverse = min(pair.noise**-2, 50.0)
        chi = math.expm1(inverse) if pair.kind != "replace" else 4 * math.sinh(inverse)
        square += steps * pair.sample_rate**2 * chi
    low, high = 1e-3, 1e3
    while high > 1.02 * low:
        tau = math.sqrt(low * high)
        low, high = (low, tau) if square * (tau + 0.5) > epsilon + 1 / tau + 1 / (1 + tau) else (tau, high)
    return low


def cumulant_error(part: Tilted, tau: float) -> float:
    """Bound on the error of K(tau) = log M(tau): quadrature and rounding."""
    law = part.law
    scale = math.exp(-part.cumulant)
    quadrature = math.exp(law.quadrature_error(Contour(tau)) - part.cumulant)
    shifted = abs(tau) * float(part.weights @ law.loss_error)
    if _near_one(law.pair, part.cumulant):
        mass = np.exp(law.log_mass)
        moved = np.abs(np.exp(np.minimum(law.log_mass + tau * law.loss, 700.0)) - mass)
        weighted = float(moved @ (law.mass_error + 8 * _UNIT)) * scale
        quadrature += (math.exp(law.quadrature_error(Contour(0.0))) + _MISSING * law.pair.missing) * scale
    else:
        weighted = float(part.weights @ (law.mass_error + 8 * _UNIT * (1 + abs(tau) * np.abs(law.loss))))
    return quadrature + shifted + weighted + 8 * _UNIT * abs(part.cumulant)


def cumulant(pair: Pair, tau: float) -> tuple[float, float]:
    """(K(tau), bound on its error): K(tau) = log E_P exp(tau L) of one release, tau > 0.

    Raises:
        OverflowError: too many quadrature nodes would be needed.
    """
    part = tilt(build(pair, Contour(tau), math.log(1e-16)), 1, tau)
    return part.cumulant, cumulant_error(part, tau)
