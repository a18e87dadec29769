"""Clipping, with a rule for values that are not finite.

The clipped difference of a record whose loss overflows must lie in [-C, C] too: one NaN or infinity in the average
would reveal the record, and destroy the iterate. Each record's difference is mapped on its own, so the sensitivity of
the clipped sum is that of the finite case:

    difference   clipped   why
    NaN          0         no direction is known (also inf - inf)
    +inf, -inf   +C, -C    the limit of the clip

Where K differences are clipped jointly, a NaN becomes 0 too, and if some are infinite only their signs are kept. A row
of a gradient with an entry that is not finite becomes the zero row.
"""

import numpy as np

from dpzero_theory import check
from dpzero_theory.check import Array


def clip_scalars(values: Array, clip: float) -> Array:
    """clip_C(s) = s min(1, C/|s|) for each entry, which lies in [-C, C]; NaN becomes 0, and infinities +C and -C.

    values: any shape; clip: C > 0, else ValueError is raised.
    """
    bound = check.real("clip", clip, above=0)
    return np.clip(np.where(np.isnan(values), 0.0, values), -bound, bound)


def clip_jointly(rows: Array, clip: float) -> Array:
    """clip_C(s) = s min(1, C/||s||) for each record's K differences, shape (n, K).

    rows: the differences, of which row i has those of record i. For K = 1 this is `clip_scalars`, to the bit, and for
    K > 1 `clip_vectors`; but a NaN becomes 0, and of a row with infinite entries only their signs are kept. clip: C >
    0, else ValueError is raised.
    """
    if np.shape(rows)[-1] == 1:
        return clip_scalars(rows, clip)
    infinite = np.isinf(rows)
    known = np.where(np.isnan(rows), 0.0, rows)
    signs = np.where(infinite, np.sign(known), 0.0) * clip
    return clip_vectors(np.where(infinite.any(axis=1, keepdims=True), signs, known), clip)


def clip_vectors(rows: Array, clip: float) -> Array:
    """clip_C(g) = g min(1, C/||g||) for each row, shape (n, d); a row that is not finite becomes zero.

    The norm of a clipped row is at most C up to the rounding of one multiplication and one norm; rows whose
    squares overflow or underflow are scaled first. clip: C > 0, else ValueError is raised.
    """
    bound = check.real("clip", clip, above=0)
    matrix = np.asarray(rows, np.float64)
    if matrix.ndim != 2:
        raise ValueError(f"rows must have shape (n, d); got {matrix.shape}")
    size = np.abs(matrix).max(axis=1, initial=0.0)
    good = np.isfinite(size)
    unit = np.where(good & (size > 0), size, 1.0)[:, None]
    scaled = np.where(good[:, None], matrix, 0.0) / unit
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    # A row's norm is unit * norms, a product that might overflow. So norms is compared with bound/unit instead. A zero
    # row stays zero.
    with np.errstate(over="ignore"):
        inside = norms <= bound / unit
    factor = np.where(inside, unit, bound / np.where(norms > 0, norms, 1.0))
    clipped: Array = scaled * factor
    return clipped
