"""Exact noise on an integer lattice: how contributions get there, and what T releases cost.

Each clipped contribution is rounded to a multiple of clip/levels, so the sum is an integer of sensitivity
2 levels (replace-one) or levels (add-remove): rounding record by record costs no privacy. Each release adds
a discrete Gaussian draw of parameter sigma = `scale`, in units of the lattice.

**Privacy of T releases.** With P the noise alone and Q the noise shifted by the integer sensitivity s, the
privacy loss of a release x is (2 s x + s^2)/(2 sigma^2), affine in x; so the T-fold loss depends on the sum
S of the T draws only, exactly. With V = T sigma^2, a = epsilon sigma^2/s - T s/2 and lambda = s/sigma^2,

    delta(epsilon) = sum over integers x > a of P[S = x] (1 - exp(-lambda (x - a))).

The law is log-concave, so threshold tests are best and their power rises with the shift: a smaller integer
shift, chosen adaptively, is covered. By symmetry the reversed pair has the same delta.

**The law of S.** Write rho(x) = exp(-x^2/(2V)). Adding one draw to a sum of k multiplies the unnormalised
law by a factor that depends on x only through sum_y exp(-(y - v)^2/(2c^2)), c^2 = sigma^2 k/(k+1), which by
Poisson summation is within 1 +- kappa_k of a constant, kappa_k = 2 sum_m exp(-2 pi^2 c^2 m^2). By induction
P[S = x] is within exp(+-tau) of rho(x)/sum_y rho(y), with tau = sum_{k<T} 2 artanh(kappa_k); and
sum_y rho(y) is within [1, 1 + kappa_V] of sqrt(2 pi V).

**Against the continuous Gaussian.** g(x) = rho(x) (1 - exp(-lambda (x - a)))_+ integrates to sqrt(2 pi V)
times delta(epsilon; mu) of `gaussian.py`, mu = sqrt(T) s/sigma. The sum over the integers differs from the
integral by integral of K dg' with 0 <= K <= 1/8, so by at most TV(g')/16. The jump of g' at a is
J = lambda rho(a), and integrating |g''| by parts over x > a gives TV(g') <= 7 J if a >= 0, and always
TV(g') <= J + 4 exp(-1/2)/sqrt(V) + 5 lambda. Where sqrt(V) is small the sum itself is evaluated instead.
Either sign occurs: the lattice can be slightly less private than the continuous Gaussian.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzero_theory.check import choice, integer, precondition, real
from dpzero_theory.privacy.gaussian import RELATIONS, delta_from_gdp, gdp_from_epsilon
from dpzero_theory.privacy.noise import NoiseSource

__all__ = ["Bracket", "Lattice", "lattice_delta", "lattice_scale", "sum_gap"]

_ROUNDING = 1e-11  # relative, of the sum below (1e-13) and of delta_from_gdp (1e-11)
_SUMMED = 1e5  # largest sqrt(V) for which the sum is evaluated term by term
_SMALLEST_SCALE = 1.0


class Bracket(NamedTuple):
    """lower <= the true number <= upper; `value` is the estimate inside."""

    lower: float
    value: float
    upper: float


@dataclass(frozen=True)
class Lattice:
    """Multiples of clip/levels between -clip and clip.

    clip: C > 0, the bound on a contribution, in the contribution's unit. levels: integer in [1, 2^32]; the
    rounding moves a contribution by at most C/(2 levels).
    """

    clip: float
    levels: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", real("clip", self.clip, above=0.0))
        object.__setattr__(self, "levels", integer("levels", self.levels, at_most=2**32))

    @property
    def spacing(self) -> float:
        """C/levels: the unit of the integers."""
        return self.clip / self.levels

    def sensitivity(self, relation: str) -> int:
        """Sensitivity of the sum of rounded contributions, in lattice units.

        2 levels for replace-one, levels for add-remove. Raises ValueError for another relation.
        """
        return self.levels * (2 if choice("relation", relation, RELATIONS) == "replace-one" else 1)

    def round(self, contributions: ArrayLike) -> NDArray[np.int64]:
        """Clip each contribution to [-C, C] and round it to the nearest lattice point.

        contributions: (n,) numbers. An infinite one becomes +-levels; a NaN becomes 0, silently, since an
        error would itself reveal a record. Returns (n,) integers in [-levels, levels].
        """
        values = np.asarray(contributions, dtype=np.float64)
        clipped = np.clip(np.where(np.isnan(values), 0.0, values), -self.clip, self.clip)
        return np.rint(clipped / self.clip * self.levels).astype(np.int64)

    def release_mean(self, contributions: ArrayLike, n: int, scale: float, noise: NoiseSource) -> float:
        """One private release of (1/n) sum_i clip_C(contribution_i).

        spacing/n times an integer: the rounded sum plus discrete Gaussian noise of parameter `scale` (lattice
        units; 0 < scale <= 2^56). n is the public denominator. Everything after the integer is
        post-processing. Raises ValueError for a bad argument.
        """
        count = integer("n", n)
        total = int(self.round(contributions).sum())
        return (total + noise.discrete_gaussian(scale)) * (self.spacing / count)


def sum_gap(scale: float, steps: int) -> float:
    """tau: the law of the sum of T discrete Gaussian draws is within exp(+-tau) of the discrete Gaussian.

    |log P[S = x] - log(rho(x)/sum rho)| <= tau = sum_{k=1}^{T-1} 2 artanh(kappa_k) for every integer x, with
    kappa_k of the module. From scale 3 it is below 1e-37 for T = 1, ..., 10^9.

    Args:
        scale: sigma of each draw, in lattice units, scale >= 1.
        steps: T >= 1.

    Raises:
        ValueError: an argument that is not such a number.
        PreconditionError: scale below 1, where the bound says nothing useful.
    """
    sigma, t = _scale(scale), integer("steps", steps)
    k = np.arange(1.0, min(t, 10_000))
    kappa = _kappa(sigma**2 * k / (k + 1))
    tau = float(np.sum(2 * np.arctanh(kappa)))
    if t > 10_000:  # kappa_k falls with k
        tau += (t - 10_000) * 2 * math.atanh(float(kappa[-1]))
    return tau * (1 + 1e-12)


def _kappa(variance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Upper bound on 2 sum_{m >= 1} exp(-2 pi^2 c^2 m^2), from m^2 >= 1 + 3 (m - 1)."""
    r: NDArray[np.float64] = np.exp(-2 * np.pi**2 * variance)
    return 2 * r / (1 - r**3)


def lattice_delta(epsilon: float, scale: float, steps: int, sensitivity: int) -> Bracket:
    """The exact delta(epsilon) of T discrete Gaussian releases, enclosed.

    Formula and proof: this module's text. The bracket's relative width is about 1e-11 for scale >= 3, and a
    few times tau = `sum_gap(scale, steps)` below.

    Args:
        epsilon: epsilon >= 0.
        scale: sigma of the noise, in lattice units, scale >= 1.
        steps: T >= 1, number of adaptive releases.
        sensitivity: s >= 1, in lattice units (`Lattice.sensitivity`).

    Returns:
        Bracket of delta in [0, 1].

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: scale below 1.
    """
    eps = real("epsilon", epsilon, at_least=0.0)
    sigma, t, s = _scale(scale), integer("steps", steps), integer("sensitivity", sensitivity)
    variance, slope = t * sigma**2, s / sigma**2
    start = eps * sigma**2 / s - t * s / 2
    if start > 38 * math.sqrt(variance):  # rho(a) < 1e-313
        return Bracket(0.0, 0.0, 1e-300)
    if math.sqrt(variance) <= _SUMMED:
        value, gap = _summed(start, slope, variance)
    else:
        value = float(delta_from_gdp(eps, math.sqrt(t) * s / sigma))
        gap = _trapezoid_gap(start, slope, variance)
    spread = math.expm1(sum_gap(sigma, t) + float(_kappa(np.array(variance))) + _ROUNDING)
    lower, upper = max(0.0, (value - gap) * (1 - spread)), min(1.0, (value + gap) * (1 + spread))
    return Bracket(lower, min(value, 1.0), upper)


def _summed(start: float, slope: float, variance: float) -> tuple[float, float]:
    """The sum over x > start with rho for the law of S, and a bound on the part left out."""
    first = math.floor(start) + 1
    last = math.ceil(math.sqrt(max(first, 0) ** 2 + 100 * variance))
    first = max(first, -last)
    x = np.arange(first, last + 1, dtype=np.float64)
    norm = math.sqrt(2 * math.pi * variance)
    log_rho = -(x**2) / (2 * variance)
    value = float(np.sum(np.exp(log_rho) * -np.expm1(-slope * (x - start)))) / norm
    return value, math.exp(float(log_rho[-1]))  # both tails: 2 rho(last) sqrt(pi V/2) / sqrt(2 pi V)


def _trapezoid_gap(start: float, slope: float, variance: float) -> float:
    jump = slope * math.exp(-(max(start, 0.0) ** 2) / (2 * variance))
    variation = 7 * jump
    if start < 0:
        variation = jump + 4 * math.exp(-0.5) / math.sqrt(variance) + 5 * slope
    return variation / 16 / math.sqrt(2 * math.pi * variance)


def lattice_scale(epsilon: float, delta: float, steps: int, sensitivity: int) -> float:
    """A noise parameter for which T releases are certainly (epsilon, delta)-DP, as small as can be shown.

    The continuous Gaussian's sigma = sqrt(T) s/mu_exact, enlarged until the upper end of `lattice_delta`
    meets delta; the enlargement is bisected to 1e-13 of sigma. (On a lattice of a few levels a
    little less than the continuous sigma can do; that is not sought.)

    Args:
        epsilon: epsilon > 0.
        delta: 0 < delta < 1.
        steps, sensitivity: as for `lattice_delta`.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: the scale would be below 1: use a lattice with more levels.
    """
    t, s = integer("steps", steps), integer("sensitivity", sensitivity)
    target = real("delta", delta, above=0.0, below=1.0)
    sigma = math.sqrt(t) * s / float(gdp_from_epsilon(epsilon, target))

    def private(inflation: float) -> bool:
        return lattice_delta(epsilon, sigma * (1 + inflation), t, s).upper <= target

    low, high = 0.0, 1e-13
    while not private(high):
        low, high = high, 2 * high
    while high - low > 1e-13:
        middle = (low + high) / 2
        low, high = (low, middle) if private(middle) else (middle, high)
    return sigma * (1 + high)


def _scale(scale: float) -> float:
    sigma = real("scale", scale, above=0.0)
    precondition(sigma >= _SMALLEST_SCALE, f"scale must be at least {_SMALLEST_SCALE:g} lattice units; got {sigma!r}")
    return sigma
