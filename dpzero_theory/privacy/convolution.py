"""Powers of laws on a grid by the Fourier transform, cyclically, with a bound on the rounding error.

Every output of a transform of length N is a tree of depth log2 N over the inputs, so that each is off by at most
beta = 16 u log2(N) times the sum of the absolute inputs (u the unit of the precision; Higham, "Accuracy and
Stability of Numerical Algorithms", section 24.1, has 8 u log2 N in norm). For laws of mass at most 1 the product of
m transforms is then off by m beta (|F| + beta)^(m-2) at a frequency where the power's law has transform F, and by
Cauchy and Schwarz the result is off by at most the Euclidean norm of that in total absolute value.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft

__all__ = ["Spectrum", "chernoff", "invert", "power", "transform"]

Array = NDArray[np.float64]
Spectrum = NDArray[Any]

_EXTENDED = 2**19
"""Longest transform done in extended precision (where the machine has it): it is five times slower."""


def transform(law: Array, first: int, size: int) -> Spectrum:
    """Transform of length `size` (a power of two) of the law with weight law[k] at first + k, taken modulo size."""
    folded: NDArray[Any] = np.zeros(size, dtype=np.longdouble if size <= _EXTENDED else np.float64)
    start = first % size
    for begin in range(-start, len(law), size):
        piece = law[max(begin, 0) : begin + size]
        offset = start if begin < 0 else 0
        folded[offset : offset + len(piece)] += piece
    return np.asarray(fft.rfft(folded))


def power(base: Spectrum, exponent: int) -> Spectrum:
    """base**exponent by repeated squaring, exponent >= 0."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return result


def invert(product: Spectrum, base: Spectrum, count: int, first: int) -> tuple[Array, float]:
    """The law at first, ..., first + N - 1 of a product of `count` transforms, all but two of them `base`.

    Returns the law, negative rounding cut off, and a bound on its error in total absolute value.
    """
    size = 2 * (len(product) - 1)
    unit = float(np.finfo(product.real.dtype).eps) / 2
    beta = 16 * unit * math.log2(size)
    law = np.maximum(fft.irfft(product, size), 0)
    weight = (np.abs(base).astype(np.float64) + beta) ** max(count - 2, 0)
    spread = 1.01 * count * beta * float(np.linalg.norm(weight))
    error = math.sqrt(2) * (spread + beta * float(np.linalg.norm(np.abs(product).astype(np.float64))))
    return np.roll(law, -(first % size)).astype(np.float64), error


def chernoff(log_moment: Callable[[float], float], rates: Array, log_tail: float) -> float:
    """The least b over `rates` with P(X >= b) <= e^{log_tail}, by Chernoff, for log_moment(r) >= log E e^{r X}."""
    return min((log_moment(float(rate)) - log_tail) / float(rate) for rate in rates)
