"""delta(epsilon) of a composition of subsampled Gaussian releases, with a certified bracket.

With L the privacy loss under P, M(z) = E_P exp(z L) and z = tau + i t on a contour tau > 0,

    delta(epsilon) = (1/2 pi) Integral  prod_j M_j(z)^{T_j} exp(-z epsilon) / (z (z + 1)) dt,

summed by the trapezoid rule in t at the saddle tau, with M from the nodes of `quadrature.build`. The companion
text subsampled.md derives the formula and every error term: aliasing, truncation in t, quadrature in x, smoothing
and rounding. All of them are inside the returned bracket.

Where truncation alone would need too many nodes (few steps, rare events) one more release, mu-GDP with a tiny
mu = kappa, is composed: it makes the integrand decay as exp(-kappa^2 t^2/2), can only raise delta, and raises it
by at most a computed multiple of kappa^2. The method label of the answer then says `smoothed contour`.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.privacy.pairs import Pair
from dpzero_theory.privacy.quadrature import Contour, LossLaw, build, decay

__all__ = ["DeltaBracket", "cumulant", "delta_bracket", "delta_estimate"]

Array = NDArray[np.float64]

_UNIT = 2.0**-53
_TOLERANCE = 1e-11
_NEAR = 400
_MAX_NODES = 3_000_000
_REAL_LINE = 1000.0
_BLOCK = 1_000_000


@dataclass(frozen=True)
class DeltaBracket:
    """Certified lower <= delta(epsilon) <= upper; `log_value` is the log of the estimate between them.

    `slope` is d log delta / d epsilon at the estimate, `tau` the contour (a start for a nearby evaluation).
    """

    lower: float
    value: float
    upper: float
    log_value: float
    slope: float
    tau: float
    method: str


@dataclass(frozen=True)
class _Tilted:
    """The loss law of one pair under P e^{tau L} / M(tau)."""

    law: LossLaw
    steps: int
    cumulant: float
    mean: float
    variance: float
    weights: Array
    centred: Array


def _tilt(law: LossLaw, steps: int, tau: float) -> _Tilted:
    exponent = law.log_mass + tau * law.loss
    top = float(np.max(exponent))
    v = np.exp(exponent - top)
    total = float(np.sum(v))
    cumulant = top + math.log(total)
    if cumulant < 1:
        x = tau * law.loss
        small = np.abs(x) < 1
        excess = np.where(
            small, np.exp(law.log_mass) * np.expm1(np.where(small, x, 0.0)), np.exp(exponent) - np.exp(law.log_mass)
        )
        cumulant = math.log1p(float(np.sum(excess)))
    v /= total
    mean = float(v @ law.loss)
    centred = law.loss - mean
    return _Tilted(law, steps, cumulant, mean, float(v @ centred**2), v, centred)


def _tilted_at(parts: Sequence[tuple[Pair, int]], tau: float, log_tolerance: float) -> list[_Tilted]:
    return [_tilt(build(pair, Contour(tau), log_tolerance), steps, tau) for pair, steps in parts]


def _saddle(epsilon: float, parts: Sequence[tuple[Pair, int]], gdp: float, start: float | None) -> float:
    """A point near the minimiser over tau > 0 of sum T_j K_j(tau) + gdp^2 tau(tau+1)/2 - tau epsilon - log tau(tau+1).

    Any tau > 0 gives a correct bracket; a good one a narrow bracket. K can be all but flat and then rise like a
    wall (rare events). Just before the wall the tilted law has two far modes, so tau is moved back while that costs
    little and halves the variance.
    """

    def moments(tau: float) -> tuple[float, float, float]:
        tilted = _tilted_at(parts, tau, -30.0)
        height = math.fsum(p.steps * p.cumulant for p in tilted) + gdp**2 * tau * (tau + 1) / 2
        mean = math.fsum(p.steps * p.mean for p in tilted) + gdp**2 * (tau + 0.5)
        variance = math.fsum(p.steps * p.variance for p in tilted) + gdp**2
        return height - tau * epsilon - math.log(tau * (tau + 1)), mean - epsilon - 1 / tau - 1 / (1 + tau), variance

    low, high = 0.0, math.inf
    tau = start or 1.0
    for _ in range(200):
        height, value, variance = moments(tau)
        low, high = (low, tau) if value > 0 else (tau, high)
        curvature = variance + 1 / tau**2 + 1 / (1 + tau) ** 2
        if value * value < 0.02 * curvature or high - low < 1e-3 * low:
            break
        # Newton in tau, but at most a factor 1.7 up or 4 down
        new = min(max(tau - value / curvature, tau / 4), 1.7 * tau)
        if not low < new < high:
            new = math.sqrt(low * high) if low > 0 else tau / 4
        tau = new
    for _ in range(6):
        height_back, _, variance_back = moments(0.85 * tau)
        if not (height_back < height + 0.5 and variance_back < 0.5 * variance):
            break
        tau, height, variance = 0.85 * tau, height_back, variance_back
    return tau


class _Decay:
    """A non-increasing bound on log prod_j |chi_j(t')|^{T_j} for all t' >= t (subsampled.md, section 4)."""

    def __init__(self, parts: Sequence[_Tilted], tau: float, gdp: float) -> None:
        self.parts = parts
        self.tau = tau
        self.gdp = gdp
        self.peak = 1 / (gdp * math.sqrt(2 * math.pi)) if gdp > 0 else math.inf
        self.terms = []
        for part in parts:
            log_variation, log_peak = part.law.density(tau)
            atom = part.law.pair.atom * math.exp(-part.cumulant) * (1 + 1e-6)
            if atom == 0:
                self.peak = min(self.peak, math.exp(min(log_peak - part.cumulant, 700.0)) * (1 + 1e-6))
            variation = math.exp(min(log_variation - part.cumulant, 700.0)) * (1 + 1e-6)
            self.terms.append((atom, variation))

    def __call__(self, t: Array, *, shifted: bool = False) -> Array:
        """The bound at `t`; with `shifted` also by shifting the line of x (slower, far sharper for few steps)."""
        total: Array = -(self.gdp**2) * t**2 / 2
        power = 2.0 ** np.arange(41)[:, None]
        for part, (atom, variation) in zip(self.parts, self.terms, strict=True):
            modulus = np.minimum(atom + variation / (t * power), 1.0)
            square = np.minimum(np.min(1 - (1 - modulus**2) / power**2, axis=0), modulus[0] ** 2)
            log_chi = 0.5 * np.log(np.maximum(square, 1e-300))
            if shifted and len(part.law.pair.branches) == 1:
                bounds = decay(part.law.pair, self.tau, _angles(part.law.pair), t)
                log_chi = np.minimum(log_chi, bounds.min(axis=0) - part.cumulant + 1e-9)
            total = total + part.steps * log_chi
        return total


def _angles(pair: Pair) -> list[float]:
    """Heights of the shifted line, in units of s^2: at most 4/s, so that moduli grow by at most e^8."""
    return [min(2.4, scale / pair.noise) for scale in (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)]


def _log_near(part: _Tilted, t: Array, quadrature: float) -> tuple[NDArray[np.complex128], Array]:
    """log of chi(t) e^{-i t mean} on the real line of x, and a bound on the relative error of chi(t)."""
    keep = part.weights > 1e-26 / part.steps
    v, d = part.weights[keep], part.centred[keep]
    error, loss_error = part.law.mass_error[keep], part.law.loss_error[keep]
    bound = np.minimum(t * float(v @ (np.abs(d) * error)), 2 * float(v @ error)) + t * float(v @ loss_error)
    bound += 2 * quadrature + float(np.sum(part.weights[~keep]))
    half = 0.5 * t[:, None] * d
    sine = np.sin(half)
    change = -2 * (sine**2 @ v) + 2j * ((sine * np.cos(half)) @ v)
    size = np.abs(change)
    near = size < 0.5
    small = np.where(near, change, 0.0)
    log_near = 0.5 * np.log1p(2 * small.real + np.abs(small) ** 2) + 1j * np.angle(1 + small)
    chi = 1 + change
    log_far = np.log(np.maximum(np.abs(chi), 1e-300)) + 1j * np.angle(chi)
    log_chi = np.where(near, log_near, log_far)
    return log_chi, (bound + 8 * _UNIT * size) * np.exp(-log_chi.real)


def _log_far(part: _Tilted, tau: float, t: Array, log_tolerance: float) -> tuple[NDArray[np.complex128], Array]:
    """The same on the shifted line that makes the integrand smallest at t[0]; t equispaced.

    Laws on half-lines (kind `fixed-size`) stay on the real line.
    """
    pair = part.law.pair
    angle = 0.0
    if len(pair.branches) == 1:
        angles = _angles(pair)
        angle = angles[int(np.argmin(decay(pair, tau, angles, t[:1])[:, 0]))]
    contour = Contour(tau, float(t[0]), float(t[-1]), angle)
    law = build(pair, contour, log_tolerance)
    loss, log_mass, loss_error, mass_error = law.shifted()
    exponent = log_mass + (tau + 1j * t[0]) * loss - part.cumulant - 1j * t[0] * part.mean
    keep = exponent.real > np.max(exponent.real) - 45
    start = np.exp(exponent[keep])
    rate = loss[keep] - part.mean
    size = np.abs(start)
    error = mass_error + tau * loss_error + t[-1] * loss_error + 4 * _UNIT * (8 + t[-1] * np.abs(loss - part.mean))
    # |exp(i t L)| decreases in t on this line, so the weights at t[0] bound all of them
    bound = float(size @ (error[keep] + (len(rate) + 16) * _UNIT)) + len(loss) * math.exp(
        -45 + float(np.max(exponent.real))
    )
    bound += math.exp(law.quadrature_error(contour) - part.cumulant)
    chi = _equispaced(start, rate, t - t[0])
    modulus = np.maximum(np.abs(chi), 1e-300)
    return np.log(modulus) + 1j * np.angle(chi), bound / modulus


def _equispaced(v: NDArray[np.complex128], d: NDArray[np.complex128], t: Array) -> NDArray[np.complex128]:
    """sum_i v_i exp(i t_k d_i) for t_k = k h by blocks: exp(i (a B + b) h d) = exp(i a B h d) exp(i b h d)."""
    step = float(t[1]) if len(t) > 1 else 0.0
    rows = min(max(int(math.sqrt(len(t))), 1), max(_BLOCK // len(d), 1))
    inner = np.exp(1j * step * np.arange(rows)[:, None] * d)
    result = np.empty(-(-len(t) // rows) * rows, dtype=np.complex128)
    columns = max(_BLOCK // len(d), 1)
    blocks = np.arange(len(result) // rows)
    for start in range(0, len(blocks), columns):
        chosen = blocks[start : start + columns]
        outer = v[:, None] * np.exp(1j * step * rows * d[:, None] * chosen)
        result[start * rows : (start + len(chosen)) * rows] = (inner @ outer).T.ravel()
    return result[: len(t)]


def _cumulant_error(part: _Tilted, tau: float) -> float:
    """Bound on the error of K(tau) = log M(tau): quadrature and rounding."""
    law = part.law
    scale = math.exp(-part.cumulant)
    quadrature = math.exp(law.quadrature_error(Contour(tau)) - part.cumulant)
    shifted = tau * float(part.weights @ law.loss_error)
    if part.cumulant < 1:
        mass = np.exp(law.log_mass)
        moved = np.abs(np.exp(np.minimum(law.log_mass + tau * law.loss, 700.0)) - mass)
        weighted = float(moved @ (law.mass_error + 8 * _UNIT)) * scale
        quadrature += math.exp(law.quadrature_error(Contour(0.0))) * scale
    else:
        weighted = float(part.weights @ (law.mass_error + 8 * _UNIT * (1 + tau * np.abs(law.loss))))
    return quadrature + shifted + weighted + 8 * _UNIT * abs(part.cumulant)


def cumulant(pair: Pair, tau: float) -> tuple[float, float]:
    """(K(tau), bound on its error): K(tau) = log E_P exp(tau L) of one release, tau > 0.

    Raises:
        OverflowError: too many quadrature nodes would be needed.
    """
    part = _tilt(build(pair, Contour(tau), math.log(1e-16)), 1, tau)
    return part.cumulant, _cumulant_error(part, tau)


def _smoothing_error(kappa: float, tau: float, peak: float) -> float:
    """Bound on (delta_kappa - delta) / S_0 by the largest tilted density `peak` (subsampled.md, section 5)."""
    square = kappa * kappa
    second = sum(
        math.exp(min(sign * tau * square / 2 + tau * tau * square / 2, 700.0))
        * (square + (square / 2 + sign * tau * square) ** 2)
        for sign in (1, -1)
    )
    return (square + peak * second) / 2


def delta_bracket(
    epsilon: float,
    parts: Sequence[tuple[Pair, int]],
    gdp: float = 0.0,
    *,
    start: float | None = None,
    budget: float = 1e8,
) -> DeltaBracket:
    """Certified bracket of delta(epsilon) for the composition of `parts` (pair, steps) and a `gdp`-GDP mechanism.

    Args:
        epsilon: epsilon >= 0.
        parts: at least one pair with sample_rate < 1, and its number of steps.
        gdp: mu >= 0 of full-batch releases in the same composition.
        start: a guess of tau, for speed only.
        budget: largest number of (node in t) x (node in x) products before smoothing is used.

    Raises:
        OverflowError: outside the range of the method (the loss needs too many nodes).
    """
    tau = _saddle(epsilon, parts, gdp, start)
    steps_total = sum(steps for _, steps in parts)
    log_tolerance = math.log(1e-13 / steps_total)
    laws = [build(pair, Contour(tau), log_tolerance) for pair, _ in parts]
    tilted = [_tilt(law, steps, tau) for law, (_, steps) in zip(laws, parts, strict=True)]
    variance = math.fsum(p.steps * p.variance for p in tilted) + gdp**2
    log_scale = math.fsum(p.steps * p.cumulant for p in tilted) + gdp**2 * tau * (tau + 1) / 2 - tau * epsilon
    # everything below is relative to S_0 = exp(log_scale); the target error is a fraction of delta / S_0
    estimate = 1 / (tau * (1 + tau) * math.sqrt(2 * math.pi * (variance + 1 / tau**2 + 1 / (1 + tau) ** 2)))
    target = _TOLERANCE * estimate

    decay_bound = _Decay(tilted, tau, gdp)
    period = float(np.logaddexp(0, -log_scale - math.log(target))) / tau
    shift, log_second = _second_alias(epsilon, parts, gdp, tau, variance, log_scale + math.log(target), log_tolerance)
    period = max(period, float(np.logaddexp(0, log_second - log_scale - math.log(target))) / shift)
    step = 2 * math.pi / period
    stop, kappa = _truncate(decay_bound, target, step, budget / sum(len(law.loss) for law in laws), math.sqrt(variance))
    if not stop / step < _MAX_NODES:
        raise OverflowError("too many nodes")
    count = math.ceil(stop / step)
    # one block on the real line of x, then octaves of t on shifted lines
    ends = [count if count <= _NEAR else (_NEAR if steps_total > 50 else 64)]
    while ends[-1] < count:
        ends.append(min(2 * ends[-1], count))
    near = Contour(tau, 0.0, ends[0] * step)
    laws = [build(pair, near, log_tolerance) for pair, _ in parts]
    tilted = [_tilt(law, steps, tau) for law, (_, steps) in zip(laws, parts, strict=True)]
    square = gdp**2 + kappa**2
    log_scale = math.fsum(p.steps * p.cumulant for p in tilted) + square * tau * (tau + 1) / 2 - tau * epsilon

    t: Array = step * np.arange(count + 1.0)
    exponent = np.zeros(len(t), dtype=np.complex128)
    relative = np.zeros(len(t))
    drift = square * (tau + 0.5) - epsilon
    drift_error = 4 * _UNIT * (square * (tau + 0.5) + epsilon)
    common = 0.0
    for part in tilted:
        quadrature = math.exp(part.law.quadrature_error(near) - part.cumulant)
        blocks = [_log_near(part, t[: ends[0] + 1], quadrature)]
        for begin, end in itertools.pairwise(ends):
            blocks.append(_log_far(part, tau, t[begin + 1 : end + 1], log_tolerance))
        log_chi, error = (np.concatenate(column) for column in zip(*blocks, strict=True))
        exponent += part.steps * log_chi
        relative += part.steps * (np.log1p(error) + 8 * _UNIT * np.abs(log_chi))
        drift += part.steps * part.mean
        drift_error += 4 * _UNIT * part.steps * abs(part.mean)
        common += part.steps * _cumulant_error(part, tau) + 8 * _UNIT * abs(part.steps * part.cumulant)
    exponent += -square * t**2 / 2 + 1j * t * drift
    relative += t * drift_error + 8 * _UNIT * (2 + square * t**2)
    z = tau + 1j * t
    terms = np.exp(exponent) / (z * (z + 1))
    terms[0] /= 2
    size = np.abs(terms)
    total = step / math.pi * float(np.sum(terms.real))
    slope = -step / math.pi * float(np.sum((terms * z).real))
    with np.errstate(over="ignore"):
        rounding = (
            step / math.pi * float(np.sum(size * np.expm1(np.minimum(relative, 700.0))) + 64 * _UNIT * np.sum(size))
        )
    last = float(t[-1])
    log_tail = (
        float(decay_bound(np.array([last]), shifted=count >= _NEAR)[0])
        - kappa**2 * last**2 / 2
        - math.log(math.pi * last)
    )
    truncation = math.exp(log_tail)
    common += 8 * _UNIT * (tau * epsilon + square * tau * (tau + 1) + 1)
    first_alias = math.exp(min(-log_scale - period * tau, 700.0)) / -math.expm1(-period * tau)
    log_second += ((tau + shift) * (tau + shift + 1)) * kappa**2 / 2
    second_alias = math.exp(log_second - log_scale - period * shift) / -math.expm1(-period * shift)
    smoothing = 0.0
    if kappa > 0:
        smoothing = _smoothing_error(kappa, tau, decay_bound.peak) * math.exp(-(kappa**2) * tau * (tau + 1) / 2)
        # the same through the tail function near epsilon: e^u Q(loss > u) at u = epsilon -+ 2 a, from the same sum
        reach = kappa * math.sqrt(2 * (max(-log_scale - math.log(target), 0.0) + epsilon + 10)) + kappa**2
        noise = step / math.pi * float(np.sum(size * np.abs(z) * np.expm1(np.minimum(relative, 700.0)))) * 1.001
        noise += truncation / (kappa**2 * last) + 64 * _UNIT * step / math.pi * float(np.sum(size * np.abs(z)))
        inflation = math.exp(2 * reach * (tau + 1))
        heavy = step / math.pi * float(np.sum((terms * z * np.exp(2 * reach * z)).real)) * math.exp(2 * reach)
        light = step / math.pi * float(np.sum((terms * z * np.exp(-2 * reach * z)).real)) * math.exp(-2 * reach)
        c = (tau + shift) * math.log(tau + shift) - (tau + shift + 1) * math.log1p(tau + shift)
        aliases = (first_alias + second_alias * math.exp(-c)) * inflation
        local = heavy - light + 2 * noise * inflation + aliases + target
        smoothing = min(smoothing, kappa * math.exp(kappa**2) * local * 1.001 + target)
    spread = (rounding + truncation) * 1.001
    low = total - spread - (first_alias + second_alias + smoothing) * 1.001
    high = total + spread
    scale_error = math.expm1(min(common, 1.0))
    if not (math.isfinite(low) and math.isfinite(high)) or common > 1:
        raise OverflowError("rounding errors exceed the answer")
    scale = math.exp(log_scale)
    lower = max(scale * low * (1 - scale_error if low > 0 else 1 + scale_error), 0.0)
    upper = min(scale * high * (1 + scale_error), 1.0)
    middle = max(total, low, 1e-300)
    method = "contour" if kappa == 0 else "smoothed contour"
    return DeltaBracket(
        lower,
        min(max(scale * middle, lower), upper),
        upper,
        log_scale + math.log(middle),
        slope / max(total, 1e-300),
        tau,
        method,
    )


def _log_alias_moment(
    epsilon: float, parts: Sequence[tuple[Pair, int]], gdp: float, tau: float, log_tolerance: float
) -> float:
    """Log of an upper bound on c(tau) prod M_j(tau)^{T_j} e^{-tau epsilon}, c = max_y (1 - e^{-y}) e^{-tau y}."""
    total = tau * math.log(tau) - (1 + tau) * math.log1p(tau) + gdp**2 * tau * (tau + 1) / 2 - tau * epsilon
    for pair, steps in parts:
        law = build(pair, Contour(tau), log_tolerance)
        cumulant = _tilt(law, steps, tau).cumulant
        quadrature = law.quadrature_error(Contour(tau)) - cumulant
        total += steps * (cumulant + math.exp(min(quadrature, 700.0)) + 1e-12 * abs(cumulant)) + 1e-6
    return total


def delta_estimate(
    epsilon: float, parts: Sequence[tuple[Pair, int]], gdp: float = 0.0, *, start: float | None = None
) -> tuple[float, float] | None:
    """(log delta(epsilon), tau) without a certificate, several times faster; None where few nodes do not suffice.

    For the steps of a root search whose answer `delta_bracket` then certifies.
    """
    tau = _saddle(epsilon, parts, gdp, start)
    steps_total = sum(steps for _, steps in parts)
    tilted = [_tilt(build(pair, Contour(tau), math.log(1e-13 / steps_total)), steps, tau) for pair, steps in parts]
    variance = math.fsum(p.steps * p.variance for p in tilted) + gdp**2
    log_scale = math.fsum(p.steps * p.cumulant for p in tilted) + gdp**2 * tau * (tau + 1) / 2 - tau * epsilon
    scale = math.sqrt(variance)
    target = 1e-10 / (tau * (1 + tau) * math.sqrt(2 * math.pi * (variance + 1 / tau**2 + 1 / (1 + tau) ** 2)))
    period = max(float(np.logaddexp(0, -log_scale - math.log(target))) / tau, 16 * scale, 30 / (tau + 0.5))
    step = 2 * math.pi / period
    if 9 / scale > _NEAR * step:
        return None
    t: Array = step * np.arange(math.ceil(9 / (scale * step)) + 1.0)
    exponent = -(gdp**2) * t**2 / 2 + 1j * t * (gdp**2 * (tau + 0.5) - epsilon)
    for part in tilted:
        exponent = exponent + part.steps * (_log_near(part, t, 0.0)[0] + 1j * t * part.mean)
    z = tau + 1j * t
    terms = np.exp(exponent) / (z * (z + 1))
    terms[0] /= 2
    total = float(np.sum(terms.real))
    if not step / math.pi * total > 1e8 * target or not abs(terms[-1]) < 1e-9 * total:
        return None
    return log_scale + math.log(step / math.pi * total), tau


def _second_alias(
    epsilon: float,
    parts: Sequence[tuple[Pair, int]],
    gdp: float,
    tau: float,
    variance: float,
    log_target: float,
    log_tolerance: float,
) -> tuple[float, float]:
    """(shift, log moment bound at tau + shift) whose alias bound asks for the smallest period."""
    best = (math.inf, 0.0, 0.0)
    shift = min(7 / math.sqrt(variance), tau + 0.5)
    for _ in range(30):
        try:
            log_moment = _log_alias_moment(epsilon, parts, gdp, tau + shift, log_tolerance)
        except OverflowError:
            log_moment = math.inf
        period = float(np.logaddexp(0, log_moment - log_target)) / shift
        if period > best[0]:
            break
        best = (period, shift, log_moment)
        if log_moment < log_target + 50:
            break
        shift /= 2
    if best[0] == math.inf:
        raise OverflowError("no moment beyond tau")
    return best[1], best[2]


def _truncate(decay_bound: _Decay, target: float, step: float, budget: float, scale: float) -> tuple[float, float]:
    """(t beyond which nothing is summed, kappa): the first t whose tail bound is below `target`, or a smoothed one."""

    def first(grid: Array, *, shifted: bool) -> float:
        enough = decay_bound(grid, shifted=shifted) <= math.log(target) + np.log(math.pi * grid)
        return float(grid[np.argmax(enough)]) if enough.any() else math.inf

    found = first(np.geomspace(0.5 / scale, 1e13 / scale, 400), shifted=False)
    if found <= _NEAR * step:
        return max(found, step), 0.0
    limit = budget * step
    if any(len(part.law.pair.branches) > 1 for part in decay_bound.parts):
        limit = min(limit, max(_REAL_LINE, 2 * _NEAR * step))
    found = min(found, first(np.geomspace(_NEAR * step, limit, 80), shifted=True))
    if found <= limit:
        return found, 0.0
    allowance = float(decay_bound(np.array([limit]), shifted=True)[0]) - math.log(target * math.pi * limit)
    return limit, math.sqrt(2 * max(allowance, 0.0)) / limit
