"""Powers of laws on a grid by the Fourier transform, modulo its length, with a bound on the rounding error.

Every output of a transform of length N is a tree of depth log2 N over the inputs, so that each is off by at most beta =
16 u log2(N) times the sum of the absolute inputs (u the unit of the precision; Higham, "Accuracy and Stability of
Numerical Algorithms", section 24.1, has 8 u log2 N in norm). For laws of mass at most 1 the product of m transforms F_i
is then off by sum_i 1.1 beta prod_{j != i} (|F_j| + beta) at each frequency (0.1 of it for the roundings of the
product, a few u each and beta >= 96 u). The transform of that product back to a law is off by 1/sqrt(N) times the
Euclidean norm of these errors in Euclidean norm, and hence by at most that norm in total absolute value (Cauchy and
Schwarz).

The transform of the sum of many variables is all but 0 except at few frequencies. Where its modulus is certainly below
e^{NEGLIGIBLE} it is taken for 0, and no power is computed there.
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
NEGLIGIBLE = -80.0
"""Where the transform of a sum is certainly below e to this power, it is taken for 0. That is a rounding error of 1e-34
at most, far below those of the transforms themselves."""


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
    beta = error_of_transform(spectra[0][0])
    kept = telling(spectra)
    product, spread = product_of_powers([(spectrum[kept], beta, count) for spectrum, count in spectra])
    whole = np.zeros_like(spectra[0][0])
    whole[kept] = product
    law = np.maximum(fft.irfft(whole, size), 0)
    left_out = math.sqrt(len(whole) - len(kept)) * math.exp(NEGLIGIBLE + 1)
    wrong = norm(spread) + left_out + beta * norm(np.abs(product.astype(np.complex128)))
    return np.roll(law, -(first % size)).astype(np.float64), math.sqrt(2) * wrong


def error_of_transform(spectrum: Spectrum) -> float:
    """The bound beta (module's docstring) on the errors of the transform `spectrum`, in the precision that it has."""
    return 8 * float(np.finfo(spectrum.real.dtype).eps) * math.log2(2 * (len(spectrum) - 1))


def telling(spectra: Sequence[tuple[Spectrum, int]]) -> NDArray[np.int64]:
    """The frequencies at which the product of transforms, each to the power of its number of copies, may be as large
    as e^NEGLIGIBLE."""
    log_product = np.zeros(len(spectra[0][0]))
    for spectrum, count in spectra:
        log_product += count * np.log(np.abs(spectrum.astype(np.complex128)) + error_of_transform(spectrum))
    return np.flatnonzero(log_product > NEGLIGIBLE)


def product_of_powers(factors: Sequence[tuple[Spectrum, Array | float, int]]) -> tuple[Spectrum, Array]:
    """The product of powers of transforms at some frequencies, and a bound on its error at each of them.

    factors: each transform at those frequencies, a bound on its errors there, and the exponent. A bound must be at
    least 30 times the unit of rounding, or 8 times it where the roundings of the product are in it already.
    """
    product = math.prod((power(spectrum, count) for spectrum, _, count in factors[1:]), start=power(*factors[0][::2]))
    moduli = [np.abs(spectrum.astype(np.complex128)) + error for spectrum, error, _ in factors]
    spread: Array = np.zeros(len(product))
    for one, (_, error, count) in enumerate(factors):
        others = [
            power(modulus, copies - (k == one))
            for k, (modulus, (_, _, copies)) in enumerate(zip(moduli, factors, strict=True))
        ]
        spread += 1.1 * count * error * math.prod(others[1:], start=others[0])
    return product, spread


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
