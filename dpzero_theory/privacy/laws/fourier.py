"""Powers of laws on the integers by the Fourier transform, modulo its length N, with a bound on the rounding error.

Every output of a transform of length N is a tree of depth log2 N over the inputs, so that each is off by at most beta =
16 u log2(N) times the sum of the absolute inputs, with u the unit of rounding (Higham, "Accuracy and Stability of
Numerical Algorithms", section 24.1, has 8 u log2 N in norm). A law is transformed without its largest weight, which is
moved to 0: F = 1 + w, where w is small for a variable that is seldom anything else, and so is its error. The product of
powers is taken by logarithms. Where it is certainly below e^-80 it counts as 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.law import UNIT

_LOG_NEGLIGIBLE = -80.0


@dataclass(frozen=True)
class Spectrum:
    """The transform of a law of total e^log_total at the frequencies 0, ..., N/2, as e^{-i omega shift} (1 + w).

    Attributes:
        wrong: bounds on the errors of w.
        log_most: log of |1 + w| + wrong.
    """

    size: int
    shift: int
    log_total: float
    w: NDArray[np.complex128]
    wrong: Array
    log_most: Array


def beta(size: int) -> float:
    """The bound on the error of one output of a transform, as a share of the sum of the absolute inputs."""
    return 16 * UNIT * math.log2(size)


def spectrum(law: Array, first: int, size: int) -> Spectrum:
    """The transform, modulo `size`, of the law with weight law[k] >= 0 at the integer first + k."""
    mode = int(np.argmax(law))
    total = float(np.sum(law))
    rest = law / total
    rest[mode] = 0.0
    folded = np.zeros(size)
    start = -mode % size
    for begin in range(-start, len(rest), size):
        piece = rest[max(begin, 0) : begin + size]
        offset = start if begin < 0 else 0
        folded[offset : offset + len(piece)] += piece
    moved = float(np.sum(rest))
    w: NDArray[Any] = fft.rfft(folded) - moved
    size_of_w = np.abs(w)
    wrong = 1.1 * beta(size) * moved + 16 * UNIT * size_of_w * (1 + size_of_w)
    return Spectrum(size, first + mode, math.log(total), w, wrong, np.log(np.abs(1 + w) + wrong))


def compose(spectra: Sequence[tuple[Spectrum, int]], start: int) -> tuple[Array, float]:
    """The law of a sum of independent variables modulo N.

    Args:
        spectra: the transform of each variable's law, with the number of its copies.
        start: the integer at which the returned weights begin.

    Returns:
        The weights at start, ..., start + N - 1, none negative, and a bound on the Euclidean norm of their errors.
    """
    spectra = [(one, count) for one, count in spectra if count > 0]
    size = spectra[0][0].size
    log_most = np.sum([count * one.log_most for one, count in spectra], axis=0)
    kept = np.flatnonzero(log_most > _LOG_NEGLIGIBLE)
    power, turns, spread = np.zeros(len(kept), np.complex128), np.zeros(len(kept)), np.zeros(len(kept))
    for one, count in spectra:
        w = one.w[kept]
        # log |1 + w| has a small relative error near w = 0 by the first formula, and a small absolute error of |1 + w|
        # near w = -1 by the second.
        size_of_f, square = np.abs(1 + w), 2 * w.real + w.real**2 + w.imag**2
        with np.errstate(divide="ignore"):
            log_size = np.where(size_of_f > 0.5, 0.5 * np.log1p(np.maximum(square, -0.75)), np.log(size_of_f))
            log = log_size + 1j * np.arctan2(w.imag, 1 + w.real)
        log = np.where(np.isfinite(log), log, -1e4)
        power += count * log
        turns += count * np.abs(log)
        spread += 1.1 * count * one.wrong[kept] * np.exp(np.minimum(log_most[kept] - one.log_most[kept], 700.0))
    product = np.exp(power)
    spread += np.abs(product) * 8 * UNIT * (4 + turns)
    whole = np.zeros(size // 2 + 1, np.complex128)
    whole[kept] = product
    law = np.maximum(fft.irfft(whole, size), 0)
    wrong = norm(spread) + math.sqrt(size) * math.exp(_LOG_NEGLIGIBLE + 1) + beta(size) * norm(np.abs(product))
    total = math.exp(sum(count * one.log_total for one, count in spectra))
    shift = start - sum(count * one.shift for one, count in spectra)
    return np.roll(law, -(shift % size)) * total, math.sqrt(2 / size) * wrong * total


def norm(x: Array) -> float:
    """The Euclidean norm of the array x."""
    return math.sqrt(float(np.sum(x * x)))
