"""Values, with error bounds, of the characteristic function chi(t) = M(tau + i t)/M(tau) of the tilted privacy loss.

M(z) = E_P e^{zL} is the moment of the loss L of one release, and tau the real tilt: chi is the characteristic function
of L under the law P e^{tau L}/M(tau).
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.analytic.quadrature import Contour, build, decay
from dpzero_theory.privacy.certified.analytic.tilting import Blend, Tilted, cumulant_error
from dpzero_theory.privacy.certified.laws.arithmetic import UNIT
from dpzero_theory.privacy.certified.laws.pairs import Pair

_SLAB = 8_000
"""About the number of complex factors that are computed at once: 128 kB, which a processor's second cache holds."""
_MOST_DIRECT = 20_000
"""For this many pairs of a frequency t and a node x of the integral over outputs, or fewer, a sine is computed for each
pair. For more, `_equispaced` saves time by products of shared factors."""
_MANY_STEPS = 20_000
"""For more releases than this, sums are arranged so that rounding errors stay small, which grow with the number of
releases. For fewer they are arranged so that few nodes suffice."""
_CHUNK = 32
"""This many terms of an inner product are summed before they are added to a running sum, to bound rounding errors."""
_TILE = 32, 48
"""The largest shape (rows, columns) of one matrix product. BLAS gives larger ones to several threads, which is slower
here because they wait for each other."""


def shift_angles(pair: Pair) -> list[float]:
    """The heights of the lines of complex outputs along which the integral over outputs of a pair may run.

    They are above the real line, in units of s^2 with s the pair's noise, and at most 4/s, so that the normal density
    grows there by a factor of at most e^8.
    """
    return [min(2.4, scale / pair.noise) for scale in (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)]


def log_near(part: Tilted, t: Array, quadrature: float) -> tuple[NDArray[np.complex128], Array]:
    """The log of chi(t) e^{-i t mean}, and a bound on the relative error of chi(t), for each of the equispaced t.

    chi is the characteristic function of the tilted loss, and `mean` its mean. The integral over outputs runs along the
    real line.

    part: the tilted law of the loss.
    quadrature: a bound on the absolute quadrature error of M, divided by M(tau).
    """
    keep = part.weights > 1e-26 / part.steps
    v, d = part.weights[keep], part.centred[keep]
    error, loss_error = part.law.mass_error[keep], part.law.loss_error[keep]
    bound = np.minimum(t * float(v @ (np.abs(d) * error)), 2 * float(v @ error)) + t * float(v @ loss_error)
    bound += 2 * quadrature + 2 * float(np.sum(part.weights[~keep]))
    if len(t) * len(d) > _MOST_DIRECT:
        change = _equispaced(v, d, t, excess=True)
        size = float(v @ np.abs(d))
        bound += np.minimum(t * size, 2.0) * 2 * (_CHUNK + len(d) / _CHUNK + 40) * UNIT + 4 * UNIT * t * size
    else:
        half = 0.5 * t[:, None] * d
        sine = np.sin(half)
        change = -2 * (sine**2 @ v) + 2j * ((sine * np.cos(half)) @ v)
    log_chi, relative = _log_one_plus(change, bound)
    return log_chi, relative + float(v @ error) * np.abs(change) * np.exp(-log_chi.real)


def log_far(
    part: Tilted, tau: float, t: Array, log_tolerance: float, budget: float = math.inf
) -> tuple[NDArray[np.complex128], Array]:
    """The log of chi(t) e^{-i t mean}, and a bound on the relative error of chi(t), for each of the equispaced t, which
    are large.

    chi is the characteristic function of the loss under the law `part`, which is tilted by `tau`, and `mean` its mean.
    The integral over outputs runs along the line of complex outputs on which the bound on |chi(t[0])| is least. With
    d_i = L_i - mean the losses at the nodes and w_i their tilted masses, chi e^{-i t mean} - 1 is summed as sum_i w_i
    (e^{i t d_i} - 1) if the composition has more than `_MANY_STEPS` = 20,000 releases of the pair (`part.steps`):
    rounding errors of the weights then multiply |e^{i t d} - 1| <= min(t |d|, 2) only. With fewer releases sum_i w_i
    e^{i t d_i} is computed, which needs fewer nodes (derivation.md, section 7). A pair of kind `fixed-size`, whose
    formulas hold on half-lines, stays on the real line. log_tolerance: the natural log of the absolute quadrature error
    of chi(t) that is aimed at. The returned bound is on the errors that are made, of quadrature and of rounding.

    Raises:
        OverflowError: more than `budget` products of a node in t and one in x would be needed.
    """
    pair = part.law.pair
    angle = 0.0
    if len(pair.branches) == 1 and not pair.partial:
        angles = shift_angles(pair)
        angle = angles[int(np.argmin(decay(pair, tau, angles, t[:1])[:, 0]))]
    many = part.steps > _MANY_STEPS
    contour = Contour(tau, 0.0 if many else float(t[0]), float(t[-1]), angle)
    law = build(pair, contour, log_tolerance)
    loss, log_mass, loss_error, mass_error = law.shifted()
    # With L the privacy loss, |exp(i t L)| falls in t on this line of outputs. So the weights at the first t bound
    # those at all t.
    exponent = log_mass + tau * loss - part.cumulant
    if not many:
        exponent = exponent + 1j * t[0] * (loss - part.mean)
    size = np.exp(exponent.real)
    keep = size > np.max(size) * (1e-20 / part.steps)
    if len(t) * int(keep.sum()) > budget:
        raise OverflowError("too many nodes")
    weights, rate = np.exp(exponent[keep]), loss[keep] - part.mean
    relative = mass_error[keep] + tau * loss_error[keep] + (_CHUNK + len(rate) / _CHUNK + 40) * UNIT
    reach = np.minimum(t[-1] * np.abs(rate), 2.0) if many else 1.0
    bound = float(size[keep] @ (reach * relative + t[-1] * (loss_error[keep] + 4 * UNIT * np.abs(rate))))
    # With many releases the weights are taken to sum to 1, so that the quadrature error, which their sum has too,
    # counts a second time.
    bound += 2 * float(np.sum(size[~keep])) + 2 * math.exp(law.quadrature_error(contour) - part.cumulant)
    if many:
        change = _equispaced(weights, rate, t, excess=True)
        return _log_one_plus(change, bound + cumulant_error(part, tau) * np.abs(change))
    chi = _equispaced(weights, rate, t - t[0], excess=False)
    modulus = np.maximum(np.abs(chi), 1e-300)
    return np.log(modulus) + 1j * np.angle(chi), bound / modulus


def log_blend(
    whole: Blend, tau: float, t: Array, kinds: Sequence[tuple[NDArray[np.complex128], Array]]
) -> tuple[NDArray[np.complex128], Array]:
    """The log of chi(t) e^{-i t mean}, and a bound on the relative error of chi(t), of a release that is of one of
    several kinds by chance.

    With p_k the shares of the kinds and d_k their means minus the whole's, chi e^{-i t mean} - 1 is the sum over k of
    p_k (e^{i t d_k} chi_k e^{-i t mean_k} - 1).

    whole: the tilted law of the loss. tau: the tilt. t: frequencies. kinds: for each kind the log of chi_k e^{-i t
    mean_k} and a bound on the relative error of chi_k, at every t.
    """
    if len(whole.kinds) == 1:
        return kinds[0]
    change, bound = np.zeros(len(t), dtype=np.complex128), np.zeros(len(t))
    for part, share, (log_chi, relative) in zip(whole.kinds, whole.shares, kinds, strict=True):
        beyond = part.mean - whole.mean
        fall, angle = log_chi.real, log_chi.imag + t * beyond
        one = np.expm1(fall) * np.cos(angle) - 2 * np.sin(angle / 2) ** 2 + 1j * np.exp(fall) * np.sin(angle)
        change += share * one
        wrong = 2 * cumulant_error(part, tau) + 32 * UNIT * (1 + abs(part.cumulant) + abs(whole.cumulant))
        turned = 4 * UNIT * (np.abs(fall) + np.abs(log_chi.imag) + t * abs(beyond))
        bound += share * (np.abs(one) * wrong + np.exp(fall) * (1.01 * relative + turned))
    return _log_one_plus(change, bound)


def _log_one_plus(change: NDArray[np.complex128], bound: Array | float) -> tuple[NDArray[np.complex128], Array]:
    """For each entry of `change` the complex number log(1 + change), and a bound on the relative error of 1 + change.

    bound: a bound on the absolute error of `change`.
    """
    size = np.abs(change)
    near = size < 0.5
    small = np.where(near, change, 0.0)
    log_near = 0.5 * np.log1p(2 * small.real + np.abs(small) ** 2) + 1j * np.angle(1 + small)
    log_chi = np.where(near, log_near, np.log(np.maximum(np.abs(1 + change), 1e-300)) + 1j * np.angle(1 + change))
    return log_chi, (bound + 8 * UNIT * size) * np.exp(-log_chi.real)


def _turned(angle: Array | NDArray[np.complex128], *, excess: bool) -> NDArray[np.complex128]:
    """exp(i angle), or exp(i angle) - 1 if `excess`, with a small relative error also where exp(i angle) - 1 is near
    0."""
    if not excess:
        return np.asarray(np.exp(1j * angle), dtype=np.complex128)
    sine, cosine = np.sin(angle.real / 2), np.cos(angle.real / 2)
    result = np.empty(angle.shape, dtype=np.complex128)
    np.multiply(sine, 2 * cosine, out=result.imag)
    np.multiply(sine, -2 * sine, out=result.real)
    if np.iscomplexobj(angle):
        growth = np.expm1(-angle.imag)
        result.real += growth * (1 + result.real)
        result.imag += growth * result.imag
    return result


def _equispaced(
    v: Array | NDArray[np.complex128], d: Array | NDArray[np.complex128], t: Array, *, excess: bool
) -> NDArray[np.complex128]:
    """For each of the equispaced t_k in `t` the sum over j of v_j exp(i t_k d_j) or, with `excess`, of
    v_j (exp(i t_k d_j) - 1).

    To share factors, t_k = t_0 + (a B + b) h with the spacing h and integers a and b < B. With x = i b h d and
    y = i (t_0 + a B h) d then exp(x + y) = exp(x) exp(y), and exp(x + y) - 1 = (exp(x) - 1) exp(y) + (exp(y) - 1).
    """
    step = float(t[1] - t[0]) if len(t) > 1 else 0.0
    rows = max(math.isqrt(len(t)), 1)
    within = step * np.arange(rows)[:, None]
    starts = t[0] + step * rows * np.arange(-(-len(t) // rows))
    product = np.zeros((rows, len(starts)), dtype=np.complex128)
    slab = _CHUNK * max(_SLAB // (_CHUNK * rows), 1)
    for begin in range(0, len(d), slab):
        rate, weight = d[begin : begin + slab], v[begin : begin + slab, None]
        inner = _turned(within * rate, excess=excess)
        beyond = weight * _turned(rate[:, None] * starts, excess=excess)
        outer = weight + beyond if excess else beyond
        for first in range(0, len(rate), _CHUNK):
            part = slice(first, first + _CHUNK)
            _add_product(product, inner[:, part], outer[part])
            if excess:
                product += np.sum(beyond[part], axis=0)
    return np.asarray(product.T.ravel()[: len(t)])


def _add_product(total: NDArray[np.complex128], left: NDArray[np.complex128], right: NDArray[np.complex128]) -> None:
    """Add the matrix product left @ right to `total`, in blocks of at most `_TILE` rows and columns."""
    high, wide = _TILE
    for row in range(0, total.shape[0], high):
        for column in range(0, total.shape[1], wide):
            rows, columns = slice(row, row + high), slice(column, column + wide)
            total[rows, columns] += left[rows] @ right[:, columns]
