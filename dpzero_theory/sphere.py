"""Random directions u in R^d: sampling, exact moments, and tail probabilities of u^T a with bounds on them.

The paper draws u uniformly from the sphere sqrt(d) S^{d-1}. Gaussian directions and Rademacher ones (random signs) also
have E[u] = 0 and E[u u^T] = I, and differ in the fourth moments. So the moments of the paper's Lemma lm:sphere are, for
every law of `DIRECTIONS`, the same function of E[u_i^4] and E[u_i^2 u_j^2]. The tails are those of the sphere; by
symmetry they need only the first coordinate u_1, with u_1^2/d ~ Beta(1/2, (d-1)/2).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, betaincc, ndtri

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.registry import Registry

GRID = 2.0**-16
"""The spacing of the values in `DirectionLaw.table`, chosen so that sums of up to 2^20 squares are exact in float64."""
_LINEAR, _CUBIC = 0.9999157028653114, 3.148687468053685e-05
"""The coefficients a and b of the cubic a q + b q^3 in `quantiles`.

They give its table the second moment 1 and the fourth moment 3; a test checks that they do.
"""


def _generator(rng: object) -> np.random.Generator:
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng must be a numpy.random.Generator; got {type(rng).__name__}")
    return rng


def sample_sphere(rng: np.random.Generator, size: int, d: int) -> Array:
    """Draw `size` vectors uniformly from the sphere of radius sqrt(d) in R^d.

    A vector is u = sqrt(d) z/||z|| with z ~ N(0, I), drawn from `rng`. Returns an array of shape (size, d); for d = 1
    its entries are +1 and -1. Raises ValueError unless size >= 1 and d >= 1.
    """
    z = sample_gaussian(rng, size, d)
    norms = np.linalg.norm(z, axis=1)
    while not norms.all():  # A zero vector has no direction and is drawn again; it practically never occurs.
        again = norms == 0
        z[again] = rng.standard_normal((int(again.sum()), z.shape[1]))
        norms = np.linalg.norm(z, axis=1)
    z /= norms[:, None]
    z *= math.sqrt(z.shape[1])
    return z


def sample_gaussian(rng: np.random.Generator, size: int, d: int) -> Array:
    """Draw `size` vectors from N(0, I_d) with `rng`; returns an array of shape (size, d).

    Raises ValueError unless size >= 1 and d >= 1.
    """
    shape = (check.integer("size", size), check.integer("d", d))
    return _generator(rng).standard_normal(shape)


def sample_rademacher(rng: np.random.Generator, size: int, d: int) -> Array:
    """Draw `size` vectors of d random signs with `rng`.

    Returns a float64 array of shape (size, d). Raises ValueError unless size >= 1 and d >= 1.
    """
    shape = (check.integer("size", size), check.integer("d", d))
    bits: Array = _generator(rng).integers(0, 2, size=shape, dtype=np.int8).astype(np.float64)
    return 2 * bits - 1


@lru_cache(maxsize=1)
def quantiles() -> Array:
    """Returns the table of the 65,536 equally likely values of a discrete Gaussian coordinate, in ascending order.

    Each value is a multiple of `GRID` = 2^-16, and none is 0. Value k is a q + b q^3, rounded to a multiple, where q is
    the normal quantile at (k + 1/2)/65536, and a and b make the mean square 1 and the mean fourth power 3, as for
    N(0, 1); odd moments are 0 by symmetry. These are all the moments that the paper's Lemma lm:sphere uses. The largest
    value is 4.33.
    """
    q = -ndtri((np.arange(32768) + 0.5) / 65536)[::-1]
    positive = np.round((_LINEAR * q + _CUBIC * q**3) / GRID) * GRID
    table: Array = np.concatenate([-positive[::-1], positive])
    table.setflags(write=False)
    return table


def _sphere_fourth(d: int) -> tuple[float, float]:
    return 3 * (d / (d + 2)), d / (d + 2)


def _gaussian_fourth(d: int) -> tuple[float, float]:
    return 3.0, 1.0


def _sign_fourth(d: int) -> tuple[float, float]:
    return 1.0, 1.0


@dataclass(frozen=True, kw_only=True)
class DirectionLaw:
    """A law of a random direction u in R^d with E[u] = 0 and E[u u^T] = I.

    It is symmetric and exchangeable in the coordinates of u.

    Attributes:
        name: what commands and plans call it.
        sample: a function (rng, size, d) -> `size` vectors drawn with rng, float64 of shape (size, d).
        fourth_moments: a function d -> (E[u_i^4], E[u_i^2 u_j^2] for i != j).
        table: a function without arguments that returns the equally likely values of a coordinate, in which
            `optim.weights.directions` looks up random words: 2 or 65,536 of them, in ascending order, multiples of
            `GRID`.
        normalised: whether a vector of such coordinates is then scaled to length sqrt(d).
        fixed_norm: whether ||u|| = sqrt(d) always, as the clip of the paper's Algorithm 1 requires.
        rank: rho >= 1 where a matrix of weights has the direction rho^(-1/2) sum_j a_j b_j^T, with independent random
            signs in a_1, b_1, ..., a_rho, b_rho; 0 where all its coordinates are drawn.
    """

    name: str
    sample: Callable[[np.random.Generator, int, int], Array]
    fourth_moments: Callable[[int], tuple[float, float]]
    table: Callable[[], Array]
    normalised: bool = False
    fixed_norm: bool = False
    rank: int = 0


DIRECTIONS: Registry[DirectionLaw] = Registry("direction")
"""All laws of directions by name, the paper's sphere first.

`theory.sharp` has the constants that its theorem needs for each of them.
"""

for _law in (
    DirectionLaw(
        name="sphere",
        sample=sample_sphere,
        fourth_moments=_sphere_fourth,
        table=quantiles,
        normalised=True,
        fixed_norm=True,
    ),
    DirectionLaw(name="gaussian", sample=sample_gaussian, fourth_moments=_gaussian_fourth, table=quantiles),
    DirectionLaw(
        name="rademacher",
        sample=sample_rademacher,
        fourth_moments=_sign_fourth,
        table=lambda: np.array([-1.0, 1.0]),
        fixed_norm=True,
    ),
):
    DIRECTIONS.register(_law)


def _low_rank(text: str) -> DirectionLaw:
    """Return the law `low-rank:RANK`, or `low-rank`, whose rank is 1.

    Its directions depend on the shapes of the weights: weights with two axes or more are a matrix of shape (first axis,
    product of the others), and weights with fewer axes have independent random signs. So the law has no moments of
    coordinates alone.
    """
    if text and not (text.isdecimal() and 1 <= int(text) <= 64):
        raise ValueError(f"direction must be low-rank or low-rank:RANK, RANK from 1 to 64; got {f'low-rank:{text}'!r}")
    rank = int(text or 1)

    def refuse(*_: object) -> NoReturn:
        raise check.PreconditionError("direction low-rank has no law without the shapes of the weights")

    return DirectionLaw(
        name="low-rank" if rank == 1 else f"low-rank:{rank}",
        sample=refuse,
        fourth_moments=refuse,
        table=DIRECTIONS["rademacher"].table,
        fixed_norm=rank == 1,
        rank=rank,
    )


DIRECTIONS.register_family("low-rank", _low_rank)


def fourth_moments(d: int, direction: str = "sphere") -> tuple[float, float]:
    """Returns E[u_i^4] and E[u_i^2 u_j^2], i != j, for a random direction u in R^d with the law named `direction`.

    They are the numbers w_1 and w_2 in the proof of the paper's Lemma lm:sphere: (3d/(d+2), d/(d+2)) for "sphere", (3,
    1) for "gaussian" and (1, 1) for "rademacher".

    Raises:
        ValueError: an unknown law, or a d that is no integer >= 1.
    """
    return DIRECTIONS[direction].fourth_moments(check.integer("d", d))


def projection_outer(a: ArrayLike, direction: str = "sphere") -> Array:
    """Returns E[(u^T a)^2 u u^T], a (d, d) matrix, for a vector a of shape (d,) and u with the law named `direction`.

    It is w_2 (2 a a^T + ||a||^2 I) + (w_1 - 3 w_2) diag(a_i^2) with w_1 and w_2 from `fourth_moments`, Lemma lm:sphere
    (iii) of the paper; the last term is zero except for signs. Its trace is E[(u^T a)^2 ||u||^2]. The sum of its
    products with the entries of a matrix H is E[(u^T a)^2 u^T H u], Lemma lm:sphere (iv). Raises ValueError for another
    shape, or an unknown direction law.
    """
    vector = check.real_array("a", a)
    if vector.ndim != 1 or vector.size == 0:
        raise ValueError(f"a must be a vector of shape (d,), d >= 1; got shape {vector.shape}")
    w1, w2 = fourth_moments(vector.size, direction)
    isotropic = 2 * np.outer(vector, vector) + (vector @ vector) * np.eye(vector.size)
    return w2 * isotropic + np.diag((w1 - 3 * w2) * vector**2)


def sphere_tail(threshold: ArrayLike, norm: float, d: int) -> Array:
    """Returns P(|u^T a| >= C), not a bound on it, for u uniform on the sphere of radius sqrt(d) in R^d and a fixed
    vector a.

    It is 1 - I_{C^2/(d ||a||^2)}(1/2, (d-1)/2), where I is the regularised incomplete beta function. `threshold` is C
    >= 0, a number or an array; `norm` is ||a|| > 0; else ValueError is raised. The relative error is below 1e-12; below
    1e-308 the value underflows gradually to 0.
    """
    c, dimension = _scaled(threshold, norm), check.integer("d", d)
    if dimension == 1:
        return np.where(c <= 1, 1.0, 0.0)[()]
    near = np.minimum(c, 2 * math.sqrt(dimension))
    high = near.astype(np.float32).astype(np.float64)
    low = near - high
    # This is d - c^2 without cancellation: c = high + low, and the square of `high` is exact.
    gap = np.maximum(((dimension - high * high) - 2 * high * low) - low * low, 0.0)
    a, b = (dimension - 1) / 2, 0.5
    small = near * near < dimension / 2
    return np.where(small, betaincc(b, a, near * near / dimension), betainc(a, b, gap / dimension))[()]


def subgaussian_tail(threshold: ArrayLike, norm: float) -> Array:
    """Returns an upper bound on P(|u^T a| >= C) for a random direction u: 2 exp(-C^2/(2 ||a||^2)).

    It is below `paper_tail` for every C. The moments E[u_1^(2k)] = d^k (1/2)_k/(d/2)_k are at most (2k-1)!!, those of
    N(0, 1), because (d/2)_k >= (d/2)^k. So E[exp(s u_1)] <= exp(s^2/2), and Chernoff's bound at s = C/||a|| on both
    sides gives the claim. The same holds for Gaussian and Rademacher directions. The value may exceed 1. `threshold` is
    C >= 0, a number or an array; `norm` is ||a|| > 0; else ValueError is raised.
    """
    return 2 * np.exp(-0.5 * _squared(_scaled(threshold, norm)))


def paper_tail(threshold: ArrayLike, norm: float) -> Array:
    """Returns the paper's upper bound on P(|u^T a| >= C) for a random direction u: 2 sqrt(2 pi) exp(-C^2/(8 ||a||^2)).

    It is Lemma lm:sphere (ii). The value may exceed 1. `threshold` is C >= 0, a number or an array; `norm` is ||a|| >
    0; else ValueError is raised.
    """
    return 2 * math.sqrt(2 * math.pi) * np.exp(-0.125 * _squared(_scaled(threshold, norm)))


def _scaled(threshold: ArrayLike, norm: float) -> Array:
    with np.errstate(over="ignore"):
        return check.real_array("threshold", threshold, at_least=0) / check.real("norm", norm, above=0)


def _squared(x: Array) -> Array:
    with np.errstate(over="ignore"):
        return x * x
