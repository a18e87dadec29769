"""Bounds on what clipping removes from projections on vectors of random signs.

U is a (d, K) matrix whose columns are vectors of random signs, or sums of products of such vectors. Let a and e be unit
vectors, y = U'a, w = U'e, v = ||y||/sqrt(K), and c > 0. Clipping y to norm c sqrt(K) removes phi(y) = y (1 - c
sqrt(K)/||y||)_+ from y. The bounds follow from three inequalities: for m = 3 and 4, E(v - c)_+^m is at most its value
for v = chi_K/sqrt(K) (`Projection`) or the distribution of `Products`; (x - c)_+^2 <= (4/(27 h)) (x - c + h)_+^3 for 0
< h <= c; and, for every theta > 0,

    theta phi(y)'w <= (||y + theta w|| - c sqrt(K))_+^2/4.

Proof: dpzero_theory/theory/sharp/proof.md, section 6.
"""

from dataclasses import dataclass

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.theory.sharp.products import Products
from dpzero_theory.theory.sharp.projection import Projection

# The bounds of `removed` hold for all values of free numbers h > 0 and theta > 0; it takes the best over those tried:
# for h these factors times 1/s, for theta or theta^2 these factors times 1/(c s), and a few more. s is roughly the
# slope of minus the log density of v = ||U'a||/sqrt(K) at the clip c.
_APART = np.geomspace(0.36, 1.0, 6)  # h for `Removed.second`
_APART_INNER, _THETAS_INNER = np.array([0.55, 0.75, 0.95]), np.array([0.5, 0.7, 0.9])  # h, theta for `Removed.inner`
_SQUARES_ACROSS = np.geomspace(0.5, 1.6, 4)  # theta^2 for `Removed.across`


@dataclass(frozen=True)
class Removed:
    """Upper bounds on moments of what clipping removes, for all unit vectors a and e; arrays with one entry for each
    clip c.

    U is a (d, K) matrix whose columns are vectors of random signs, or sums of products of such vectors; y = U'a, w =
    U'e, v = ||y||/sqrt(K), and phi is what clipping y to norm c sqrt(K) removes from y.

    Attributes:
        second: a bound on E||phi||^2/K = E(v - c)_+^2.
        fourth: a bound on E||phi||^4/K^2 = E(v - c)_+^4.
        inner: a bound on E[phi'w]/K.
        along: a bound on E[(phi'y)^2]/K^2 = E[(v - c)_+^2 v^2].
        across: a bound on E[(phi'w)^2]/K^2 for e orthogonal to a.
    """

    second: Array
    fourth: Array
    inner: Array
    along: Array
    across: Array


def removed(c: Array, law: Projection | Products) -> Removed:
    """Return the bounds `Removed` at given clips.

    Args:
        c: the clips > 0, shape (N,).
        law: a distribution whose E(v - c)_+^3 and E(v - c)_+^4 are at least those of the v in `Removed`: for random
            signs as directions `Projection(K, inf)`, for sums of products of random signs `Products(K, rank)`.
    """
    steepness = law.steepness(c)
    # The bounds hold for all h and theta; the best ones are these two numbers times factors near 1.
    apart, theta = 1 / steepness, np.minimum(1 / (c * steepness), 1.0)
    tried = [*np.multiply.outer(_APART, apart), c, np.maximum((1 - c) / 2, apart)]
    second = np.minimum(_square(law, 1.0, c, np.array(tried)).min(axis=0), 1)
    thetas = np.multiply.outer(_THETAS_INNER, theta)
    further = np.multiply.outer(_APART_INNER, np.ones_like(thetas)) * apart
    inner = (_square(law, 1 + thetas, c, further) / (4 * thetas)).min(axis=(0, 1))
    squares = np.array([*np.multiply.outer(_SQUARES_ACROSS, theta), np.maximum(2 * (1 - c) / 3, theta)])
    length = np.sqrt(1 + squares)
    across = length**4 * law.excess(c / length, (4, 0))[0] / (8 * squares)
    third, fourth = law.excess(c, (3, 0), (4, 0))
    return Removed(
        second=second,
        fourth=fourth,
        inner=np.minimum(inner, np.sqrt(second)),
        along=fourth + 2 * c * third + c * c * second,
        across=across.min(axis=0),
    )


def _square(law: Projection | Products, length: Array | float, c: Array, apart: Array) -> Array:
    # An upper bound on E(length v - c)_+^2, where v = ||U'a||/sqrt(K) for a unit vector a and K directions U, random
    # signs or products of them, whose tail moments E(v - x)_+^3 `law` bounds. The arguments broadcast. The bound is
    # 4/(27 h) E(length v - c + h)_+^3 for any h in (0, c].
    h = np.minimum(apart, c)
    bound: Array = 4 / (27 * h) * length**3 * law.excess((c - h) / length, (3, 0))[0]
    return bound
