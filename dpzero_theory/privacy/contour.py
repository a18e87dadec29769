"""Computes delta(epsilon) of many Gaussian releases with sampled batches by an integral, faster than on a `grid`. Let P
and Q be a release's distributions on two neighbouring data sets, and M(z) = E_P e^{zL}, L = log dP/dQ. For all tau > 0

    delta(epsilon) = (1/2 pi) Integral over t of  prod M(z) e^{-z epsilon} / (z (z + 1)),   z = tau + i t,

with a product over all releases. This integral and that over outputs x in M(z) are sums (derivation.md, section 10).
"""

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.gaussian import Gaussian
from dpzero_theory.privacy.laws.law import LOG_SQRT_2PI, UNIT, Parts, log_c

_ERRORS = 1e-8, 1e-12  # the error to aim at, as a share of an estimate of delta; the second if delta is far below it
_WIDEST = 1e-4  # the largest relative width of the bounds; else a grid answers
_MOST_NODES, _MOST_PRODUCTS = 4096, 2**20  # the most nodes in x or in t, and the most pairs of them
_SHIFTS = np.array([3.0, 4.5, 6.0, 8.0, 11.0])
_HEIGHTS = np.geomspace(0.5, 16, 11)
_SHARES = np.array([0.02, 0.05, 0.1, 0.2, 0.4, 0.8])
_LATER = np.array([0.9, 1.0, 1.15, 1.4, 1.8, 2.5, 3.5, 5.0, 8.0, 14.0, 24.0])
"""Values to try; any are correct. Errors of sums over outputs x are bounded on lines Im x = +-s^2 eta, with s the noise
and eta one of `_HEIGHTS`/s. For the integral over z = tau + i t the last t is one of `_LATER` times about the largest t
that matters; `_Integral.shift` is one of `_SHIFTS` over the loss's standard deviation, or of `_SHARES` times tau."""


class _Unfit(ArithmeticError):
    """Raised if a sum in place of an integral would need too many nodes, or if its error is too large."""


class _Moments:
    """The moments M(z) = E_P e^{z L} of the privacy loss L of one release with the law `law`, of a kind that `fits`
    allows, as sums over equally spaced outputs `x`, for z = tau + i t, 0 < tau <= `most` and 0 <= t <= `far`. Their
    spacing makes the relative error of M(z)^`count` about `error`; the methods return bounds on the true errors. Raises
    `_Unfit` if too many outputs are needed."""

    def __init__(self, law: Gaussian, count: int, most: float, far: float, error: float = _ERRORS[0]) -> None:
        (branch,) = law.branches
        self.law, self.count, s = law, count, law.noise
        self.a, self.rise, self.fall = branch.a, branch.up, branch.down
        wanted = math.log(2 * count / error) + 3
        power, fall, negative = self._powers(most)
        # A sum over outputs in place of an integral errs by about e^(-2 pi y/step) times the integrand at distance y
        # from the line: in `aliases` y = s^2 eta with the best eta of `heights`, in `decay` y is about 0.7 s^2.
        self.heights = np.minimum(_HEIGHTS / s, 2.5)
        inverse = float(np.min((wanted + self._costs(most, np.array([far]))[:, 0]) / (s * s * self.heights)))
        mantissa, exponent = math.frexp(2 * math.pi / max(inverse, (wanted / 2 + 0.4 * negative) / (s * s * 0.7)))
        self.step = math.ldexp(math.floor(mantissa * 2**11), exponent - 11)  # so its multiples are exact
        reach = s * (math.sqrt(2 * wanted) + 0.5)
        chance = math.exp(min(math.log(law.rate) - (2 * reach + 1) / (2 * s * s), 0.0)) / (1 - law.rate)
        first, last = -reach - max(-power, 0.0) * min(chance, 1.0), reach + max(power, 0.0) + fall
        if not (last - first) / self.step < _MOST_NODES:
            raise _Unfit
        self.x = x = self.step * np.arange(math.floor(first / self.step), math.ceil(last / self.step) + 1.0)
        self.loss, log_a = law.losses(branch, x)
        loss_error, log_error = law.rounding(branch, x, log_a)
        square = (x / s) ** 2 / 2
        self.base = -square + self.a * log_a + (math.log(self.step / s) - LOG_SQRT_2PI)
        self.base_error = self.a * log_error + UNIT * (32 + 4 * square + 6 * np.abs(self.base))
        self.loss_error = loss_error + 4 * UNIT * np.abs(self.loss)
        self.chances = [self._chance(y) for y in ((x, -x) if self.fall else (x,))]

    def _powers(self, tau: float) -> tuple[float, float, float]:
        # The integrand of M(tau) has the factor A(x)^power A(-x)^-fall, with A of `Gaussian.log_mixture`. At complex x
        # its modulus grows with the size of the negative exponents, whose sum is the third number.
        power, fall = self.a + self.rise * tau, self.fall * tau
        return power, fall, max(-power, 0.0) + fall

    def _chance(self, x: Array) -> tuple[Array, Array]:
        # The chance that the record was in the batch, given each output in x, and a bound on its relative error
        log_q, u, log_a = math.log(self.law.rate), (2 * x - 1) / (2 * self.law.noise**2), self.law.log_mixture(x)
        rounded = self.law.rounding(self.law.branches[0], x, log_a)[1]
        return np.exp(np.minimum(log_q + u - log_a, 0.0)), rounded + 8 * UNIT * (1 - log_q + np.abs(u) + np.abs(log_a))

    def _costs(self, tau: float, t: Array) -> Array:
        # Returns logs of bounds on the integral of |integrand of M(tau + i t)| over M(tau), along the two lines Im x =
        # +-s^2 eta of complex outputs x, with s the noise: a row for each eta in `self.heights`, a column for each t.
        # The smaller these bounds, the smaller is the error that the step in x causes.
        heights, negative = self.heights[:, None], self._powers(tau)[2]
        turned = (abs(self.rise) + self.fall) * heights * t
        return np.asarray((self.law.noise * heights) ** 2 / 2 + turned - negative * np.log(np.cos(heights / 2)))

    def log_terms(self, tau: Array) -> tuple[Array, Array]:
        terms = self.base + tau[:, None] * self.loss
        top = terms.max(axis=1)
        return terms, top + np.log(np.exp(terms - top[:, None]).sum(axis=1))

    def error(self, tau: float, weights: Array) -> tuple[float, float]:
        """Returns bounds on two errors of the sum that stands for E e^{(tau + i t) L}, relative to E e^{tau L}, with L
        the loss: by rounding (without that of t L), and by leaving out outputs before the first and after the last one.
        `weights` are the summands of E e^{tau L}, of sum 1. Raises `_Unfit` if the integrand rises at an end."""
        power, fall, _ = self._powers(tau)
        first, last = self.chances[0][0][0], self.chances[-1][0][-1]
        rates = -self.x[0] - max(-power, 0.0) * first, self.x[-1] - max(power, 0.0) - fall * last
        if min(rates) <= 0:
            raise _Unfit
        # Beyond either end the integrand falls at least by the factor 1 + fall from node to node.
        falls = [math.expm1(min(self.step * rate / self.law.noise**2, 700.0)) for rate in rates]
        # Numpy's sums over the last axis add pairs of sums, so each term is rounded in at most 24 additions.
        rounding = 1.01 * float(weights @ (self.base_error + tau * self.loss_error)) + 64 * UNIT
        return rounding, 1.01 * float(weights[0] / falls[0] + weights[-1] / falls[1])

    def aliases(self, tau: float, t: Array) -> Array:
        # For each t a bound on the error of E e^{(tau + i t) L}, over E e^{tau L}, that the step between outputs causes
        gain = 2 * math.pi * self.law.noise**2 * self.heights[:, None] / self.step
        logs = (self._costs(tau, t) - gain).min(axis=0) + math.log(2.02)
        if logs.max() > -5:
            raise _Unfit
        return np.asarray(np.exp(logs) * 1.01)

    def decay(self, tau: float, log_m: float, t: Array) -> Array:
        """Returns, for each entry of the rising positive array `t`, the log of an upper bound on |M(tau + i u)|/M(tau)
        over all u >= t, with M(z) = E e^{z L}, L the loss of one release. `log_m` is log M(tau). Raises `_Unfit` if the
        step between the outputs `x` is too wide."""
        s, (power, fall, negative) = self.law.noise, self._powers(tau)
        if (margin := 0.2 * self.step * (math.log(2 * self.count) + 6 + 0.35 * negative) / (s * s)) > 1.4:
            raise _Unfit
        modulus = self.base + tau * self.loss - log_m
        weights, wrong = np.exp(modulus), self.base_error + tau * self.loss_error + 8 * UNIT * (1 + np.abs(modulus))
        steepness = sum(float(weights @ chance) for chance, _ in self.chances) / s**2
        angles = np.geomspace(0.3 * t[0], 3 * t[-1], 16) * steepness
        angles = np.unique(np.minimum(angles, math.pi / 2 - margin))[:, None]
        turn: Array = np.zeros(1)
        for exponent, (p, error) in zip((power, -fall), self.chances, strict=False):
            turn = turn + np.arctan2(p * np.sin(angles), 1 - p + p * np.cos(angles)) * (1 - 2 * error - 32 * UNIT)
            modulus = modulus + exponent / 2 * np.log1p(-4 * p * (1 - p) * np.sin(angles / 2) ** 2)
            wrong = wrong + abs(exponent) * (4 * p * error + 32 * UNIT)
        lost = negative * math.log(2) / 2 + (s * margin) ** 2 / 2 - 2 * math.pi * s * s * margin / self.step
        lost = 2.02 * math.exp(min(lost, 0.0)) + self.error(tau, weights)[1] * 2 ** (negative / 2)
        inside = np.exp(modulus + wrong - t[:, None, None] * turn).sum(axis=2)
        found = np.log((inside + lost) * (1 + 64 * UNIT)) + (s * angles[:, 0]) ** 2 / 2
        return np.asarray(found.min(axis=1) + 1e-14)


@dataclass(frozen=True)
class _Integral:
    # Bounds on delta(epsilon), narrow near one epsilon, by a sum over nodes z = `tau` + i `t` in place of the integral.
    # m(tau) is E e^{tau L} of the total loss L of all releases.

    tau: float  # the real part of the nodes
    t: Array  # their imaginary parts, which rise from 0 in equal steps
    terms: NDArray[np.complex128]  # the summands divided by m(tau), without their factor e^{-i t epsilon}
    log_moment: float  # log m(tau)
    common: float  # a bound on the relative error of m(tau)
    wrong: float  # a bound on the error of (step in t)/pi times the sum of `terms`, without that by the step in t
    shift: float  # Chernoff: delta(epsilon) <= e^{log_second - (tau + shift) epsilon}, which limits the latter error
    log_second: float

    def _sum(self, epsilon: float) -> tuple[float, float, float]:
        step = float(self.t[1])
        total = step / math.pi * float((self.terms * np.exp(-1j * self.t * epsilon)).real.sum())
        turned = 8 * UNIT * step / math.pi * float(np.abs(self.terms) @ (self.t * abs(epsilon) + len(self.t)))
        return total, self.wrong + 1.01 * turned, self.log_moment - self.tau * epsilon  # the last is log(delta/total)

    def upper(self, epsilon: float) -> float:
        total, wrong, scale = self._sum(epsilon)
        more = 1 + self.common + 8 * UNIT * (1 + self.tau * epsilon)
        return min(math.exp(min(scale, 700.0)) * max(total + wrong, 0.0) * more + 5e-324, 1.0)

    def lower(self, epsilon: float) -> float:
        total, wrong, scale = self._sum(epsilon)
        period = 2 * math.pi / float(self.t[1])
        # A sum in place of the integral adds delta at all epsilons that are whole periods away: at most 1 for each one
        # below, and at most Chernoff's bound for each one above.
        first, second = -self.tau * period - scale, self.log_second - self.shift * (epsilon + period) - self.log_moment
        aliases = math.exp(min(first, 700.0)) / -math.expm1(-self.tau * period)
        aliases += math.exp(min(second, 700.0)) / -math.expm1(-self.shift * period)
        less = 1 - self.common - 8 * UNIT * (1 + self.tau * epsilon)
        return math.exp(min(scale, 700.0)) * max(total - wrong - 1.001 * aliases, 0.0) * less


def fits(parts: Parts) -> bool:
    """Returns True if `answers` may be tried for `parts`, pairs (`Law` of one release, number of such releases): all
    laws are `Gaussian` with a sample rate below 1 and a kind other than "fixed-size"."""
    fit = all(isinstance(law, Gaussian) and law.rate < 1 and law.kind != "fixed-size" for law, _ in parts)
    return bool(parts) and fit


@lru_cache(maxsize=64)
@np.errstate(all="ignore")
def answers(parts: Parts, epsilon: float) -> _Integral | None:
    """Returns an object with the methods upper(x) and lower(x), bounds on delta at any epsilon x >= 0 that are narrow
    near x = `epsilon`. `parts` are pairs (`Law` of one release's privacy loss, number of such releases). Returns None
    unless `fits(parts)` and upper - lower <= 1e-4 upper is reached at `epsilon`; then use `grid`."""
    if not fits(parts):
        return None
    releases = [(law, count) for law, count in parts if isinstance(law, Gaussian)]
    with suppress(ArithmeticError):
        for error in _ERRORS:
            found = _integral(releases, epsilon, error)
            upper = found.upper(epsilon)
            if upper - found.lower(epsilon) <= _WIDEST * upper:
                return found
    return None


def _saddle(parts: list[tuple[Gaussian, int]], epsilon: float) -> tuple[float, float, float]:
    """Returns three numbers for the integral over t that gives delta(`epsilon`) of `parts`: tau, about where its
    integrand at t = 0 is least; about the standard deviation of the total loss L under P tilted by e^{tau L}; and a
    shift > 0 for which Chernoff's bound at tau + shift allows about the widest step in t. With any other tau and shift
    > 0 bounds are true, too, but need more nodes. Raises `_Unfit` if it finds no such numbers."""
    spreads = [n * law.rate**2 * math.expm1(min(1 / law.noise**2, 50.0)) for law, n in parts]
    variance = math.fsum(v * (4 if law.kind == "replace" else 1) for (law, _), v in zip(parts, spreads, strict=True))
    normal, centre = variance, epsilon - variance / 2
    tau = (centre + math.sqrt(centre**2 + 8 * variance)) / (2 * variance)
    most = tau + max(tau, 11 / math.sqrt(variance))
    sums = [_Moments(law, count, most, 0.0) for law, count in parts]
    low, high = 0.0, most
    for _ in range(30):
        slope, curvature, variance = -epsilon - 1 / tau - 1 / (1 + tau), 1 / tau**2 + 1 / (1 + tau) ** 2, 0.0
        value = -tau * epsilon
        for one in sums:
            terms, log_m = one.log_terms(np.array([tau]))
            weights = np.exp(terms[0] - log_m[0])
            mean = float(weights @ one.loss)
            value += one.count * float(log_m[0])
            slope += one.count * mean
            variance += one.count * float(weights @ (one.loss - mean) ** 2)
        low, high = (low, tau) if slope > 0 else (tau, high)
        move = slope / (curvature + variance)
        if abs(move) < 0.02 * tau:
            break
        # Where a moment rises very steeply beyond some tau, Newton's steps are short, and a larger one is taken.
        tau = (0.6 * tau + 0.4 * low) if value > 1 and slope > 0 else tau - move
        if not low < tau < high:
            tau = low + 0.5 * (high - low)
    else:
        raise _Unfit
    if variance > 4 * normal:
        # The best tau lies where a moment rises very steeply. A little before it fewer nodes are needed.
        tau, variance = 0.85 * tau, normal
    spread = math.sqrt(variance)
    shifts = np.concatenate([_SHIFTS / spread, _SHARES * tau])
    shifts = shifts[tau + shifts <= most]
    if not (len(shifts) and spread > 0):
        raise _Unfit
    moments = sum(one.count * one.log_terms(tau + shifts)[1] for one in sums)
    return tau, spread, float(shifts[np.argmin((moments - value - (tau + shifts) * epsilon + 18) / shifts)])


def _integral(parts: list[tuple[Gaussian, int]], epsilon: float, error: float) -> _Integral:
    tau, spread, shift = _saddle(parts, epsilon)
    taus = np.array([tau, tau + shift])
    width = tau * (1 + tau) * math.sqrt(2 * math.pi * (spread**2 + 1 / tau**2 + 1 / (1 + tau) ** 2))
    log_target = math.log(error / width)  # about the share `error` of delta
    far = math.sqrt(-2 * log_target) / spread
    sums = [_Moments(law, count, tau + shift, 2 * far, error) for law, count in parts]
    found = [one.log_terms(taus) for one in sums]
    weights = [np.exp(terms - logs[:, None]) for terms, logs in found]
    errors = [
        [sum(one.error(at, w[k])) + float(one.aliases(at, np.zeros(1))[0]) for k, at in enumerate(taus.tolist())]
        for one, w in zip(sums, weights, strict=True)
    ]
    log_moment, log_second = (
        math.fsum(one.count * float(logs[k]) for one, (_, logs) in zip(sums, found, strict=True)) for k in (0, 1)
    )
    wrongs = math.fsum(2 * one.count * e[1] for one, e in zip(sums, errors, strict=True))
    log_second += 1e-9 + log_c(tau + shift) + wrongs
    log_scale = log_moment - tau * epsilon
    sizes = np.array([0.0, log_second - (tau + shift) * epsilon]) - log_scale - log_target
    needed = np.logaddexp(0.0, sizes) / [tau, shift]
    step = 2 * math.pi / float(needed.max())  # so that what this step adds to delta is about the share `error` of it
    stops = far * _LATER  # the t at which the sum may end; the first one after which little is left is taken
    each = [one.count * one.decay(tau, float(logs[0]), stops) for one, (_, logs) in zip(sums, found, strict=True)]
    decays = np.sum(each, axis=0)
    enough = np.flatnonzero(decays - np.log(math.pi * stops) <= log_target)
    if not len(enough):
        raise _Unfit
    count = math.ceil(stops[enough[0]] / step)
    if count > _MOST_NODES or count * max(len(one.x) for one in sums) > _MOST_PRODUCTS:
        raise _Unfit
    t = step * np.arange(count + 1.0)
    log_tail = float(decays[enough[0]]) - math.log(math.pi * t[-1])
    exponent: NDArray[Any] = np.zeros(len(t), np.complex128)
    log_most, share, rounded = np.zeros(len(t)), np.zeros(len(t)), np.zeros(len(t))
    common = 16 * UNIT * (1 + tau)
    for one, w, (_, logs), here in zip(sums, weights, found, errors, strict=True):
        angle = t[:, None] * one.loss
        value = (np.cos(angle) * w[0]).sum(axis=1) + 1j * (np.sin(angle) * w[0]).sum(axis=1)
        wrong = here[0] + one.aliases(tau, t) + t * float(w[0] @ one.loss_error)
        size = np.abs(value) + wrong
        log = np.log(value)
        exponent += one.count * log
        log_most += one.count * np.log(size)
        share += 1.01 * one.count * wrong / size
        rounded += one.count * 8 * UNIT * (1 + np.abs(log))
        common += one.count * 8 * UNIT * (1 + abs(float(logs[0])))
    denominator = (tau + 1j * t) * (1 + tau + 1j * t)
    terms = np.exp(exponent) / denominator
    terms[0] /= 2
    wrong = np.exp(np.minimum(log_most, 700.0)) / np.abs(denominator) * share + np.abs(terms) * (32 * UNIT + rounded)
    total = 1.01 * (step / math.pi * float(wrong.sum()) + math.exp(log_tail))
    return _Integral(tau, t, terms, log_moment, common, total, shift, log_second)
