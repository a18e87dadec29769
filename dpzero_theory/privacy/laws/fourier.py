"""The law of a sum of many independent variables with integer values, by the Fourier transform, with a bound on its
error.

A transform of length N knows the integers modulo N only. Each of its outputs is a tree of depth log2 N over the inputs,
so its error is at most beta = 16 u log2(N) times the sum of the absolute inputs, with u the unit of rounding (Higham,
"Accuracy and Stability of Numerical Algorithms", section 24.1, has 8 u log2 N in norm). Before the transform a law is
shifted so that its largest weight is at 0, and that weight is left out: the whole transform is F = 1 + w, where w and
its error are small for a variable that seldom differs from its most likely value. The product of powers of such F is
taken by logarithms. Where it is certainly below e^-80 it counts as 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.law import UNIT, log_law, log_moments, sketched

_LOG_NEGLIGIBLE = -80.0
"""Products of powers that are certainly below e to this power count as 0."""


@dataclass(frozen=True)
class _Spectrum:
    """The Fourier transform of a law at the frequencies omega = 2 pi k/N, k = 0, ..., N/2, with N = `size` its length,
    as e^log_total e^{-i omega shift} (1 + w).

    `log_total` is the log of the sum of the weights and `shift` the integer with the largest weight. `w` is the
    transform, minus 1, of the law scaled to the sum 1 and moved so that its largest weight is at 0; `wrong` bounds the
    absolute errors of w, and `log_most` is log(|1 + w| + wrong).
    """

    size: int
    shift: int
    log_total: float
    w: NDArray[np.complex128]
    wrong: Array
    log_most: Array


def _beta(size: int) -> float:
    """The bound on the error of one output of a transform of length `size`, as a share of the sum of the |inputs|."""
    return 16 * UNIT * math.log2(size)


def _norm(x: Array) -> float:
    return math.sqrt(float(np.sum(x * x)))


def _spectrum(law: Array, first: int, size: int) -> _Spectrum:
    """The transform, of length `size`, of the law that has the weight law[k] >= 0 at the integer first + k."""
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
    wrong = 1.1 * _beta(size) * moved + 16 * UNIT * size_of_w * (1 + size_of_w)
    return _Spectrum(size, first + mode, math.log(total), w, wrong, np.log(np.abs(1 + w) + wrong))


def _compose(spectra: Sequence[tuple[_Spectrum, int]], start: int) -> tuple[Array, float]:
    """The law of a sum of independent variables modulo the length N of their transforms: its weights >= 0 at start,
    ..., start + N - 1, and a bound on the Euclidean norm of their errors. `spectra` has for each variable the transform
    of its law and the number of its copies in the sum."""
    spectra = [(one, count) for one, count in spectra if count > 0]
    size = spectra[0][0].size
    log_most = np.sum([count * one.log_most for one, count in spectra], axis=0)
    kept = np.flatnonzero(log_most > _LOG_NEGLIGIBLE)
    power, turns, spread = np.zeros(len(kept), np.complex128), np.zeros(len(kept)), np.zeros(len(kept))
    for one, count in spectra:
        w = one.w[kept]
        # Near w = 0 the first formula for log |1 + w| has a small relative error. Near w = -1 the second one has, in
        # effect, a small absolute error of |1 + w|.
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
    wrong = _norm(spread) + math.sqrt(size) * math.exp(_LOG_NEGLIGIBLE + 1) + _beta(size) * _norm(np.abs(product))
    total = math.exp(sum(count * one.log_total for one, count in spectra))
    shift = start - sum(count * one.shift for one, count in spectra)
    return np.roll(law, -(shift % size)) * total, math.sqrt(2 / size) * wrong * total


Product = Sequence[tuple[Array, int]]
"""Independent variables with the same values: for each the weights of these values, and the number of its copies."""


@dataclass(frozen=True)
class _Sum:
    """The law of a sum of independent variables on a grid, multiplied by e^{theta sum} (tilted) and scaled to total 1.

    Attributes:
        theta: the tilt, >= 0; above 0 for `excess`.
        at, law: the values of the sum, equally spaced, in rising order, and their weights.
        log_scale: the log of the factor by which the weights were divided.
        error: a bound on the Euclidean norm of the weights' errors by the transform.
        beyond: a bound on the tilted mass that is not on the grid.
        wrong: a bound on the relative error of every weight by the rounding of its inputs.
    """

    theta: float
    at: Array
    law: Array
    log_scale: float
    error: float
    beyond: float
    wrong: float

    def _relative(self, exponent: float) -> float:
        """A bound on the relative error of weights from which the tilt is removed, by a factor of at most e^|exponent|.
        Raises OverflowError if it is above 0.01, so that the weights are of little worth."""
        relative = self.wrong + 16 * UNIT * (abs(self.log_scale) + abs(exponent))
        if relative > 0.01:
            raise OverflowError("rounding errors exceed the answer")
        return 1.1 * relative

    def excess(self, thresholds: Array) -> tuple[Array, Array]:
        """Upper bounds on E max(sum - threshold, 0), for rising thresholds, and for each the part that was added to
        cover errors of the transform. Raises OverflowError for relative rounding errors above 0.01."""
        theta, here = self.theta, float(thresholds[0])
        # To bound what errors of the weights add: max(y, 0) e^{-theta y} is at most 1/(e theta), and its sum over the
        # grid is at most that plus 1/(width theta^2).
        y = self.at - here
        fall = np.exp(np.minimum(-theta * y, 300.0)) * self.law
        moment, total = (np.append(np.cumsum(each[::-1])[::-1], 0.0) for each in (y * fall, fall))
        k = np.searchsorted(self.at, thresholds, side="right")
        more = thresholds - here
        value = np.maximum(moment[k] - more * total[k], 0.0)
        peak, width = 1 / (math.e * theta), float(self.at[1] - self.at[0])
        once = 1.01 * (self.error * math.sqrt(peak * (peak + 1 / (width * theta * theta))) + self.beyond * peak)
        wrong = once * np.exp(np.minimum(-theta * more, 700.0))
        wrong += 8 * UNIT * len(y) * (np.abs(moment[k]) + more * total[k])
        scale = math.exp(min(self.log_scale - theta * here, 700.0))
        with np.errstate(over="ignore"):
            return (value + wrong) * scale * (1 + self._relative(theta * here)), wrong * scale

    def tails(self, sign: int) -> Array:
        """Bounds on the probabilities that the sum is at least v, for each value v in `at`: lower bounds for the `sign`
        -1, upper bounds for 1. Raises OverflowError for relative rounding errors above 0.01."""
        exponent = self.log_scale - self.theta * self.at
        # The tilt's exponent, theta times a value, is at most 700 away from log_scale where the weight is a float.
        relative = self._relative(abs(self.log_scale) + 700)
        fall = np.exp(np.minimum(exponent, 300.0))
        tail, total = (np.cumsum(each[::-1])[::-1] for each in (self.law * fall, fall))
        # The factors `fall` get smaller with the value, so the norm of all factors from one value on is at most the
        # square root of the first factor times their sum.
        wrong = 1.01 * (self.error * np.sqrt(fall) * np.sqrt(total) + self.beyond * fall) + 8 * UNIT * len(fall) * tail
        found = np.clip((tail + sign * (wrong + 1e-300)) * (1 + sign * relative), 0.0, 1.0)
        return found if sign < 0 else np.where(exponent > 300, 1.0, found)


def window(
    laws: Sequence[tuple[Array, Array, int]], log_folded: float, near: tuple[float, float] | None = None
) -> tuple[float, float, float, float]:
    """The range of a sum of independent variables, with at most e^log_folded of its law beyond each end by Chernoff's
    bounds. Raises OverflowError if the variance of the sum is almost 0 or no float.

    Args:
        laws: for each variable its values, their probabilities, and the number of its copies in the sum.
        log_folded: the log of the probability that may be beyond each end, < 0.
        near: about the two rates that are returned, which saves time; None if they are not known.

    Returns:
        The lower and the upper end, and the rates r > 0 at which the bounds by E e^{r sum} above the range and by E
        e^{-r sum} below it are least.
    """
    means = [float(np.sum(weights * values)) for values, weights, _ in laws]
    centred = [(n, log_law(weights), values - mean) for (values, weights, n), mean in zip(laws, means, strict=True)]
    mean = math.fsum(n * each for (_, _, n), each in zip(laws, means, strict=True))
    variance = math.fsum(n * float(np.sum(np.exp(logs) * y**2)) for n, logs, y in centred)
    if not (math.isfinite(variance) and variance > 0):
        raise OverflowError("sums that all but are one value")
    deviation, broadest = math.sqrt(variance), max(float(np.ptp(values)) for values, _, _ in laws)
    ends = []
    for k, sign in enumerate((1, -1)):
        rates = np.geomspace(min(0.02 / deviation, 1 / broadest), 50 / deviation, 24)
        if near:
            rates = near[k] * np.geomspace(1 / 16, 2, 6)
        moments = np.sum([n * log_moments(logs, sign * rates, y) for n, logs, y in centred], axis=0)
        reach = (moments - log_folded) / rates
        best = int(np.argmin(reach))
        ends.append((mean + sign * float(reach[best]), float(rates[best])))
    (high, up), (low, down) = ends
    return low, high, up, down


def composed(
    laws: Sequence[tuple[int, Array, int]], width: float, start: int, size: int, up: float, down: float
) -> tuple[Array, float, float]:
    """The law of a sum of independent variables, modulo `size`, on the grid width times start, ..., start + size - 1.

    Args:
        laws: for each variable the integer of its first weight, its weights at this and the following integers, of sum
            1, and the number of its copies. Its values are `width` > 0 times the integers.
        width, start, size: the width of a cell of the grid, its first integer and its number of points.
        up, down: rates > 0 of Chernoff's bounds on the mass above and below the grid. Any rates are correct; those that
            `window` returns make the bounds small.

    Returns:
        The weights, a bound on the Euclidean norm of their errors, and a bound on the mass that is outside the grid and
        is counted at other points of it.
    """
    law, error = _compose([(_spectrum(mass, first, size), n) for first, mass, n in laws], start)
    tails = [-up * width * (start + size), down * width * start]
    for first, mass, n in laws:
        values, logs = (first + np.arange(len(mass), dtype=np.float64)) * width, log_law(mass)
        for k, rate in enumerate((up, -down)):
            tails[k] += n * float(log_moments(logs, np.array([rate]), values)[0])
    return law, error, sum(math.exp(min(tail, 0.0)) for tail in tails)


def sums(
    points: NDArray[np.int64], width: float, products: Sequence[tuple[float, Product]], log_folded: float, longest: int
) -> list[_Sum]:
    """The laws of several sums of independent variables, in the order of `products`, all on one grid. Raises
    OverflowError if the grid needs more than `longest` cells.

    Args:
        points, width: rising integers, and the width of a cell of the grid, > 0: the variables have the values `width`
            times `points`.
        products: for each sum its tilt theta >= 0, and for each of its variables the probabilities of the values and
            the number of the variable's copies.
        log_folded: the log of about the share of a tilted sum that may be outside the grid, < 0.
    """
    z, made = np.asarray(points * width, dtype=np.float64), []
    for theta, product in products:
        laws, log_scale = [], 0.0
        for law, count in product:
            logs = log_law(law) + theta * z
            total = float(log_moments(logs, np.zeros(1), z)[0])
            laws.append((np.exp(logs - total), count))
            log_scale += count * total
        _, _, *near = window([(*sketched(z, law), count) for law, count in laws], log_folded)
        found = window([(z, law, count) for law, count in laws], log_folded, (near[0], near[1]))
        made.append((theta, laws, log_scale, found))
    start = math.floor(min(low for *_, (low, _, _, _) in made) / width)
    last = math.ceil(max(high for *_, (_, high, _, _) in made) / width)
    size = max(2 ** math.ceil(math.log2(last - start + 1)), 64)
    if size > longest:
        raise OverflowError("the noise is too little for the grid")
    of_all, at = [], (start + np.arange(size)) * width
    for theta, laws, log_scale, (_, _, up, down) in made:
        on_grid = []
        for law, count in laws:
            dense = np.zeros(int(points[-1] - points[0]) + 1)
            dense[points - points[0]] = law
            on_grid.append((int(points[0]), dense, count))
        law, error, beyond = composed(on_grid, width, start, size, up, down)
        wrong = sum(count for _, count in laws) * UNIT * (64 + 8 * theta * max(abs(float(z[0])), abs(float(z[-1]))))
        of_all.append(_Sum(theta, at, law, log_scale, error, beyond, wrong))
    return of_all
