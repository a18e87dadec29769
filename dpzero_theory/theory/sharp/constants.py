"""The constants of the sharpened theorem, by which clipping and the law of the directions enter a step of K directions.

Units are L = ell = 1; the module `certificate` restores them. U = (u_1 .. u_K) are the directions, g_i the gradient of
sample i, g is their mean and G = ||g||. b_i is U'g_i minus its clip to norm c sqrt(K), and b the mean of the b_i. H is
any matrix with 0 <= H <= I and tr(H) <= r. `Constants` has the inequalities that the constants satisfy. Proofs:
dpzero_theory/theory/sharp/proof.md, steps 3 and 4 (sphere, Gaussian, frame), section 6 (random signs) and section 15
(low rank).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzero_theory import check
from dpzero_theory.bisection import halved
from dpzero_theory.check import Array
from dpzero_theory.registry import Registry
from dpzero_theory.sphere import DIRECTIONS
from dpzero_theory.theory.sharp.products import Products
from dpzero_theory.theory.sharp.projection import Projection
from dpzero_theory.theory.sharp.signs import removed

_BEYOND = 12.0
"""A search for a tangent (`_line`) goes from clip c to c + 12 at most: there the tail moments of a projection v are
below the rounding error of beta(c) = E[(v - c)_+ v]."""


@dataclass(frozen=True)
class Constants:
    """The constants with which inequalities hold for a step with K directions U and clipping, in units L = ell = 1.

    U has the directions u as its K columns, E[u u'] = I. g_i is a sample's gradient, g the mean gradient and G its
    norm; b_i is what clipping to norm c sqrt(K) removes from U'g_i, and b the mean of the b_i; H is any matrix with 0
    <= H <= I and tr(H) <= r. Arrays have an entry for each c.

    Attributes:
        kept, bias: E[(U'g - b)'U'g]/K >= kept G^2 - bias G.
        quadratic, cross, excess: E[(U'g - b)'U'HU(U'g - b)]/K^2 <= quadratic G^2 + 2 cross G + excess^2.
        sampled: the mean over samples i of E[(U'g_i - b_i)'U'HU(U'g_i - b_i)]/K^2 is at most sampled^2.
        spread: E[(U'g - b)'U'HU(U'g - b)]^(1/2)/K <= spread G + excess.
        smooth_first, smooth_second: if e_U is by how much finite differences with smoothing lambda change the mean over
            samples of the clipped vectors U'g_i - b_i, and e = lambda/2, then E|e_U'U'g|/K <= e smooth_first G and
            E[e_U'U'HU e_U]/K^2 <= (e smooth_second)^2.
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
    """A law of K directions u in R^d, E[u u'] = I, as the sharpened theorem (proof.md) needs it.

    It is for clips c = C/(L sqrt(K)), where C bounds the norm of a sample's K differences, and L that of its gradient.

    Attributes:
        name: the name of the law in `sphere.DIRECTIONS`, or `frame`: K directions orthogonal to each other.
        constants: a function (array of c, d, r, K, layer_rank) -> the constants at the effective rank r; their
            `smooth_first` and `smooth_second` hold whatever the traces of the samples' Hessians are. Only directions of
            low rank use `layer_rank` (`Problem.layer_rank`).
        curvature: a function (d, s) -> upper bounds on E[(u'Hu)^2] and E[(u'Hu)^3] for a direction u and a matrix H
            with 0 <= H <= I and trace s >= 1.
        largest: a function (d, K) -> the largest value of ||U'g||/(G sqrt(K)) for the directions U and a vector g of
            norm G; a larger clip c has no effect.
        most: a function d -> the largest number K of directions a step.
        removed: a function (array of c, d, r, K) -> upper bounds on two numbers at each c, for the part phi in R^K that
            clipping to norm c sqrt(K) removes from U'a, a being a unit vector and U the K directions: E[phi'U'a]/K, and
            the square root of E[phi'U'HU phi]/K^2 for every matrix H with 0 <= H <= I and tr(H) <= r. None for random
            signs and their products, for which these numbers need not be computed.
        rank: rho for directions of low rank, which are sums of rho products of random signs; infinite for other laws
            (`sphere.DirectionLaw.rank` is 0 for them).
        fixed_norm: whether a direction has length sqrt(d) always.
    """

    name: str
    constants: Callable[[Array, int, float, int, float | None], Constants]
    curvature: Callable[[int, float], tuple[float, float]]
    largest: Callable[[int, int], float]
    most: Callable[[int], float] = lambda d: math.inf
    removed: Callable[[Array, int, float, int], tuple[Array, Array]] | None = None
    rank: float = math.inf
    fixed_norm: bool = True

    def moment(self, power: float) -> float:
        # For a direction u that is a sum of rho products of random signs, a unit vector a and power >= 2, E[(u'a)^(2
        # power)] is at most E[X^power] times what it is for a Gaussian u, with X ~ chi^2_rho/rho. For all other laws
        # the factor is 1.
        if math.isinf(self.rank):
            return 1.0
        half = self.rank / 2
        return math.exp(math.lgamma(half + power) - math.lgamma(half) - power * math.log(half))


LAWS: Registry[SharpLaw] = Registry("direction")
"""The direction laws that the sharpened theorem covers, by name: those of `sphere.DIRECTIONS`, and `frame`, K
directions orthogonal to each other."""


def known_direction(direction: str) -> str:
    """Return the name of a direction law in its usual form, such as low-rank for low-rank:1.

    Known are sphere, gaussian, rademacher, frame, low-rank:RANK (low-rank is rank 1), and laws that users registered;
    ValueError is raised for any other name."""
    if isinstance(direction, str) and (direction in LAWS or direction in DIRECTIONS):
        return direction
    family = direction.partition(":")[0] if isinstance(direction, str) else direction
    known = dict.fromkeys([*DIRECTIONS, *DIRECTIONS.families, *LAWS, *LAWS.families])
    check.choice("direction", family if family in LAWS.families else direction, tuple(known))
    return LAWS[direction].name


def law_of(direction: str) -> SharpLaw:
    """Return the direction law named `direction`, with the functions that the sharpened theorem (proof.md) needs of it:
    "sphere", "gaussian", "rademacher", "frame", or "low-rank:RANK" with RANK from 1 to 64.

    Raises ValueError for an unknown name, and PreconditionError for a law that a user added to `sphere.DIRECTIONS`
    only.
    """
    name = known_direction(direction)
    if name in LAWS or name.partition(":")[0] in LAWS.families:
        return LAWS[name]
    covered = ", ".join((*LAWS, *LAWS.families))
    raise check.PreconditionError(f"the sharpened theorem covers the directions {covered}; it has none for {name}")


def constants(
    clip: ArrayLike,
    d: int,
    r: float,
    direction: str = "sphere",
    sample_rank: float | None = None,
    directions_per_step: int = 1,
    layer_rank: float | None = None,
) -> Constants:
    """Return the constants of the sharpened theorem (proof.md) at clips c = C/(L sqrt(K)), if no sample's gradient is
    longer than L.

    Args:
        clip: c > 0, a number or an array, for the clip C of the norm of a sample's K differences.
        d: dimension.
        r: effective rank, 1 <= r <= d, of the matrix H that bounds the mean loss's Hessian: tr(H) <= r ||H||.
        direction: the name of a law that `law_of` knows, such as "sphere", "frame" or "low-rank:4".
        sample_rank: r_s in [1, d] (`Problem.sample_rank`); None is r_s = d. A smaller r_s makes only `smooth_first` and
            `smooth_second` smaller.
        directions_per_step: K >= 1, at most d for a frame.
        layer_rank: `Problem.layer_rank`, which matters only for directions of low rank; None assumes nothing.

    Raises:
        ValueError: an argument outside its range.
        PreconditionError: a direction law that the theorem does not cover; more directions than a frame has.
    """
    c = check.real_array("clip", clip, above=0)
    d = check.integer("d", d)
    r = check.real("r", r, at_least=1, at_most=d)
    law = law_of(direction)
    k = check.integer("directions_per_step", directions_per_step)
    check.precondition(
        k <= law.most(d), f"directions_per_step must be at most d for a {law.name}; got {k} with d = {d}"
    )
    rank = check.real("sample_rank", d if sample_rank is None else sample_rank, at_least=1, at_most=d)
    found = law.constants(c, d, r, k, layer_rank)
    second, third = law.curvature(d, rank)
    cubes = math.cbrt(third) ** 2 * math.cbrt(law.curvature(d, r)[1])
    return replace(
        found,
        smooth_first=min(found.smooth_first, math.sqrt(second)),
        smooth_second=min(found.smooth_second, math.sqrt(cubes)),
    )


def _line(c: Array, beta: Array, lower: Projection) -> dict[str, Array]:
    # The constants `kept` and `bias` at the clips c, of a line kept h - bias that is at most m(h) for -1 <= h <= 1. v
    # is ||U'a||/sqrt(K) for a unit vector a and K directions U; m(h) = E[min(h v, c) v] is what clipping keeps of a
    # gradient of length h >= 0, in units of L, and m(-h) = -m(h). `beta` has upper bounds on E[(v - c)_+ v], so that
    # m(1) >= 1 - beta. Under the law `lower` v^2 is less spread out, in convex order; as min(h v, c) v is concave in
    # v^2, the m of `lower` is at least the true m for h >= 0, and at most the true m for h < 0.
    # For h >= 0 m is concave, so that the line kept h - bias is below m if it is so at h = 0 and h = 1. For h < 0 the m
    # of `lower` is convex and at most the true m, so that every tangent of it is below both. For any c' >= c, and M_1 =
    # E[v 1{v > c'}] and M_2 = E[v^2 1{v > c'}] under `lower`, its tangent at h = -c/c' is (1 - M_2) h - c M_1. So kept
    # = 1 - M_2 and bias = max(beta - M_2, c M_1) are valid. The best c' has M_2 + c M_1 = beta, which makes the two
    # terms equal. If `lower` is v = 1, its m is h for |h| <= c and constant beyond, and the best line goes through its
    # point at h = -min(c, 1) and (1, 1 - beta).
    if lower.largest == 1:
        kink = np.minimum(c, 1.0)
        return {"kept": 1 - beta / (1 + kink), "bias": beta * kink / (1 + kink)}

    def too_near(at: Array) -> NDArray[np.bool_]:
        first, second = lower.tails(at)
        return np.asarray(second + c * first > beta)

    _, touching = halved(too_near, c, np.maximum(c, np.minimum(c + _BEYOND, lower.largest)), 32)
    first, second = lower.tails(touching)
    return {"kept": 1 - second, "bias": np.maximum(beta - second, c * first)}


@dataclass(frozen=True, kw_only=True)
class _Invariant:
    """Constants of the sharpened theorem for K directions U whose law is invariant under rotations, E[u u'] = I.

    v is the length of y = U'a/sqrt(K) for a unit vector a. The constants hold for every H, 0 <= H <= I, tr(H) <= r.

    Attributes:
        r: the effective rank, at least 1.
        across: p0 and q0: for a unit vector e orthogonal to a and a vector phi along y, the mean of (phi'U'e)^2 for a
            given y is at most K (p0 - q0 v^2) |phi|^2.
        spread2: an upper bound on E[(U'a)'U'HU(U'a)]/K^2, the second moment of a step that clips nothing.
        upper, lower: laws that bound the law of v: the mean of a function that is convex in v^2 is at most its mean
            under `upper` and at least its mean under `lower`.
        slack: zeta >= 0, 0 if `across` is exact: the bound on that second moment which follows from `across`, the mean
            of v^2 (v^2 + (r-1)(p0 - q0 v^2)), is spread2 + 2 (r-1) zeta. Bounds on what clipping removes allow for it.
        smooth_first, smooth_second: for finite differences with smoothing 2 e, which change the mean clipped vector of
            a step's K differences by w: E|w'U'g|/K <= e smooth_first |g| for the mean gradient g, and E[w'U'HU w]/K^2
            <= (e smooth_second)^2.
    """

    r: float
    across: tuple[float, float]
    spread2: float
    upper: Projection
    lower: Projection
    smooth_first: float
    smooth_second: float
    slack: float = 0.0

    def constants(self, c: Array) -> Constants:
        beta, chi, excess2 = self._moments(c, self.upper)
        # Clipping removes E[(v^2 - c^2)_+ w], with the weight w of `_moments`, from E[v^2 w] = spread2 + 2 (r-1) slack.
        removed = 2 * chi - excess2
        if self.lower != self.upper:
            _, chi_low, excess2_low = self._moments(c, self.lower)
            removed = np.maximum(2 * chi_low - excess2_low - 2 * (self.r - 1) * self.slack, 0)
        chi = chi + 4 * self.slack * beta
        return Constants(
            **_line(c, beta, self.lower),
            quadratic=np.maximum(self.spread2 - chi, 0),
            cross=chi / 2,
            excess=np.sqrt(excess2),
            sampled=np.sqrt(np.maximum(self.spread2 - removed, 0)),
            spread=math.sqrt(self.spread2),
            smooth_first=self.smooth_first,
            smooth_second=self.smooth_second,
        )

    def removed(self, c: Array) -> tuple[Array, Array]:
        # For the part phi of U'a that clipping removes: E[phi'U'a]/K and the root of E[phi'U'HU phi]/K^2, at each c
        beta, _, excess2 = self._moments(c, self.upper)
        return beta, np.sqrt(excess2)

    def _moments(self, c: Array, law: Projection) -> tuple[Array, Array, Array]:
        # E[(v - c)_+ v], E[(v - c)_+ v w] and E[(v - c)_+^2 w] for v of `law`, where w = v^2 + (r - 1)(p0 - q0 v^2).
        # For a vector phi along U'a, K |phi|^2 w bounds the mean of phi'U'HU phi: in the worst H the eigenvector a adds
        # (phi'U'a)^2 = K |phi|^2 v^2, and the others, of trace r - 1, at most K |phi|^2 (r - 1)(p0 - q0 v^2).
        p, q = (self.r - 1) * self.across[0], 1 - (self.r - 1) * self.across[1]
        beta, third, second, weighted = law.excess(c, (1, 1), (1, 3), (2, 0), (2, 2))
        return beta, p * beta + q * third, p * second + q * weighted


def _sphere(d: int, r: float, k: int) -> _Invariant:
    # K = k independent directions, uniform on the sphere of radius sqrt(d) in R^d
    lower = Projection(k, max(k, d))
    rest = 1 / (d - 1) / k if d > 1 else 0.0
    return _Invariant(
        r=r,
        across=(rest * d, rest),
        spread2=((r + 2) * d / (d + 2) + (k - 1)) / k,
        slack=(k - 1) / k**2 / (d + 2),
        upper=Projection(k, k * d),
        lower=lower,
        smooth_first=lower.mean * d,
        smooth_second=math.sqrt(r) * d,
    )


def _frame(d: int, r: float, k: int) -> _Invariant:
    # K = k uniform directions of length sqrt(d) in R^d, orthogonal to each other
    law = Projection(k, d)
    rest = 1 / (d - 1) if d > 1 else 0.0
    fourth = d / (d + 2) * (k + 2) / k
    return _Invariant(
        r=r,
        across=(rest * d / k, rest),
        spread2=fourth + (r - 1) * rest * (d / k - fourth),
        upper=law,
        lower=law,
        smooth_first=law.mean * d,
        smooth_second=math.sqrt(r) * d,
    )


def _gaussian(d: int, r: float, k: int) -> _Invariant:
    # K = k independent standard normal directions in R^d
    law = Projection(k, math.inf)
    return _Invariant(
        r=r,
        across=(1 / k, 0.0),
        spread2=(r + k + 1) / k,
        upper=law,
        lower=law,
        smooth_first=law.mean * (d + 1) if k == 1 else math.sqrt(d) * math.sqrt(d + 2),
        smooth_second=math.sqrt(r) * math.sqrt(d + 2) * math.sqrt(d + 4),
    )


def _signs(c: Array, d: int, r: float, k: int, layer_rank: float | None, rank: float) -> Constants:
    """Return the sharpened theorem's constants for random signs, or for directions of low rank (sums of products of
    such signs).

    Args:
        c: the clips C/(L sqrt(K)), where C clips the norm of a sample's K differences and L bounds gradients.
        d: the dimension.
        r: the effective rank.
        k: K, the number of directions in a step.
        layer_rank: that the Hessian's block of each weight matrix is a Kronecker product of some A and B with
            tr(A)/||A|| + tr(B)/||B|| at most this; None for no such assumption. For random signs it has no effect.
        rank: rho, the number of products in a direction of low rank; infinite for random signs.
    """
    second = 1 + 2 / rank  # Fourth moments of a direction are at most this number times those of a Gaussian one.
    lost = removed(c, Projection(k, math.inf) if math.isinf(rank) else Products(k, int(rank)))
    crossed = min(1.5 * (r + 1), r + 2.25, math.inf if layer_rank is None else layer_rank + 1)
    # For a direction u and a vector g, E[(u'g)^2 u'Hu] <= quartic |g|^2 + 2 g'Hg, and 2 g'Hg is at most 2 |g|^2.
    quartic = r + 2 / rank * crossed
    spread2 = (quartic + k + 1) / k
    spread = math.sqrt(spread2)
    fourth = np.sqrt(lost.fourth * (second * r * (r + 2) / k + (1 - 1 / k) * r))
    excess = np.sqrt(np.minimum(lost.along + r * lost.across, fourth))
    return Constants(
        kept=np.ones_like(c),
        bias=lost.inner,
        quadratic=np.full_like(c, spread2),
        cross=np.minimum(spread * excess, lost.inner + math.sqrt((quartic + 1) / k) * excess),
        excess=excess,
        sampled=np.minimum(spread, math.sqrt(r) * c),
        spread=spread,
        # A direction u has ||u||^2 = d for rank 1 and for signs; otherwise E||u||^4 <= d (d + 2), ||u||^2 <= rho d.
        smooth_first=float(d) if rank in (1, math.inf) else math.sqrt(d) * math.sqrt(d + 2),
        smooth_second=math.sqrt(r) * d * (1 if math.isinf(rank) else rank),
    )


def _gaussian_curvature(d: int, s: float) -> tuple[float, float]:
    # For u ~ N(0, I), E[(u'Hu)^2] = s^2 + 2 tr(H^2), and tr(H^2) <= s for 0 <= H <= I; alike for the third moment
    return s * (s + 2), s * (s + 2) * (s + 4)


def _sphere_curvature(d: int, s: float) -> tuple[float, float]:
    # A Gaussian direction is one on the sphere times an independent length, so its moments are divided by the length's.
    share = d / (d + 2)
    return share * s * (s + 2), share * d / (d + 4) * s * (s + 2) * (s + 4)


@lru_cache
def _low_rank(text: str) -> SharpLaw:
    # RANK of the law's name `low-rank:RANK`; an empty text is rank 1
    law = DIRECTIONS[f"low-rank:{text or 1}"]
    rho = law.rank
    second, third = 1 + 2 / rho, (1 + 2 / rho) * (1 + 4 / rho)

    def curvature(d: int, s: float) -> tuple[float, float]:
        return second * s * (s + 2), 15 * third * s**3

    return SharpLaw(
        name=law.name,
        constants=partial(_signs, rank=rho),
        curvature=curvature,
        largest=lambda d, k: math.inf,
        rank=rho,
        fixed_norm=law.fixed_norm,
    )


def _register_rotation_invariant(name: str, law: Callable[[int, float, int], _Invariant], **further: Any) -> None:
    LAWS.register(
        SharpLaw(
            name=name,
            constants=lambda c, d, r, k, _: law(d, r, k).constants(c),
            removed=lambda c, d, r, k: law(d, r, k).removed(c),
            **further,
        )
    )


_register_rotation_invariant("sphere", _sphere, curvature=_sphere_curvature, largest=lambda d, k: math.sqrt(d))
_register_rotation_invariant(
    "gaussian", _gaussian, curvature=_gaussian_curvature, largest=lambda d, k: math.inf, fixed_norm=False
)
LAWS.register(  # the moments of random signs are at most those of the Gaussian law
    SharpLaw(
        name="rademacher",
        constants=partial(_signs, rank=math.inf),
        curvature=_gaussian_curvature,
        largest=lambda d, k: math.inf,
    )
)
_register_rotation_invariant(
    "frame", _frame, curvature=_sphere_curvature, largest=lambda d, k: math.sqrt(d / k), most=float
)
LAWS.register_family("low-rank", _low_rank)
