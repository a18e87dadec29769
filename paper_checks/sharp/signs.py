"""Check section 6 of the sharpened theorem's proof (docs/explanation/sharpened-theorem.md): what clipping removes from
directions of random signs.

In this module U' is the K x d matrix of a step's signs, a and e are unit vectors, y = U'a, w = U'e, v = ||y||/sqrt(K),
c is a clip, and phi(y) = y (1 - c sqrt(K)/||y||)_+ is what clipping removes from y. Expectations over the signs are
sums over all their patterns. `second`, `inner`, ... are fields of `dpzero_theory.theory.sharp.signs.Removed`, and
`cross`, `excess`, ... of `dpzero_theory.theory.sharp.constants.Constants`."""

import itertools
import math
from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.optimize import minimize_scalar

from dpzero_theory.check import Array
from dpzero_theory.theory.sharp import constants, signs
from dpzero_theory.theory.sharp.products import Products
from dpzero_theory.theory.sharp.projection import Projection
from paper_checks.outcome import SEED, Checked, clip_jointly, within

SHAPES = ((1, 1), (1, 2), (1, 3), (1, 6), (1, 11), (2, 2), (2, 5), (3, 3), (4, 3), (12, 1))
"""The K and d of which all sign patterns are summed over."""
Block = tuple[int, int] | int
FACTORED: tuple[tuple[int, int, tuple[Block, ...]], ...] = (
    *((1, 1, (shape,)) for shape in ((2, 2), (2, 5), (3, 3), (5, 5), (4, 7))),
    *((1, 2, ((2, 2),)), (1, 2, ((2, 3),)), (1, 3, ((2, 2),)), (2, 1, ((2, 2),)), (2, 1, ((3, 3),))),
    *((3, 1, ((2, 2),)), (2, 2, ((2, 1),))),
    *((1, 1, ((3, 2), (2, 2))), (1, 1, ((3, 3), 3)), (2, 1, ((2, 2), 2)), (1, 2, ((2, 2), 2))),
)
"""For directions of low rank, of which all sign patterns are summed over: K, the rank, and the model's parameters,
where (m, n) is a weight matrix and a number the length of a vector."""
Case = tuple[str, int, Array]
"""The name of a law, K, and all patterns that K directions can have, shape (patterns, K, d)."""


@cache
def _patterns(k: int, d: int) -> Array:
    """Return all patterns of signs that `k` directions in R^d can have, shape (2^(k d), k, d)."""
    return np.array(list(itertools.product((-1.0, 1.0), repeat=k * d))).reshape(-1, k, d)


@cache
def factored(k: int, rank: int, *blocks: Block) -> Array:
    """Return all patterns of K directions of low rank, shape (patterns, K, d). See `FACTORED` for the arguments."""
    parts = []
    for block in blocks:
        if isinstance(block, int):
            parts.append(_patterns(1, block)[:, 0])
        else:
            left, right = (_patterns(rank, size) for size in block)
            products = np.einsum("ajm,bjn->abmn", left, right) / math.sqrt(rank)
            parts.append(products.reshape(-1, block[0] * block[1]))
    picks = np.stack(np.meshgrid(*(np.arange(len(part)) for part in parts), indexing="ij"), axis=-1)
    one = np.concatenate([part[i] for part, i in zip(parts, picks.reshape(-1, len(parts)).T, strict=True)], axis=1)
    several = np.stack(np.meshgrid(*[np.arange(len(one))] * k, indexing="ij"), axis=-1).reshape(-1, k)
    return one[several]


def _cases(law: str) -> list[Case]:
    if law == "rademacher":
        return [(law, k, _patterns(k, d)) for k, d in SHAPES]
    return [(f"{law}:{rank}", k, factored(k, rank, *blocks)) for k, rank, blocks in FACTORED]


def removed_along(law: str, c: float, k: int) -> signs.Removed:
    rank = constants.law_of(law).rank
    return signs.removed(np.array(c), Products(k, int(rank)) if math.isfinite(rank) else Projection(k, math.inf))


def _unit(rng: np.random.Generator, d: int) -> Array:
    """Return a random unit vector in R^d: with equal entries, with few equal entries, or with entries of unequal
    sizes."""
    kind = rng.integers(3)
    a = np.ones(d) if kind == 0 else rng.standard_normal(d) * rng.random(d) ** 2
    if kind == 1:
        a = rng.choice([-1.0, 1.0], d) * (rng.permutation(d) < rng.integers(1, d + 1))
    return a / float(np.linalg.norm(a))


def _clip(rng: np.random.Generator, k: int) -> float:
    return float(max(0.1, 1 + rng.uniform(-2.0, 2.5) / math.sqrt(k)))


def _over(moment: float, bound: Array) -> float:
    """Return the moment over its bound; 0 where the moment is at most 1e-13, which counts as 0 up to rounding."""
    return moment / float(bound) if moment > 1e-13 else 0.0


def sign_moments(law: str = "rademacher") -> Checked:
    """Sections 6 and 15 of the sharpened theorem's proof: for directions of random signs or of low rank, summed over
    all sign patterns, E(v - c)_+^m is at most `second` for m = 2 and `fourth` for m = 4. Here v is the length of a unit
    vector's projection onto the directions, over sqrt(K)."""
    rng = np.random.default_rng(SEED + 10)
    worst = 0.0
    for (name, k, patterns), _ in itertools.product(_cases(law), range(40)):
        v = np.linalg.norm(patterns @ _unit(rng, patterns.shape[2]), axis=1) / math.sqrt(k)
        c = _clip(rng, k)
        bounds, over = removed_along(name, c, k), np.maximum(v - c, 0)
        worst = max(worst, _over(float(np.mean(over**2)), bounds.second), _over(float(np.mean(over**4)), bounds.fourth))
    return within(worst, 1 + 1e-12, "excess moments of sign sums over their bounds, all signs: largest ratio")


def sign_removed(law: str = "rademacher") -> Checked:
    """Sections 6 and 15 of the sharpened theorem's proof: summed over all patterns, E[phi(y)'w]/K is at most `inner`,
    E[(phi(y)'y)^2]/K^2 at most `along`, and E[(phi(y)'w)^2]/K^2 at most `across` where w is the projection of a vector
    orthogonal to that of y. Here phi(y) is what clipping removes from the projection y of a unit vector."""
    rng = np.random.default_rng(SEED + 30)
    worst = 0.0
    for (name, k, directions), _ in itertools.product(_cases(law), range(40)):
        d = directions.shape[2]
        a, e, c = _unit(rng, d), _unit(rng, d), _clip(rng, k)
        bounds, y = removed_along(name, c, k), directions @ a
        phi = y - clip_jointly(y[:, :, None], c * math.sqrt(k))[:, :, 0]

        def product(x: Array, power: int, phi: Array = phi, k: int = k) -> float:
            return float(np.mean((np.sum(phi * x, axis=1) / k) ** power))

        worst = max(worst, _over(product(directions @ e, 1), bounds.inner), _over(product(y, 1), bounds.inner))
        worst = max(worst, _over(product(y, 2), bounds.along))
        across = e - (e @ a) * a
        if np.linalg.norm(across) > 1e-6:
            worst = max(worst, _over(product(directions @ (across / np.linalg.norm(across)), 2), bounds.across))
    return within(worst, 1 + 1e-12, "moments of what clipping removes from sign sums, all signs: largest ratio")


def sign_mixed_moment(law: str = "rademacher") -> Checked:
    """Sections 6 and 15 of the sharpened theorem's proof: summed over all patterns, <U U'g, U b>_H/K^2 is at least
    -cross G, also where one sample alone is clipped and g is any vector; ||U b||_H^2/K^2 is at most excess^2 in the
    mean, and ||U m||_H^2/K^2 at most spread^2 G^2 + 2 cross G + excess^2. Here m is the mean of one to three samples'
    clipped slopes, b what clipping removes, g the mean gradient, G its norm, H any curvature matrix, and <x, z>_H =
    x'Hz."""
    rng = np.random.default_rng(SEED + 31)
    worst = 0.0
    for (name, k, directions), _ in itertools.product(_cases(law), range(40)):
        d, c = directions.shape[2], _clip(rng, k)
        size = int(rng.integers(1, 4))
        gradients = np.array([_unit(rng, d) for _ in range(size)])
        gradients[1:] *= rng.random((size - 1, 1))
        if size == 2:
            gradients[1] = -rng.random() * gradients[0]
        weights = rng.dirichlet(np.ones(size))
        norm = float(np.linalg.norm(weights @ gradients))
        axes = np.linalg.qr(rng.standard_normal((d, d)))[0] if rng.random() < 0.5 else np.eye(d)
        root = axes * np.sqrt(rng.random(d) ** rng.integers(0, 6))
        root /= np.linalg.norm(root, axis=0).max()
        r = min(max(1.0, float(np.sum(root**2))), float(d))
        found = constants.constants(np.array(c), d, r, name, directions_per_step=k)
        slopes = directions @ gradients.T
        kept = clip_jointly(slopes, c * math.sqrt(k)) @ weights
        whole, step = (np.einsum("mkd,mk->md", directions, x) / k @ root for x in (slopes @ weights, kept))
        lost = whole - step
        other = -gradients[0] if rng.random() < 0.5 else _unit(rng, d)
        single = slopes[:, :, :1] - clip_jointly(slopes[:, :, :1], c * math.sqrt(k))
        first, second = (
            np.einsum("mkd,mk->md", directions, x) / k @ root for x in (directions @ other, single[:, :, 0])
        )
        worst = max(worst, _over(-float(np.mean(np.sum(first * second, axis=1))), found.cross))
        worst = max(worst, _over(-float(np.mean(np.sum(whole * lost, axis=1))), found.cross * norm))
        worst = max(worst, _over(float(np.mean(np.sum(lost**2, axis=1))), found.excess**2))
        total = (found.spread * norm) ** 2 + 2 * found.cross * norm + found.excess**2
        worst = max(worst, _over(float(np.mean(np.sum(step**2, axis=1))), total))
    return within(worst, 1 + 1e-12, "second moments of clipped steps along signs, all signs: largest ratio")


def sign_bounds() -> Checked:
    """Section 6 of the sharpened theorem's proof: the inequalities between numbers hold on 200,000 random vectors and
    are attained, and the library's bounds on what the clip removes of a gradient (`theory.sharp.signs.removed`) are the
    minima that the section defines, by another quadrature and search: at most 2% above them, and not below."""
    worst = max(abs(_largest_ratio() - 1) / 1e-4, 0.0)
    for k, clips in ((1, (0.3, 1.0, 2.0, 3.5, 6.0)), (5, (0.5, 1.0, 1.4, 2.2)), (100, (0.7, 1.0, 1.1, 1.3))):
        tail = _tail_of(k)
        for c in clips:
            worst = max(worst, off_the_minima(removed_along("rademacher", c, k), tail, c))
    return within(worst, 1.0, "inequalities for signs, and the library's minima: largest deviation over the allowed")


def off_the_minima(found: signs.Removed, tail: "Tail", c: float) -> float:
    """Return how far the library's bounds at the clip c are from the minima that section 6 of the proof defines, over
    what is allowed: 2% above, 1e-6 below. `tail` is the function (m, c) -> E(v - c)_+^m."""
    second = min(_square(tail, 1.0, c), 1.0)
    tilted = _least(lambda t: _square(tail, 1 + t, c) / (4 * t))
    across = _least(lambda t: _fourth_across(tail, t, c))
    along = tail(4, c) + 2 * c * tail(3, c) + c * c * second
    ratios = [
        float(found.second) / second,
        float(found.inner) / min(tilted, math.sqrt(second)),
        float(found.across) / across,
        float(found.along) / along,
    ]
    return max((max(ratios) - 1) / 0.02, (1 - min(ratios)) / 1e-6)


def _largest_ratio() -> float:
    """Return how far two inequalities are broken or attained, over random vectors y and z in R^3, numbers x and c, and
    clips.

    Their ratios of left to right side are phi(y)'(z - y) over (||z|| - clip)_+^2/4, where phi(y) is what clipping y
    removes, and (x - c)_+^2 over 4/(27 h) (x - c + h)_+^3. Returned is the larger of the two largest ratios, which is
    at most 1 if both inequalities hold; but if one of the ratios comes nowhere within 1e-4 of 1, the smaller of the
    two. Half of the z are along y, at the length where the ratio is near 1.
    """
    rng = np.random.default_rng(SEED + 32)
    y, z = 2 * rng.standard_normal((2, 200_000, 3))
    clip = rng.uniform(0.2, 3.0, len(y))
    norm = np.linalg.norm(y, axis=1)
    z[::2] = (y * ((2 * norm - clip) / norm * rng.uniform(0.99, 1.01, len(y)))[:, None])[::2]
    lost = y * np.maximum(1 - clip / norm, 0)[:, None]
    allowed = np.maximum(np.linalg.norm(z, axis=1) - clip, 0) ** 2 / 4
    first = np.sum(lost * (z - y), axis=1) / np.maximum(allowed, 1e-9)
    h, x = rng.uniform(0.2, 3.0, (2, 200_000))
    second = x**2 / (4 / (27 * h) * (x + h) ** 3)  # x here is x - c in the inequality
    ends = float(first.max()), float(second.max())
    return max(ends) if min(ends) > 1 - 1e-4 else min(ends)


Tail = Callable[[int, float], float]


def _tail_of(k: int) -> Tail:
    """Return the function (m, c) -> E(v - c)_+^m for v = chi_k/sqrt(k), by the trapezoidal rule with 4,001 nodes from c
    upwards. chi_k is the length of k independent standard normals."""
    log_norm = k / 2 * math.log(k / 2) - math.lgamma(k / 2) + math.log(2)

    def tail(m: int, c: float) -> float:
        v = np.linspace(max(c, 0.0), max(c, 1.0) + 14 / math.sqrt(k), 4001)
        with np.errstate(divide="ignore"):
            density = np.exp(log_norm + (k - 1) * np.log(v) - k * v * v / 2) if k > 1 else np.exp(log_norm - v * v / 2)
        return float(np.trapezoid(np.maximum(v - c, 0) ** m * density, v))

    return tail


def _least(function: Callable[[float], float], most: float = 1.0) -> float:
    """Return the smallest value of a function that has one minimum on (0, most], as far as a search between most e^-14
    and `most` finds it. The value is never below the least."""
    ends = (math.log(most) - 14, math.log(most))
    found = minimize_scalar(lambda s: function(math.exp(s)), bounds=ends, method="bounded")
    return min(float(found.fun), function(most))


def _square(tail: Tail, length: float, c: float) -> float:
    """Return the least, over h in (0, c], of the numbers 4 length^3/(27 h) E(v - (c - h)/length)_+^3, each of which is
    at least E(length v - c)_+^2. `tail` is the function (m, c) -> E(v - c)_+^m for v, as `_tail_of` returns it."""
    return _least(lambda h: 4 * length**3 / (27 * h) * tail(3, (c - h) / length), c)


def _fourth_across(tail: Tail, tilt: float, c: float) -> float:
    length = math.sqrt(1 + tilt**2)
    return length**4 / (8 * tilt**2) * tail(4, c / length)
