"""The law of the privacy loss L of one release tilted by e^{tau L}: its log moment, and the choice of the tilt tau.

M(tau) = E_P e^{tau L} is the moment of the loss, and K = log M its cumulant function, computed with an error bound. The
tilt is the real part of the complex numbers over which `contour` integrates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpzero_theory.bisection import halved, outward
from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.analytic.quadrature import Contour, LossLaw, build, glance, log_moment_floor
from dpzero_theory.privacy.certified.laws.arithmetic import UNIT, log_sum
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.laws.parts import OneOf, Parts, expected

_LOG_PRICE = 5.0
"""A tau smaller than the saddle, which needs fewer nodes, is chosen if the log of the integrand at t = 0 is there
larger than at the saddle by at most this."""
_TAIL_ERROR = 1e-12
"""A bound on the relative error of `Pair.missing`, the probability under P of the outputs that a pair leaves out."""
_LOG_GLANCE = -30.0
"""About the log of the relative error of the moments that guide a search."""
_SPIKY = 0.25
"""If one quadrature node has more than this share of the tilted mass, the nodes of `quadrature.glance` are too coarse
even for a search."""
_LOG_BEYOND = 50.0
"""If the log of the integrand at t = 0 is above this, tau is certainly larger than the saddle."""


@dataclass(frozen=True)
class Tilted:
    """The law of the loss L of one pair under the tilted law P e^{tau L} / M(tau), where M(tau) = E_P e^{tau L}.

    law: the law of the loss before it is tilted.
    steps: the number of releases of the pair.
    cumulant: K(tau) = log M(tau).
    mean, variance: those of the loss under the tilted law.
    weights: the tilted masses of the nodes of `law`.
    centred: the losses at the nodes, minus the mean.
    """

    law: LossLaw
    steps: int
    cumulant: float
    mean: float
    variance: float
    weights: Array
    centred: Array


def tilt(law: LossLaw, steps: int, tau: float) -> Tilted:
    """The law of the loss L of one release, tilted by e^{tau L}; `steps` is the number of such releases in the
    composition."""
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
    """Whether the moment M(tau) = E e^{tau L} of a pair's privacy loss L should be computed from E (e^{tau L} - 1).

    M(tau) is 1 minus the mass that is left out plus that mean. The rounding errors are smaller so if log M(tau),
    `cumulant`, is small. It is possible if no outputs are left out at the low end.
    """
    return cumulant < 1 and pair.start == -math.inf


@dataclass(frozen=True)
class Blend:
    """The tilted law P e^{tau L} / M(tau) of one release that may be of one of several kinds by chance (`parts.OneOf`).

    L is the privacy loss of the release, w_k the chance of the kind k, M_k(tau) its moment E e^{tau L}, and M(tau) the
    sum of the w_k M_k(tau).

    kinds: the tilted law of each kind. shares: the probability w_k M_k(tau) / M(tau) of each kind under the tilted law.
    steps, cumulant, mean, variance: as in `Tilted`, for the whole. third: the third central moment of the loss.
    """

    kinds: tuple[Tilted, ...]
    shares: Array
    steps: int
    cumulant: float
    mean: float
    variance: float
    third: float


def blend(kinds: Sequence[tuple[float, Tilted]]) -> Blend:
    """The tilted law of a release of one of several kinds, from the chance and the tilted law of each kind."""
    laws = tuple(part for _, part in kinds)
    thirds = [float(part.weights @ (part.centred * part.centred * part.centred)) for part in laws]
    if len(laws) == 1:
        (one,) = laws
        return Blend(laws, np.ones(1), one.steps, one.cumulant, one.mean, one.variance, thirds[0])
    logs = [math.log(chance) + part.cumulant for chance, part in kinds]
    total = log_sum(np.array(logs), 0.0, np.zeros(len(logs)))
    if all(part.cumulant < 1 for part in laws):
        total = math.log1p(math.fsum([-1.0, *(c for c, _ in kinds), *(c * math.expm1(p.cumulant) for c, p in kinds)]))
    shares = np.exp(np.array(logs) - total)
    mean = math.fsum(share * part.mean for share, part in zip(shares, laws, strict=True))
    variance = third = 0.0
    for share, part, cube in zip(shares, laws, thirds, strict=True):
        beyond = part.mean - mean
        variance += share * (part.variance + beyond**2)
        third += share * (cube + 3 * part.variance * beyond + beyond**3)
    return Blend(laws, shares, laws[0].steps, total, mean, variance, third)


def tilt_all(parts: Parts, tau: float, log_tolerance: float, contour: Contour | None = None) -> list[Blend]:
    """For each pair in `parts`, the law of its privacy loss L tilted by e^{tau L}, tau > 0: P e^{tau L} / M(tau), where
    M(tau) = E_P e^{tau L}.

    log_tolerance: the natural log of the quadrature error of M(tau + i t) that `build` aims at, as a share of M(tau);
    the error is about this large, and no bound on it is promised. contour: the points tau + i t at which moments are
    wanted; tau alone if None.
    """

    def law(pair: Pair, steps: int) -> Tilted:
        return tilt(build(pair, contour or Contour(tau), log_tolerance), steps, tau)

    return [blend([(chance, law(kind, steps)) for chance, kind in pair.kinds]) for pair, steps in parts]


def glanced(parts: Parts, tau: float) -> list[Blend]:
    """For each pair in `parts`, about the law of its loss tilted by `tau`. Moments have a relative error of about
    e^-30, which is not bounded; it takes less time than `tilt_all`."""

    def law(pair: Pair, steps: int) -> Tilted:
        part = tilt(glance(pair, tau, _LOG_GLANCE), steps, tau)
        spiky = float(np.max(part.weights)) > _SPIKY
        return tilt(build(pair, Contour(tau), _LOG_GLANCE), steps, tau) if spiky else part

    return [blend([(chance, law(kind, steps)) for chance, kind in pair.kinds]) for pair, steps in parts]


def saddle(epsilon: float, parts: Parts, gdp: float) -> float:
    """About the saddle: the tau > 0 at which the integrand of delta(epsilon) at t = 0 is least.

    parts: the dominating pairs j of single releases, each with its number T_j of releases. gdp: the mu >= 0 of Gaussian
    DP of the full-batch releases in the same composition (0 for none). The log of the integrand is sum_j T_j K_j(tau) +
    gdp^2 tau (tau + 1)/2 - tau epsilon - log(tau (tau + 1)), where K_j(tau) is the log of E_P e^{tau L} for the pair j.
    Any tau > 0 gives a bracket that holds; a good one gives a narrow bracket. Where large losses are rare, K is all but
    flat and then rises like a wall. Just before the wall the tilted law has two modes far apart, so that its
    characteristic function hardly decays, and there is no room for the second alias (derivation.md, section 2). There
    0.8 or 0.9 of the saddle, which is returned instead, needs 10 to 300 times fewer nodes.
    """

    def moments(tau: float) -> tuple[float, float, float, float]:
        """The log of the integrand at tilt tau and t = 0, and the mean, variance and third central moment of the total
        tilted loss."""
        tilted = glanced(parts, tau)
        height = math.fsum(p.steps * p.cumulant for p in tilted) + gdp**2 * tau * (tau + 1) / 2
        mean = math.fsum(p.steps * p.mean for p in tilted) + gdp**2 * (tau + 0.5)
        variance = math.fsum(p.steps * p.variance for p in tilted) + gdp**2
        third = math.fsum(p.steps * p.third for p in tilted)
        height -= tau * epsilon + math.log(tau * (tau + 1))
        return height, mean, variance, third

    # The functions of `bisection` are not used here: a value takes long, and its moments give the derivative too, so
    # that Newton's steps find the root in fewer values.
    low, high, flat = 0.0, math.inf, False
    tau = _gaussian_saddle(epsilon, parts, gdp)

    def reachable(tau: float) -> bool:
        """Whether tau may be at most the saddle that is sought; else it is certainly larger."""
        least = 0.0
        for pair, steps in parts:
            floors = [math.log(chance) + log_moment_floor(kind, tau) for chance, kind in pair.kinds]
            least += steps * float(np.logaddexp.reduce(floors))
        return least <= tau * epsilon + _LOG_BEYOND

    if not any(kind.partial for pair, _ in parts for _, kind in pair.kinds):
        tau = outward(reachable, tau, -tau / 2, growth=0.5)[1]
    for _ in range(200):
        height, mean, variance, third = moments(tau)
        flat = 0.15 * tau * abs(third) < 0.2 * variance
        wanted, bend = epsilon + 1 / tau + 1 / (1 + tau), 1 / tau**2 + 1 / (1 + tau) ** 2
        value = mean - wanted
        low, high = (low, tau) if value > 0 else (tau, high)
        if value * value < 0.02 * (variance + bend) or high - low < 1e-3 * low:
            break
        if mean > 0:  # Newton's step for the log of the mean loss, as the mean may rise exponentially in tau
            change = -math.log(mean / wanted) / (variance / mean + bend / wanted)
        else:
            change = -value / (variance + bend)
        # Where the variance of the tilted loss changes fast with tau (not `flat`), tau is raised in small steps.
        new = min(max(tau + change, tau / 4), (5 if flat else 1.7) * tau)
        if not low < new < high:
            new = math.sqrt(low * high) if low > 0 else tau / 4
        tau = new
    for share in () if flat else (0.8, 0.9):
        if moments(share * tau)[0] < height + _LOG_PRICE:
            return share * tau
    return tau


def _gaussian_saddle(epsilon: float, parts: Parts, gdp: float) -> float:
    """The tau at which the integrand of delta(epsilon) at t = 0 would be least if the total loss were normal
    (`saddle`).

    The variance of the loss is taken to be that for small sample rates. parts: the dominating pairs of single releases,
    each with its number of releases. gdp: the mu >= 0 of Gaussian DP of the full-batch releases in the same composition
    (0 for none).
    """
    square = gdp**2
    for pair, steps in expected(parts):
        inverse = min(pair.noise**-2, 50.0)
        chi = math.expm1(inverse) if pair.kind != "replace" else 4 * math.sinh(inverse)
        square += steps * pair.sample_rate**2 * chi

    def early(tau: float) -> bool:
        return square * (tau + 0.5) <= epsilon + 1 / tau + 1 / (1 + tau)

    return halved(early, 1e-3, 1e3, middle=lambda low, high: math.sqrt(low * high) if high > 1.02 * low else low)[0]


def cumulant_error(part: Tilted, tau: float) -> float:
    """A bound on the absolute error, from quadrature and rounding, of `part.cumulant`.

    That is the log of the moment E e^{tau L} of the privacy loss L, where tau is the tilt of `part`.
    """
    law = part.law
    scale = math.exp(-part.cumulant)
    quadrature = math.exp(law.quadrature_error(Contour(tau)) - part.cumulant)
    shifted = abs(tau) * float(part.weights @ law.loss_error)
    if _near_one(law.pair, part.cumulant):
        mass = np.exp(law.log_mass)
        moved = np.abs(np.exp(np.minimum(law.log_mass + tau * law.loss, 700.0)) - mass)
        weighted = float(moved @ (law.mass_error + 8 * UNIT)) * scale
        quadrature += (math.exp(law.quadrature_error(Contour(0.0))) + _TAIL_ERROR * law.pair.missing) * scale
    else:
        weighted = float(part.weights @ (law.mass_error + 8 * UNIT * (1 + abs(tau) * np.abs(law.loss))))
    return quadrature + shifted + weighted + 8 * UNIT * abs(part.cumulant)


def blend_error(whole: Blend, tau: float) -> float:
    """A bound on the absolute error, from quadrature and rounding, of `whole.cumulant`. tau: the tilt."""
    if len(whole.kinds) == 1:
        return cumulant_error(whole.kinds[0], tau)
    errors = math.fsum(
        share * math.expm1(min(cumulant_error(part, tau) + 8 * UNIT * (1 + abs(part.cumulant)), 700.0))
        for share, part in zip(whole.shares, whole.kinds, strict=True)
    )
    return 1.01 * errors + 32 * UNIT * (1 + abs(whole.cumulant))


def cumulant(pair: Pair | OneOf, tau: float) -> tuple[float, float]:
    """The log moment K(tau) = log E_P exp(tau L) of the privacy loss L of one release of a pair, and a bound on its
    absolute error.

    tau: > 0.

    Raises:
        OverflowError: too many quadrature nodes would be needed.
    """
    (part,) = tilt_all(((pair, 1),), tau, math.log(1e-16))
    return part.cumulant, blend_error(part, tau)
