"""The data sets of the tutorials, read from an installed package; nothing is downloaded."""

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.check import Array, PreconditionError


def digits(seed: int | None = None) -> tuple[Array, NDArray[np.int64]]:
    """Returns scikit-learn's handwritten digits: pixels in [0, 1], shape (1797, 64), and digits 0 to 9, shape (1797,).

    An integer `seed` shuffles the images, always in the same way; None keeps scikit-learn's order. Raises
    PreconditionError if scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise PreconditionError("digits need scikit-learn (the demo extra)") from None
    pixels, digit = load_digits(return_X_y=True)
    order = slice(None) if seed is None else np.random.default_rng(seed).permutation(len(digit))
    return pixels[order] / 16.0, digit[order]


def binary_digits(seed: int | None = None) -> tuple[Array, Array]:
    """Returns scikit-learn's handwritten digits as two classes: features, shape (1797, 65), and labels, shape (1797,).

    The label is +1 for a digit of 5 or more, else -1. The features are the 64 pixels, in [0, 1], and a constant 1. An
    integer `seed` shuffles the images, always in the same way; None keeps scikit-learn's order. Raises
    PreconditionError if scikit-learn is not installed.
    """
    pixels, digit = digits(seed)
    return np.hstack([pixels, np.ones((len(pixels), 1))]), np.where(digit >= 5, 1.0, -1.0)
