"""Powers of laws on a grid by the Fourier transform, modulo its length, with a bound on the rounding error.

Every output of a transform of length N is a tree of depth log2 N over the inputs, so that each is off by at most beta =
16 u log2(N) times the sum of the absolute inputs (u the unit of the precision; Higham, "Accuracy and Stability of
Numerical Algorithms", section 24.1, has 8 u log2 N in norm). For laws of mass at most 1 the product of m transforms F_i
is then off by sum_i 1.1 beta prod_{j != i} (|F_j| + beta) at each frequency (0.1 of it for the roundings of the
product, a few u each and beta >= 96 u). The transform of that product back to a law is off by 1/sqrt(N) times the
Euclidean norm of these errors in Euclidean norm, and hence by at most that norm in total absolute value (Cauchy and
Schwarz).
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dpzero_theory.check import Array

Spectrum = NDArray[Any]
"""The discrete Fourier transform of a law, in double or extended precision."""

_LONGEST_EXTENDED = 2**19
"""The longest transform that is done in extended precision (numpy's longdouble, five times slower); longer ones are in
double precision."""


def transform(law: Array, first: int, size: int, *, extended: bool = True) -> Spectrum:
    """The Fourier transform of the law with weight law[k] at the integer first + k, taken modulo `size`, a power of
    two.

    extended: whether to use extended precision, if `size` is at most `_LONGEST_EXTENDED`; longer transforms are in
    double precision.
    """
    folded: NDArray[Any] = np.zeros(size, dtype=np.longdouble if extended and size <= _LONGEST_EXTENDED else np.float64)
    start = first % size
    for begin in range(-start, len(law), size):
        piece = law[max(begin, 0) : begin + size]
        offset = start if begin < 0 else 0
        folded[offset : offset + len(piece)] += piece
    return np.asarray(fft.rfft(folded))


def power(base: Spectrum, exponent: int) -> Spectrum:
    """The transform `base` to the power of the integer `exponent` >= 0, entry by entry, by repeated squaring."""
    result: Spectrum | None = None
    while exponent:
        if exponent & 1:
            result = base if result is None else result * base
        exponent >>= 1
        if exponent:
            base = base * base
    return np.ones_like(base) if result is None else result


def compose(spectra: Sequence[tuple[Spectrum, int]], first: int) -> tuple[Array, float]:
    """The law of a sum of independent variables, modulo the length N of their transforms.

    spectra: the transform of each variable's law, and its number of copies.
    first: the integer at which the returned weights begin; they are those at first, ..., first + N - 1.

    Returns the weights, with negative ones, which are rounding errors, set to 0, and a bound on the sum of the absolute
    errors; that bound over sqrt(N) bounds the Euclidean norm of the errors.
    """
    spectra = [(spectrum, count) for spectrum, count in spectra if count > 0]
    size = 2 * (len(spectra[0][0]) - 1)
    unit = float(np.finfo(spectra[0][0].real.dtype).eps) / 2
    beta = 16 * unit * math.log2(size)
    product = math.prod((power(*pair) for pair in spectra[1:]), start=power(*spectra[0]))
    law = np.maximum(fft.irfft(product, size), 0)
    moduli = [np.abs(spectrum.astype(np.complex128)) + beta for spectrum, _ in spectra]
    spread = 0.0
    for one, (_, count) in enumerate(spectra):
        others = [
            power(modulus, copies - (k == one))
            for k, (modulus, (_, copies)) in enumerate(zip(moduli, spectra, strict=True))
        ]
        spread += 1.1 * count * beta * norm(math.prod(others[1:], start=others[0]))
    error = math.sqrt(2) * (spread + beta * norm(np.abs(product.astype(np.complex128))))
    return np.roll(law, -(first % size)).astype(np.float64), error


def norm(x: Array) -> float:
    """The Euclidean norm of the array x."""
    return math.sqrt(dot(x, x))


def dot(x: Array, y: Array) -> float:
    """The inner product of the arrays x and y, by numpy's sum. BLAS is not used, because its threads take longer to
    start."""
    return float(np.sum(x * y))


def chernoff(log_moment: Callable[[float], float], rates: Array, log_tail: float) -> float:
    """The least b for which Chernoff's bound at one of `rates` proves that P(X >= b) <= e^{log_tail} for a variable X.

    rates: rising numbers r > 0. log_moment: a function whose value at r is an upper bound on log E e^{r X}.
    """
    return best_rate(log_moment, rates, log_tail)[0]


def best_rate(log_moment: Callable[[float], float], rates: Array, log_tail: float) -> tuple[float, float]:
    """The least b for which Chernoff's bound at one of `rates` proves that P(X >= b) <= e^{log_tail}, and that rate.

    log_moment: a function whose value at r is an upper bound on log E e^{r X} for the variable X. `rates` are positive
    and rise, and log_moment is convex, so that the bounds first fall and then rise along them.
    """
    reach = cache(lambda k: (log_moment(float(rates[k])) - log_tail) / float(rates[k]))
    best = bisect_left(range(len(rates) - 1), True, key=lambda k: reach(k) <= reach(k + 1))
    return reach(best), float(rates[best])
