"""The numbers by which clipping and the distribution of the directions enter the theorem of the module `certificate`.

Gradients are in units of L, the bound on samples' gradients, and curvatures in units of ell, the smoothness. Proofs:
dpzero_theory/theory/sharp/proof.md, steps 3 and 4 (sphere, Gaussian, frame), sections 6 (random signs) and 15 (low
rank).
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

# `_line`, for a clip c, searches for its number c' between c and c + 12. Beyond, the tail moments E[v 1{v > c'}] of a
# `Projection` v are below the rounding error of E[(v - c)_+ v].
_BEYOND = 12.0


@dataclass(frozen=True)
class Constants:
    """Numbers with which the theorem of `certificate` bounds a step with K random directions and clipping.

    Units are such that no sample's gradient is longer than 1 and the smoothness is 1. U is the (d, K) matrix of the
    directions u, E[u u'] = I; g is the mean gradient and G its norm; g_i is the gradient of sample i; b_i is what
    clipping to norm c sqrt(K) removes from the K numbers U'g_i, and b the mean of the b_i over samples; H is any (d, d)
    matrix with 0 <= H <= I and trace(H) <= r. Each array has one entry for each clip c.

    Attributes:
        kept, bias: E[(U'g - b)'U'g]/K >= kept G^2 - bias G.
        quadratic, cross, excess: E[(U'g - b)'U'HU(U'g - b)]/K^2 <= quadratic G^2 + 2 cross G + excess^2.
        sampled: the mean over samples i of E[(U'g_i - b_i)'U'HU(U'g_i - b_i)]/K^2 is at most sampled^2.
        spread: E[(U'g - b)'U'HU(U'g - b)]^(1/2)/K <= spread G + excess.
        smooth_first, smooth_second: if finite differences with smoothing lambda, in place of derivatives, change the
            mean of the clipped vectors U'g_i - b_i by w, then E|w'U'g|/K <= (lambda/2) smooth_first G and E[w'U'HU
            w]/K^2 <= (lambda smooth_second/2)^2.
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
    """A distribution of K random directions in R^d, with the bounds that the theorem of `certificate` needs of it.

    U is the (d, K) matrix of the directions u, E[u u'] = I. A clip is given as c = C/(L sqrt(K)), where C clips the
    norm of a sample's K finite differences, and L bounds the norm of its gradient. H is any (d, d) matrix with 0 <= H
    <= I and trace(H) <= r, the effective rank.

    Attributes:
        name: the name, such as "sphere".
        constants: a function (array of clips c, d, r, K, layer_rank) that returns the `Constants`, valid for every
            `Problem.sample_rank`. Only directions of low rank use `layer_rank` (`Problem.layer_rank`).
        curvature: a function (d, s) that returns upper bounds on E[(u'Au)^2] and E[(u'Au)^3] for one direction u and
            every matrix A with 0 <= A <= I and trace s >= 1.
        largest: a function (d, K) that returns the largest possible ||U'a||/sqrt(K) for a unit vector a; a clip c above
            this value has no effect.
        most: a function of d that returns the largest allowed K.
        removed: a function (array of clips c, d, r, K) that returns two arrays of bounds. If clipping to norm c sqrt(K)
            removes w from U'a, a being a unit vector, the first bounds E[w'U'a]/K and the second sqrt(E[w'U'HU w]/K^2)
            for every H. None for random signs and directions of low rank.
        rank: the number of products in a direction of low rank, which is a sum of products of random signs; infinite
            for other distributions.
        fixed_norm: True if every direction has length sqrt(d).
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
        """Return a number c with E[(u'a)^(2 power)] <= c E[Z^(2 power)] for a direction u, a unit vector a and Z ~ N(0,
        1).

        `power` is at least 2. c is 1 unless `rank` is finite.
        """
        if math.isinf(self.rank):
            return 1.0
        half = self.rank / 2  # The factor is E[X^power] for X ~ chi^2_rank/rank.
        return math.exp(math.lgamma(half + power) - math.lgamma(half) - power * math.log(half))


LAWS: Registry[SharpLaw] = Registry("direction")
"""The distributions of directions that the theorem of `certificate` covers, by their names "sphere", "gaussian",
"rademacher", "frame" (orthogonal directions) and "low-rank:RANK" (RANK outer products for each weight matrix)."""


def known_direction(direction: str) -> str:
    """Check the name of a distribution of directions, and return it ("low-rank" for "low-rank:1"). Raises ValueError
    unless it is "sphere", "gaussian", "rademacher", "frame", "low-rank", "low-rank:RANK" or a name that a user
    registered in `dpzero_theory.sphere.DIRECTIONS` or `LAWS`."""
    if isinstance(direction, str) and (direction in LAWS or direction in DIRECTIONS):
        return direction
    family = direction.partition(":")[0] if isinstance(direction, str) else direction
    known = dict.fromkeys([*DIRECTIONS, *DIRECTIONS.families, *LAWS, *LAWS.families])
    check.choice("direction", family if family in LAWS.families else direction, tuple(known))
    return LAWS[direction].name


def law_of(direction: str) -> SharpLaw:
    """Return the `SharpLaw` (a distribution of directions, with the bounds that the theorem of `certificate` needs)
    with a given name, such as "sphere" or "low-rank:4".

    Raises ValueError if the name is unknown, and PreconditionError if it is in `sphere.DIRECTIONS` but not in `LAWS`.
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
    """Return the `Constants` with which `certificate` bounds a step, if no sample's gradient is longer than L.

    Args:
        clip: one or several numbers c = C/(L sqrt(K)) > 0, where C clips the norm of a sample's K finite differences.
        d: the dimension.
        r: the effective rank, in [1, d]: a matrix that bounds the mean loss's Hessian from both sides has trace at most
            r times its norm.
        direction: the name of the distribution of the directions, such as "sphere", "frame" or "low-rank:4".
        sample_rank: `Problem.sample_rank`, in [1, d]; None stands for d. It has an effect on `smooth_first` and
            `smooth_second` only.
        directions_per_step: K >= 1; at most d for "frame".
        layer_rank: `Problem.layer_rank`, which has an effect for directions of low rank only; None if not assumed.

    Raises:
        ValueError: an argument is outside its range.
        PreconditionError: `LAWS` has no bounds for the distribution, or it is "frame" and K is above d.
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
    # m(1) >= 1 - beta. Under `lower` v^2 is less spread out, in convex order; as min(h v, c) v is concave in
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
    """Bounds for K directions whose distribution is invariant under rotations, from which `Constants` are computed.

    U is the (d, K) matrix of the directions u, E[u u'] = I; a and e are orthogonal unit vectors, and v =
    ||U'a||/sqrt(K). H is any matrix with 0 <= H <= I and trace(H) <= r.

    Attributes:
        r: the effective rank, at least 1.
        across: numbers p0 and q0 such that, for a vector w in R^K along U'a, the mean of (w'U'e)^2 for a given v is at
            most K (p0 - q0 v^2) ||w||^2.
        spread2: an upper bound on E[(U'a)'U'HU(U'a)]/K^2.
        upper, lower: two distributions of v. The mean of every function that is convex in v^2 is at most its mean under
            `upper`, and at least its mean under `lower`.
        smooth_first, smooth_second: factors of lambda/2 in the bounds on the finite differences' error in `Constants`.
        slack: how far E[v^2 (v^2 + (r - 1)(p0 - q0 v^2))] is above spread2, divided by 2 (r - 1).
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
        # What clipping takes off E[v^2 w], where w = v^2 + (r - 1)(p0 - q0 v^2) with (p0, q0) = `across`, is E[(v^2 -
        # c^2)_+ w] = 2 E[(v - c)_+ v w] - E[(v - c)_+^2 w], the least for v of the distribution `lower`. `spread2` may
        # be 2 (r - 1) slack below E[v^2 w]; this is subtracted, so that spread2 - `removed` bounds what is left.
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
        # Upper bounds on E[phi'U'a]/K, and on E[phi'U'HU phi]^(1/2)/K if 0 <= H <= I and trace(H) <= r, where a is a
        # unit vector, U has the K directions as columns, and phi is what clipping to norm c sqrt(K) removes from U'a
        beta, _, excess2 = self._moments(c, self.upper)
        return beta, np.sqrt(excess2)

    def _moments(self, c: Array, law: Projection) -> tuple[Array, Array, Array]:
        # E[(v - c)_+ v], E[(v - c)_+ v w], E[(v - c)_+^2 w] for v of `law`; w = v^2 + (r - 1)(p0 - q0 v^2) by `across`.
        # Here v is ||U'a||/sqrt(K) for a unit vector a and K directions U. If phi is along U'a, 0 <= H <= I and
        # trace(H) <= r, K |phi|^2 w bounds the mean of phi'U'HU phi: in the worst H the eigenvector a adds (phi'U'a)^2
        # = K |phi|^2 v^2, and the others, of trace r - 1, at most K |phi|^2 (r - 1)(p0 - q0 v^2).
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
    # The `Constants` for random signs (rank infinite) and for directions of low rank, sums of `rank` products of random
    # signs. c, d, r, k and layer_rank are the arguments of `SharpLaw.constants`.
    second = 1 + 2 / rank  # Fourth moments of a direction are at most this number times those of a Gaussian one.
    lost = removed(c, Projection(k, math.inf) if math.isinf(rank) else Products(k, int(rank)))
    crossed = min(1.5 * (r + 1), r + 2.25, math.inf if layer_rank is None else layer_rank + 1)
    # If 0 <= H <= I and trace(H) <= r, E[(u'g)^2 u'Hu] <= quartic |g|^2 + 2 g'Hg for a direction u, and g'Hg <= |g|^2.
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
        # ||u||^2 = d for random signs u (rank inf) and rank 1; otherwise ||u||^2 <= rank d and E||u||^4 <= d (d + 2).
        smooth_first=float(d) if rank in (1, math.inf) else math.sqrt(d) * math.sqrt(d + 2),
        smooth_second=math.sqrt(r) * d * (1 if math.isinf(rank) else rank),
    )


def _gaussian_curvature(d: int, s: float) -> tuple[float, float]:
    # For u ~ N(0, I) and 0 <= A <= I with trace s, E[(u'Au)^2] = s^2 + 2 tr(A^2) <= s^2 + 2 s; alike for E[(u'Au)^3]
    return s * (s + 2), s * (s + 2) * (s + 4)


def _sphere_curvature(d: int, s: float) -> tuple[float, float]:
    # A Gaussian u is one on the sphere times an independent x: divide by E[x^4] = (d + 2)/d, E[x^6] = E[x^4] (d + 4)/d
    share = d / (d + 2)
    return share * s * (s + 2), share * d / (d + 4) * s * (s + 2) * (s + 4)


@lru_cache
def _low_rank(text: str) -> SharpLaw:
    # `text` is RANK in the name "low-rank:RANK"; an empty text stands for rank 1
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
LAWS.register(  # moments of random signs are at most those of Gaussian directions
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
