"""What clipping and the direction's law cost one step of DPZero: the constants of the sharpened theorem.

Units: L = ell = 1 (`certificate` restores them). With g_i the gradient of sample i, g their mean, G = ||g||,
b = u'g - mean_i clip_c(u'g_i), b_i the same for one sample, 0 <= H <= I and tr(H) <= r,

    E[(u'g - b) u'g]              >= kept G^2 - bias G
    E[(u'g - b)^2 u'Hu]           <= quadratic G^2 + 2 cross G + excess^2
    E[(u'g - b)^2 u'Hu]^(1/2)     <= spread G + excess
    E[(u'g_i - b_i)^2 u'Hu]       <= sampled^2

Proofs: dpzero_theory/theory/sharp/proof.md, steps 3 to 5 (sphere, Gaussian) and its section on random signs.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincc, erfc

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.registry import Registry
from dpzero_theory.sphere import DIRECTIONS, excess_moments

Tail = Callable[[Array], tuple[Array, Array]]

_BEYOND = 12.0  # what lies this far past c is below rounding against beta(c)
_NEGLIGIBLE = 60.0  # integrals stop where the density has fallen by exp(-60)
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_NODES, _WEIGHTS = (_NODES + 1) / 2, _WEIGHTS / 2


@dataclass(frozen=True)
class Constants:
    """The constants above at one or several clips c (in units of L); each is an array of the shape of c.

    `smooth_first` and `smooth_second` say what the finite difference's error costs, per unit of
    e = ell lambda/2: with e_u the error of the clipped mean, E[|e_u u'g|] <= e smooth_first G and
    E[e_u^2 u'Hu] <= (e smooth_second)^2.
    """

    kept: Array
    bias: Array
    quadratic: Array
    cross: Array
    excess: Array
    sampled: Array
    spread: float
    smooth_first: float
    smooth_second: float


@dataclass(frozen=True, kw_only=True)
class SharpLaw:
    """What the sharpened theorem knows of a direction law.

    Attributes:
        name: of the law in `sphere.DIRECTIONS`.
        constants: (c, d, r) -> the constants, the smoothing's for samples of any rank.
        curvature: d -> bounds of E[(u'Hu)^2] and E[(u'Hu)^3] over the Gaussian law's.
        largest: d -> what |u'g|/||g|| cannot exceed; a larger clip never acts.
    """

    name: str
    constants: Callable[[Array, int, float], Constants]
    curvature: Callable[[int], tuple[float, float]]
    largest: Callable[[int], float]


LAWS: Registry[SharpLaw] = Registry("direction")
"""The direction laws that the sharpened theorem covers."""


def law_of(direction: str) -> SharpLaw:
    """What is known of the law of that name. Raises ValueError where there is none, PreconditionError where nothing."""
    name = DIRECTIONS[direction].name
    covered = ", ".join(LAWS)
    check.precondition(name in LAWS, f"the sharpened theorem covers the directions {covered}; it has none for {name}")
    return LAWS[name]


def mean_projection(d: int) -> float:
    """nu = E|u_1| = sqrt(d) Gamma(d/2)/(sqrt(pi) Gamma((d+1)/2)) on the sphere.

    Falls from 1 at d = 1 to sqrt(2/pi). For d >= 300 from the ratio's asymptotic series in 1/d, because the
    logarithms of Gamma cancel there.
    """
    d = check.integer("d", d)
    if d < 300:
        return math.sqrt(d / math.pi) * math.exp(math.lgamma(d / 2) - math.lgamma((d + 1) / 2))
    x = 1 / d
    return math.sqrt(2 / math.pi) * (1 + x / 4 + x**2 / 32 - 5 * x**3 / 128 - 21 * x**4 / 2048)


def sphere_moments(c: ArrayLike, d: int) -> tuple[Array, Array, Array]:
    """First-order excess moments of u_1 on the sphere, for v = |u_1| and w = (d - v^2)/(d - 1).

    Returns (beta, eta, first) with beta = E[(v - c)_+ v], eta = E[(v - c)_+ v w], first = E[v 1{v > c}]:

        beta  = P(B > c^2/d),            B ~ Beta(1/2, (d+1)/2)
        eta   = d/(d+2) P(B > c^2/d),    B ~ Beta(1/2, (d+3)/2)
        first = nu (1 - c^2/d)_+^((d-1)/2)

    by parts, since u_1 has density proportional to (1 - x^2/d)^((d-3)/2). With them
    E[(v - c)_+ v^3] = 3 eta + c first (d - c^2)_+/(d + 1) and E[v^2 1{v > c}] = beta + c first.
    At d = 1, where w is not defined, eta is that formula's value and both identities still hold.

    Args:
        c: clip over gradient norm, c >= 0, a number or an array.
        d: dimension.
    """
    clip, d = check.real_array("c", c, at_least=0), check.integer("d", d)
    scaled = np.minimum(clip / math.sqrt(d), 1.0) ** 2
    beta = betaincc(0.5, (d + 1) / 2, scaled)
    eta = d / (d + 2) * betaincc(0.5, (d + 3) / 2, scaled)
    with np.errstate(divide="ignore"):
        power = np.exp((d - 1) / 2 * np.log1p(-scaled)) if d > 1 else np.ones_like(scaled)
    return beta, eta, mean_projection(d) * np.where(scaled < 1, power, 0.0)


def constants(
    clip: ArrayLike, d: int, r: float, direction: str = "sphere", sample_rank: float | None = None
) -> Constants:
    """The constants at clip c = C/L for a direction law.

    Args:
        clip: c > 0, a number or an array.
        d: dimension.
        r: effective rank, tr(H) <= r ||H||, 1 <= r <= d.
        direction: one of `LAWS`.
        sample_rank: r_s in [1, d], see `problem.Problem`; None is r_s = d. It only makes the smoothing cheaper.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: a direction law that the theorem does not cover.
    """
    c = check.real_array("clip", clip, above=0)
    d = check.integer("d", d)
    r = check.real("r", r, at_least=1, at_most=d)
    law = law_of(direction)
    rank = check.real("sample_rank", d if sample_rank is None else sample_rank, at_least=1, at_most=d)
    return _cheaper_smoothing(law.constants(c, d, r), r, rank, *law.curvature(d))


def _isotropic(c: Array, tail: Tail, largest: float, chi: Array, excess2: Array, spread2: float) -> dict[str, Array]:
    """The constants of a rotation-invariant law of u; `tail` gives (beta, first) of `sphere_moments`.

    (kept, bias) comes from the tangent, at gradient norm L c/c', to the concave map
    h -> E[clip_c(h u_1) u_1]; any c' >= c gives a valid pair, the best one solves
    E[v^2 1{v > c'}] + c E[v 1{v > c'}] = beta(c), v = |u_1|.
    """
    beta, _ = tail(c)
    low, high = c, np.maximum(c, np.minimum(c + _BEYOND, largest))
    for _ in range(32):
        middle = (low + high) / 2
        beta_middle, first = tail(middle)
        above = beta_middle + (middle + c) * first > beta
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    beta_high, first = tail(high)
    lost = beta_high + high * first
    return {
        "kept": 1 - lost,
        "bias": np.maximum(beta - lost, c * first),
        "quadratic": np.maximum(spread2 - chi, 0),
        "cross": chi / 2,
        "excess": np.sqrt(excess2),
        "sampled": np.sqrt(np.maximum(spread2 - 2 * chi + excess2, 0)),
    }


def _sphere(c: Array, d: int, r: float) -> Constants:
    def tail(x: Array) -> tuple[Array, Array]:
        beta, _, first = sphere_moments(x, d)
        return beta, first

    _, eta, first = sphere_moments(c, d)
    chi = (r + 2) * eta + c * first * np.maximum(d - c * c, 0) / (d + 1)
    second, weighted = excess_moments(c, d)
    other = np.maximum(d * second - weighted, 0) / (d - 1) if d > 1 else np.zeros_like(c)
    spread2 = (r + 2) * d / (d + 2)
    parts = _isotropic(c, tail, math.sqrt(d), chi, weighted + (r - 1) * other, spread2)
    return Constants(
        **parts,
        spread=math.sqrt(spread2),
        smooth_first=mean_projection(d) * d,
        smooth_second=math.sqrt(r) * d,
    )


def _gaussian(c: Array, d: int, r: float) -> Constants:
    def tail(x: Array) -> tuple[Array, Array]:
        return _gaussian_excess(x, 0), math.sqrt(2 / math.pi) * np.exp(-x * x / 2)

    beta, first = tail(c)
    parts = _isotropic(c, tail, math.inf, (r + 2) * beta + c * first, 2 * beta + r * _gaussian_excess(c, 2), r + 2)
    return Constants(
        **parts,
        spread=math.sqrt(r + 2),
        smooth_first=math.sqrt(2 / math.pi) * (d + 1),
        smooth_second=math.sqrt(r) * math.sqrt(d + 2) * math.sqrt(d + 4),
    )


def _rademacher(c: Array, d: int, r: float) -> Constants:
    step = np.geomspace(0.02, 3.0, 24)[:, None] * np.ones_like(c).reshape(1, -1)
    lower = np.maximum(c.reshape(1, -1) - step, 0)
    second = (4 / 27 * _gaussian_excess(lower, 3) / (c.reshape(1, -1) - lower)).min(axis=0).reshape(c.shape)
    excess = (_gaussian_excess(c, 4) * r * (r + 2)) ** 0.25
    spread = math.sqrt(r + 2)
    return Constants(
        kept=np.ones_like(c),
        bias=np.sqrt(np.minimum(second, 1)),
        quadratic=np.full_like(c, r + 2),
        cross=spread * excess,
        excess=excess,
        sampled=np.minimum(spread, math.sqrt(r) * c),
        spread=spread,
        smooth_first=float(d),
        smooth_second=math.sqrt(r) * d,
    )


def _cheaper_smoothing(k: Constants, r: float, rank: float, second: float, third: float) -> Constants:
    """The smoothing's cost from E[(u'Hu)^2] <= s(s+2) and E[(u'Hu)^3] <= s(s+2)(s+4), s = tr(H) >= 1, where smaller.

    These are the Gaussian moments; second and third are the law's over them.
    """
    cubes = math.cbrt(rank * (rank + 2) * (rank + 4)) ** 2 * math.cbrt(r * (r + 2) * (r + 4))
    return replace(
        k,
        smooth_first=min(k.smooth_first, math.sqrt(second * rank * (rank + 2))),
        smooth_second=min(k.smooth_second, math.sqrt(third * cubes)),
    )


def _gaussian_excess(c: Array, k: int) -> Array:
    """E[(|Z| - c)_+^k] for Z standard normal: sqrt(2/pi) e^(-c^2/2) int_0^inf t^k e^(-ct - t^2/2) dt."""
    if k == 0:
        tail: Array = erfc(c / math.sqrt(2))
        return tail
    span = 2 * _NEGLIGIBLE / (c + np.sqrt(c * c + 2 * _NEGLIGIBLE))
    t = span[..., None] * _NODES
    integral: Array = span * np.sum(_WEIGHTS * t**k * np.exp(-t * (c[..., None] + t / 2)), axis=-1)
    return math.sqrt(2 / math.pi) * np.exp(-c * c / 2) * integral


LAWS.register(
    SharpLaw(
        name="sphere",
        constants=_sphere,
        curvature=lambda d: (d / (d + 2), d / (d + 2) * d / (d + 4)),
        largest=math.sqrt,
    )
)
LAWS.register(
    SharpLaw(name="gaussian", constants=_gaussian, curvature=lambda d: (1.0, 1.0), largest=lambda d: math.inf)
)
LAWS.register(  # the moments of random signs are at most the Gaussian ones
    SharpLaw(name="rademacher", constants=_rademacher, curvature=lambda d: (1.0, 1.0), largest=lambda d: math.inf)
)
