"""The distribution of a sum of many independent integer variables, by the Fourier transform, with a bound on its error.

A transform of length N knows integers modulo N only. The error of each of its outputs is at most beta = 16 u log2(N)
times the sum of the absolute inputs, with u the unit of rounding (Higham, "Accuracy and Stability of Numerical
Algorithms", section 24.1, has 8 u log2 N in norm). Before the transform a distribution is shifted so that its largest
probability is at 0, and that probability is left out: the whole transform is F = 1 + w, where w and its error are small
for a variable that seldom differs from its most likely value. Products of powers of such F are computed by logarithms,
and count as 0 where they are certainly below e^-80.
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

_LOG_NEGLIGIBLE = -80.0  # products of powers that are certainly below e to this power count as 0
_STEPS = np.linspace(0.0, 1.0, 24)
"""`window` tries rates r of Chernoff's bounds by E e^{r sum}, from 0.02 or less to 50 over the standard deviation of
the sum. The logs of the rates are at these shares of that range."""
_SKETCH = 600  # a window of a sum is chosen from laws coarsened to so many values, because it need not be exact


@dataclass(frozen=True)
class _Spectrum:
    # The Fourier transform of a law at the frequencies omega = 2 pi k/N, k = 0, ..., N/2, N being its length `size`, as
    # e^log_total e^{-i omega shift} (1 + w)

    size: int
    shift: int  # an integer with a large weight, which is moved to 0
    log_total: float  # the log of the sum of the weights
    w: NDArray[np.complex128]
    wrong: Array  # bounds on the absolute errors of w
    log_most: Array  # log(|1 + w| + wrong)


def _beta(size: int) -> float:  # a bound on the error of a transform's output over the sum of the |inputs|
    return 16 * UNIT * math.log2(size)


def _norm(x: Array) -> float:
    return math.sqrt(float(np.sum(x * x)))


def _spectrum(law: Array, first: int, size: int, mode: int) -> _Spectrum:
    """Returns the Fourier transform, of length `size`, of the distribution with the weights law[k] >= 0 at the integers
    first + k, taken modulo `size`. The integer first + `mode`, the `shift` of the result, is moved to 0; the caller
    moves a product of transforms back by the sum of their shifts. Any mode is correct. The likeliest integer is best:
    the more weight lies elsewhere, the larger is the bound on the transform's error."""
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


Mixture = Sequence[tuple[float, Sequence[int]]]
"""Several sums of independent variables, of which one is chosen at random: for each sum the log of its probability, and
how many copies of each of some variables it has."""


def _compose(spectra: Sequence[_Spectrum], mixture: Mixture, start: int) -> tuple[Array, float]:
    """Returns the distribution of one of several sums of independent variables, chosen at random, modulo the length N
    of the transforms `spectra` of the variables: its weights >= 0 at the integers start, ..., start + N - 1, and a
    bound on the Euclidean norm of their errors. `mixture` has for each sum, at least one, the log of its probability
    and how many copies of each variable it has. Unless there is only one sum, all sums must have the same total number
    of copies, and all variables the same sum of weights and the same integer, which their transforms move to 0."""
    size = spectra[0].size
    log_most = np.array([one.log_most for one in spectra])
    most = [log + np.asarray(counts, dtype=np.float64) @ log_most for log, counts in mixture]
    kept = np.flatnonzero(np.max(most, axis=0) > _LOG_NEGLIGIBLE)
    logs = []
    for one in spectra:
        w = one.w[kept]
        # log |1 + w|: the first formula has a small relative error even near w = 0, where the log is near 0. The second
        # one is for w near -1, where its error changes the small number |1 + w| by little in absolute terms.
        square = 2 * w.real + w.real**2 + w.imag**2
        log_size, small = 0.5 * np.log1p(np.maximum(square, -0.75)), square < -0.75
        log_size[small] = np.maximum(log_law(np.abs(1 + w[small])), -1e4)
        logs.append((log_size, np.arctan2(w.imag, 1 + w.real)))
    product, spread = np.zeros(len(kept), np.complex128), np.zeros(len(kept))
    for (share, counts), log_of_all in zip(mixture, most, strict=True):
        power, angle, turns = np.full(len(kept), share), np.zeros(len(kept)), np.full(len(kept), abs(share))
        for one, n, (log_size, turn) in zip(spectra, counts, logs, strict=True):
            if n:
                power += n * log_size
                angle += n * turn
                turns += n * np.hypot(log_size, turn)
                spread += 1.1 * n * one.wrong[kept] * np.exp(np.minimum((log_of_all - one.log_most)[kept], 700.0))
        size_of_term = np.exp(power)
        product += size_of_term * np.exp(1j * angle)
        spread += size_of_term * 8 * UNIT * (4 + len(mixture) + turns)
    whole = np.zeros(size // 2 + 1, np.complex128)
    whole[kept] = product
    law = np.maximum(fft.irfft(whole, size), 0)
    wrong = _norm(spread) + len(mixture) * math.sqrt(size) * math.exp(_LOG_NEGLIGIBLE + 1)
    wrong += _beta(size) * _norm(np.abs(product))
    counts = mixture[0][1]
    total = math.exp(sum(n * one.log_total for one, n in zip(spectra, counts, strict=True)))
    shift = start - sum(n * one.shift for one, n in zip(spectra, counts, strict=True))
    return np.roll(law, -(shift % size)) * total, math.sqrt(2 / size) * wrong * total


@dataclass(frozen=True)
class Sum:
    """The distribution of a sum S of independent variables at the rising, equally spaced values `at`; made by `sums`.
    The entries of `law` are its probabilities times e^{theta S - log_scale}, theta >= 0, and sum to 1; `beyond` bounds
    what part of them belongs to values outside `at`. `error` bounds the Euclidean norm of their errors by the Fourier
    transform, `wrong` the relative errors by rounding of the variables' probabilities."""

    theta: float
    at: Array
    law: Array
    log_scale: float
    error: float
    beyond: float
    wrong: float

    def _relative(self, exponent: float) -> float:
        # A bound on the relative error of weights from which the tilt is removed, by a factor of at most e^|exponent|
        relative = self.wrong + 16 * UNIT * (abs(self.log_scale) + abs(exponent))
        if relative > 0.01:
            raise OverflowError("rounding errors exceed the answer")
        return 1.1 * relative

    def excess(self, threshold: float) -> tuple[float, float]:
        """Returns an upper bound on E max(S - threshold, 0), and the part of this bound that covers errors of the
        Fourier transform. S is the sum with this distribution; `theta` must be above 0. Raises OverflowError if
        rounding errors exceed 1%."""
        theta = self.theta
        y = self.at[int(np.searchsorted(self.at, threshold, side="right")) :] - threshold
        # To bound what errors of the weights add: max(y, 0) e^{-theta y} is at most 1/(e theta), and its sum over the
        # grid is at most that plus 1/(width theta^2).
        value = float(y @ (np.exp(-theta * y) * self.law[len(self.law) - len(y) :]))
        peak, width = 1 / (math.e * theta), float(self.at[1] - self.at[0])
        wrong = 1.01 * (self.error * math.sqrt(peak * (peak + 1 / (width * theta * theta))) + self.beyond * peak)
        wrong += 8 * UNIT * len(y) * value
        scale = math.exp(min(self.log_scale - theta * threshold, 700.0))
        return (value + wrong) * scale * (1 + self._relative(theta * threshold)), wrong * scale

    def tails(self, sign: int) -> Array:
        """Returns bounds on the probability that the sum is at least v, for each grid point v in rising order: lower
        bounds for `sign` -1, upper bounds for `sign` 1. Raises OverflowError if rounding errors exceed 1%."""
        exponent = self.log_scale - self.theta * self.at
        # To undo the tilt, weights are multiplied by e^exponent. The factor is clipped above e^300, and all but 0 below
        # e^-700, so that theta times a value matters only if it is within 700 of log_scale.
        relative = self._relative(abs(self.log_scale) + 700)
        fall = np.exp(np.minimum(exponent, 300.0))
        tail, total = (np.cumsum(each[::-1])[::-1] for each in (self.law * fall, fall))
        # The factors `fall`, e^{-theta value} up to scale, undo the tilt. As theta >= 0 none is larger than one before
        # it, so the norm of all factors from one value on is at most the square root of the first one times their sum.
        wrong = 1.01 * (self.error * np.sqrt(fall) * np.sqrt(total) + self.beyond * fall) + 8 * UNIT * len(fall) * tail
        found = np.clip((tail + sign * (wrong + 1e-300)) * (1 + sign * relative), 0.0, 1.0)
        return found if sign < 0 else np.where(exponent > 300, 1.0, found)


def window(
    laws: Sequence[tuple[Array, Array, int]], log_folded: float, mixture: Mixture = ()
) -> tuple[float, float, float, float]:
    """Returns a range that contains a sum of independent variables, but for a probability of at most e^log_folded
    beyond each end, by Chernoff's bounds. Raises OverflowError if the variance of the sum is almost 0 or not finite.

    Args:
        laws: for each variable its values, their probabilities, and the number of its copies in the sum.
        log_folded: the log of the probability that may be beyond each end, < 0.
        mixture: for a random one of several sums: the log probability of each sum, and its numbers of copies, which
            replace those in `laws`.

    Returns:
        The lower and the upper end, and the rates r > 0 at which the bound by E e^{r sum} above the range, and by E
        e^{-r sum} below it, are smallest.
    """
    mixture = mixture or [(0.0, [n for *_, n in laws])]
    shares, copies = np.array([log for log, _ in mixture]), np.array([counts for _, counts in mixture], dtype=float)
    means = np.array([float(np.sum(weights * values)) for values, weights, _ in laws])
    centred = [(log_law(weights), values - mean) for (values, weights, _), mean in zip(laws, means, strict=True)]
    each = copies @ means
    mean = float(np.exp(shares) @ each)
    spreads = np.array([float(np.sum(np.exp(logs) * y**2)) for logs, y in centred])
    variance = float(np.exp(shares) @ (copies @ spreads + (each - mean) ** 2))
    if not (math.isfinite(variance) and variance > 0):
        raise OverflowError("sums that all but are one value")
    deviation, broadest = math.sqrt(variance), max(float(np.ptp(values)) for values, *_ in laws)
    least = min(0.02 / deviation, 1 / broadest)
    rates = least * (50 / deviation / least) ** _STEPS
    ends = []
    for sign in (1, -1):
        moments = copies @ np.array([log_moments(logs, sign * rates, y) for logs, y in centred])
        moments += shares[:, None] + sign * rates * (each - mean)[:, None]
        reach = (np.logaddexp.reduce(moments, axis=0) - log_folded) / rates
        best = int(np.argmin(reach))
        ends.append((mean + sign * float(reach[best]), float(rates[best])))
    (high, up), (low, down) = ends
    return low, high, up, down


def composed(
    laws: Sequence[tuple[int, Array, int]],
    width: float,
    start: int,
    size: int,
    up: float,
    down: float,
    *,
    mixture: Mixture = (),
) -> tuple[Array, float, float]:
    """Computes the distribution of a sum of independent variables on the grid `width` times start, ..., start + size -
    1, modulo the length `size` of the grid.

    Args:
        laws: for each variable the integer of its first weight, its weights at this and the following integers, which
            sum to 1, and the number of its copies. Its values are `width` times the integers.
        width, start, size: the width > 0 of a cell of the grid, its first integer and its number of points.
        up, down: rates > 0 of Chernoff's bounds on the mass above and below the grid. Any rates are correct; those that
            `window` returns make the bounds small.
        mixture: for a random one of several sums: the log probability of each sum, and its numbers of copies, which
            replace those in `laws`. Then all sums must have the same total number of copies, and all laws the same
            first integer.

    Returns:
        The weights at the grid's points, a bound on the Euclidean norm of their errors, and a bound on the mass outside
        the grid, which is counted at other points of it.
    """
    mixture = mixture or [(0.0, [n for *_, n in laws])]
    if len(laws) == 1 == laws[0][2]:  # the law itself, without errors
        (first, mass, _), law = laws[0], np.zeros(size)
        at = first - start + np.arange(len(mass))
        inside = (at >= 0) & (at < size)
        law[at[inside]] = mass[inside]
        return law, 0.0, float(np.sum(mass[~inside])) * (1 + len(mass) * UNIT)
    modes = [int(np.argmax(mass)) for _, mass, _ in laws]
    if len(mixture) > 1:
        modes = [modes[int(np.argmax(mixture[0][1]))]] * len(laws)
    spectra = [_spectrum(mass, first, size, mode) for (first, mass, _), mode in zip(laws, modes, strict=True)]
    law, error = _compose(spectra, mixture, start)
    rates = np.array([up, -down])
    tails = np.zeros((len(laws), 2))
    for k, (first, mass, _) in enumerate(laws):
        seen = np.flatnonzero(mass)
        tails[k] = log_moments(np.log(mass[seen]), rates, np.asarray((first + seen) * width, dtype=np.float64))
    beyond = 0.0
    for share, counts in mixture:
        tail = share + np.asarray(counts) @ tails + np.array([-up * width * (start + size), down * width * start])
        beyond += float(np.sum(np.exp(np.minimum(tail, 0.0))))
    return law, error, beyond


def sums(
    points: NDArray[np.int64],
    width: float,
    products: Sequence[tuple[float, Sequence[Array], Mixture]],
    log_folded: float,
    longest: int,
) -> list[Sum]:
    """Computes the distributions of several sums of independent variables, all on one grid, in the order of `products`.
    Raises OverflowError if the grid needs more than `longest` cells.

    Args:
        points, width: rising integers, and the width > 0 of a cell of the grid: the variables have the values `width`
            times `points`.
        products: for each sum its tilt theta >= 0 (> 0 for `Sum.excess`): its weights are multiplied by e^{theta
            value}, which makes errors small relative to tail probabilities; the weights of each variable at these
            values, before this multiplication; and pairs (log probability, number of copies of each variable), of which
            one is chosen at random. The total number of copies is the same in all.
        log_folded: the log, < 0, of about the share of each tilted sum for which the grid has no room (`Sum.beyond`).
        longest: the most cells of the grid.
    """
    z, made = np.asarray(points * width, dtype=np.float64), []
    for theta, masses, mixture in products:
        logs = [log_law(law) + theta * z for law in masses]
        totals = np.array([float(log_moments(each, np.zeros(1), z)[0]) for each in logs])
        laws = [np.exp(each - total) for each, total in zip(logs, totals, strict=True)]
        shares = np.array([log + float(np.asarray(counts) @ totals) for log, counts in mixture])
        log_scale = float(np.logaddexp.reduce(shares))
        tilted = [(share - log_scale, counts) for share, (_, counts) in zip(shares.tolist(), mixture, strict=True)]
        found = window([(*sketched(z, law, _SKETCH), 0) for law in laws], log_folded, tilted)
        size_of_logs = max(float(np.asarray(counts) @ np.abs(totals)) for _, counts in mixture)
        made.append((theta, laws, tilted, log_scale, size_of_logs, found))
    # Coarsened laws, with which the ranges were chosen, spread a little less, so the grid is made a little wider.
    low, high = (pick(found[k] for *_, found in made) for k, pick in enumerate((min, max)))
    start, last = math.floor((low - 0.01 * (high - low)) / width), math.ceil((high + 0.01 * (high - low)) / width)
    size = max(min(m * 2 ** math.ceil(math.log2((last - start + 1) / m)) for m in (1, 3)), 64)
    if size > longest:
        raise OverflowError("the noise is too little for the grid")
    of_all, at = [], (start + np.arange(size)) * width
    for theta, laws, tilted, log_scale, size_of_logs, (_, _, up, down) in made:
        on_grid = []
        for law in laws:
            dense = np.zeros(int(points[-1] - points[0]) + 1)
            dense[points - points[0]] = law
            on_grid.append((int(points[0]), dense, 0))
        law, error, beyond = composed(on_grid, width, start, size, up, down, mixture=tilted)
        wrong = sum(tilted[0][1]) * UNIT * (64 + 8 * theta * max(abs(float(z[0])), abs(float(z[-1]))))
        wrong += 16 * UNIT * size_of_logs
        of_all.append(Sum(theta, at, law, log_scale, error, beyond, wrong))
    return of_all
