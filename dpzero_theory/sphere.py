"""Distributions of random directions u in R^d with E[u] = 0 and E[u u^T] = I, by name.

The DPZero paper draws u uniformly from the sphere of radius sqrt(d). Gaussian directions and Rademacher directions
(random signs) have other fourth moments.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn

import numpy as np
from scipy.special import ndtri

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.registry import Registry

GRID = 2.0**-16
"""The spacing of the values in `DirectionLaw.table`. With it float64 holds sums of their squares up to 2^21 exactly."""
_LINEAR, _CUBIC = 0.9999157028653114, 3.148687468053685e-05
"""`_quantiles` replaces a normal quantile q by a q + b q^3 with these a and b, for which the values, rounded to
multiples of `GRID`, have mean square 1 and mean fourth power 3 to 1e-6."""


def _sample_sphere(rng: np.random.Generator, size: int, d: int) -> Array:
    z = _sample_gaussian(rng, size, d)
    norms = np.linalg.norm(z, axis=1)
    while not norms.all():  # a zero vector has no direction and is drawn again; it practically never occurs
        again = norms == 0
        z[again] = rng.standard_normal((int(again.sum()), z.shape[1]))
        norms = np.linalg.norm(z, axis=1)
    z /= norms[:, None]
    z *= math.sqrt(z.shape[1])
    return z


def _sample_gaussian(rng: np.random.Generator, size: int, d: int) -> Array:
    return rng.standard_normal((check.integer("size", size), check.integer("d", d)))


def _sample_signs(rng: np.random.Generator, size: int, d: int) -> Array:
    shape = (check.integer("size", size), check.integer("d", d))
    bits: Array = rng.integers(0, 2, size=shape, dtype=np.int8).astype(np.float64)
    return 2 * bits - 1


@lru_cache(maxsize=1)
def _quantiles() -> Array:
    # Entry k of the table is a q + b q^3, rounded to a multiple of 2^-16, where q is the normal quantile at (k +
    # 1/2)/65536. With `_LINEAR` and `_CUBIC` as a and b the entries have the mean square 1 and the mean fourth power 3
    # of N(0, 1) to 1e-6. The paper's Lemma lm:sphere uses no other moments. No value is 0, and the largest is 4.33.
    q = -ndtri((np.arange(32768) + 0.5) / 65536)[::-1]
    positive = np.round((_LINEAR * q + _CUBIC * q**3) / GRID) * GRID
    table: Array = np.concatenate([-positive[::-1], positive])
    table.setflags(write=False)
    return table


@dataclass(frozen=True, kw_only=True)
class DirectionLaw:
    """A distribution of a random direction u in R^d with E[u] = 0 and E[u u^T] = I.

    If `rank` is 0, the distribution must not change if coordinates change their signs or places.

    Attributes:
        name: the name in commands and plans.
        sample: a function of a numpy generator, size >= 1 and d >= 1. It returns `size` independent directions drawn
            with the generator, a float64 array of shape (size, d). If `rank` >= 1 it raises PreconditionError, as the
            shapes of the weights are not known.
        table: a function without arguments that returns the equally likely values of a coordinate in training runs, or
            if `rank` >= 1 of an entry of the vectors a_j and b_j below: 2 or 65,536 ascending multiples of 2^-16, whose
            mean is 0 and whose mean square is 1 to 1e-6.
        normalised: True if training runs scale a vector of such coordinates to length sqrt(d).
        fixed_norm: True if ||u|| = sqrt(d) always, which the clip of the paper's Algorithm 1 requires.
        rank: 0 if coordinates are drawn independently. If it is R >= 1, the direction for a weight matrix is R^(-1/2)
            (a_1 b_1^T + ... + a_R b_R^T), where the vectors a_j and b_j have independent random signs. Weights with
            more axes count as a matrix of the first axis by all others; biases get independent random signs.
    """

    name: str
    sample: Callable[[np.random.Generator, int, int], Array]
    table: Callable[[], Array]
    normalised: bool = False
    fixed_norm: bool = False
    rank: int = 0


DIRECTIONS: Registry[DirectionLaw] = Registry("direction")
"""All distributions of directions by name, the paper's "sphere" first. "low-rank:RANK" can be looked up too, but is not
listed. `theory.sharp` has the constants that its theorem needs for each of them."""

for _law in (
    DirectionLaw(name="sphere", sample=_sample_sphere, table=_quantiles, normalised=True, fixed_norm=True),
    DirectionLaw(name="gaussian", sample=_sample_gaussian, table=_quantiles),
    DirectionLaw(name="rademacher", sample=_sample_signs, table=lambda: np.array([-1.0, 1.0]), fixed_norm=True),
):
    DIRECTIONS.register(_law)


def _low_rank(text: str) -> DirectionLaw:
    """Returns the distribution of directions "low-rank:RANK" for the text RANK; an empty text is rank 1. For a
    weight matrix a direction is the sum of RANK outer products of two vectors of random signs, over sqrt(RANK).
    `sample` raises PreconditionError: shapes are not known. Raises ValueError unless RANK is in 1, ..., 64."""
    if text and not (text.isdecimal() and 1 <= int(text) <= 64):
        raise ValueError(f"direction must be low-rank or low-rank:RANK, RANK from 1 to 64; got {f'low-rank:{text}'!r}")
    rank = int(text or 1)

    def refuse(*_: object) -> NoReturn:
        raise check.PreconditionError("direction low-rank has no law without the shapes of the weights")

    return DirectionLaw(
        name="low-rank" if rank == 1 else f"low-rank:{rank}",
        sample=refuse,
        table=DIRECTIONS["rademacher"].table,
        fixed_norm=rank == 1,
        rank=rank,
    )


DIRECTIONS.register_family("low-rank", _low_rank)
