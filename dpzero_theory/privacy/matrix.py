"""Correlated noise (matrix mechanisms: DP-FTRL's tree, BandMF, BLT) as one Gaussian release.

    release = matrix_release(encoder, noise_multiplier=4.0, times=3, apart=100, relation="add-remove")
    epsilon_of_history([release, *others], delta=1e-6)

A run of T steps releases C G + Z (Choquette-Choo et al., arXiv 2306.08153). Row t of G is the sum of the clipped
contributions of the records of step t. C, the encoder, is a public matrix with T columns, and the entries of Z are
independent Gaussian noise with standard deviation noise_multiplier times the clip. What the run publishes is computed
from it. A record that takes part in the steps S moves C G by sum over t in S of C_t x_t, where |x_t| <= 1 in clips, and
the largest norm of that is the sensitivity, here bounded by

    max over S of sum over t, u in S of |<C_t, C_u>|,   under the root.

This is attained where all <C_t, C_u> >= 0, for instance. So the run costs as much as one release of a full batch with
noise multiplier noise_multiplier / sensitivity, also if contributions depend on what was released before (Denisov et
al., arXiv 2202.08312, theorem 2.1, for lower triangular C). The steps of a record must not depend on other records:
there is no amplification by sampling in this.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FullBatch
from dpzero_theory.privacy.step import Step

_MOST_STEPS = 4096
_SQUARE_ROUNDING = 1e-10
"""A bound on the relative rounding error of the square of a sensitivity, for up to `_MOST_STEPS` steps."""


def sensitivity(encoder: ArrayLike, *, times: int = 1, apart: int = 1, cyclic: bool = False) -> float:
    """Return an upper bound on the L2 sensitivity of an encoder, in clips, if neighbours have a record or lack it
    (add-remove, zero-out); under replace-one it is twice as large.

    With the columns C_t of the encoder, the bound is the root of the largest sum of |<C_t, C_u>| over the steps t and u
    of one record. For cyclic steps, one step a record, and banded encoders it is computed exactly. In other cases it
    would need all sets of steps, and what is returned is larger: for each t, the sum over u takes the steps of the
    record with t for which that sum is largest.

    Args:
        encoder: C, a real matrix of shape (m, T) with 1 <= T <= 4096.
        times: k >= 1, the largest number of steps in which a record takes part.
        apart: b >= 1, the least distance of two such steps. A banded encoder with at most b bands has steps that are
            orthogonal, and the bound is the exact sensitivity.
        cyclic: whether a record's steps are i, i + b, i + 2 b, ... for some i < b, at most k of them.

    Returns:
        The bound, rounded up.

    Raises:
        ValueError: an argument outside its range.
    """
    matrix = check.real_array("encoder", encoder)
    if matrix.ndim != 2 or not 1 <= matrix.shape[1] <= _MOST_STEPS or not matrix.size:
        raise ValueError(f"encoder must be a matrix with 1 to {_MOST_STEPS} columns; got shape {matrix.shape}")
    times, apart = check.integer("times", times), check.integer("apart", apart)
    steps = matrix.shape[1]
    products = np.abs(matrix.T @ matrix)
    if cyclic:
        sets = [np.arange(first, steps, apart)[:times] for first in range(min(apart, steps))]
        square = max(float(products[np.ix_(one, one)].sum()) for one in sets)
    else:
        near = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps))) < apart
        rows = np.diagonal(products) + _best(np.where(near, 0.0, products), times - 1, apart)
        square = float(_best(rows[None], times, apart)[0])
    return math.sqrt(square * (1 + _SQUARE_ROUNDING))


def _best(weights: Array, count: int, apart: int) -> Array:
    """Return for each row the largest sum of at most `count` of its weights, all >= 0, whose positions are `apart` or
    more from each other."""
    rows, steps = weights.shape
    count = min(count, -(-steps // apart))
    # later[i][k] has, for each row, the largest sum of at most k of its weights at positions t + 1 + i or later.
    later = [np.zeros((count + 1, rows)) for _ in range(apart)]
    for t in reversed(range(steps)):
        here = later[0].copy()
        np.maximum(here[1:], weights[:, t] + later[-1][:-1], out=here[1:])
        later = [here, *later[:-1]]
    found: Array = later[0][count]
    return found


def matrix_release(
    encoder: ArrayLike,
    noise_multiplier: float,
    *,
    relation: Relation | str,
    times: int = 1,
    apart: int = 1,
    cyclic: bool = False,
) -> Step:
    """Return the release of a full batch that costs at least as much as a whole run with correlated noise.

    Args:
        encoder, times, apart, cyclic: see `sensitivity`.
        noise_multiplier: the standard deviation of the noise (of the entries of Z in the module's docstring) over the
            clip, > 0.
        relation: which data sets are neighbours. With replace-one a contribution changes by up to two clips.

    Returns:
        A `Step` of one step, which stands for the whole run and composes with others.

    Raises:
        ValueError: an argument outside its range, or an encoder that releases nothing.
    """
    noise = check.real("noise_multiplier", noise_multiplier, above=0)
    bound = sensitivity(encoder, times=times, apart=apart, cyclic=cyclic)
    if bound == 0:
        raise ValueError("encoder must have a column that is not 0; got one that releases nothing of the records")
    return Step(noise / bound, FullBatch(), Relation(relation))


def tree_encoder(steps: int) -> Array:
    """Return the encoder of binary tree aggregation (DP-FTRL, arXiv 2103.00039), shape (nodes, steps).

    The leaves of a complete binary tree are the steps, and as many more as make their number a power of two. A row has
    1 for the steps below a node of the tree; nodes without a step below them have no row. A record of one step is in
    log2(leaves) + 1 nodes, and the sensitivity is the root of that.

    Args:
        steps: T, the number of steps, from 1 to 4096.

    Raises:
        ValueError: steps outside this range.
    """
    steps = check.integer("steps", steps, at_most=_MOST_STEPS)
    levels = (steps - 1).bit_length()
    leaf = np.arange(steps)
    rows = [leaf >> level == node for level in range(levels + 1) for node in range(((steps - 1) >> level) + 1)]
    return np.array(rows, dtype=np.float64)
