"""The data of the paper's synthetic problem."""

import numpy as np

from dpzero_theory import check
from dpzero_theory.check import Array


def gaussian_data(rng: np.random.Generator, n: int, d: int) -> Array:
    """Draw the paper's synthetic data: n samples in d dimensions, every coordinate from N(1, 1).

    They are drawn with `rng`. Returns an array of shape (n, d). Raises ValueError unless n >= 1 and d >= 1.
    """
    shape = (check.integer("n", n), check.integer("d", d))
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng must be a numpy.random.Generator; got {type(rng).__name__}")
    data = rng.standard_normal(shape)
    data += 1
    return data
