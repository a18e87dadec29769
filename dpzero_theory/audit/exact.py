"""Exact tests of the batches and the noise that a private loop draws.

Each function returns a p-value: the probability, if the loop does what it claims, of a statistic at least as extreme as
the observed one. P-values are two-sided (twice the smaller tail) unless the function says otherwise. No null
distribution is an approximation, except for rounding errors of about 1e-13 in convolutions. So rejecting p-values below
a level raises a false alarm with at most that probability.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpzero_theory.check import Array

_MOST_SPREAD = 14.0  # `dispersion` counts deviations beyond about this many claimed standard deviations alike


def _two_sided(lower: float, upper: float) -> float:
    # For a statistic S with the observed value s, `lower` is P[S <= s] and `upper` is P[S >= s]
    return float(min(1.0, 2 * min(lower, upper)))


def binomial(hits: int, trials: int, rate: float) -> float:
    """Return the two-sided p-value of `hits` successes in `trials` independent trials with probability `rate` each."""
    law = stats.binom(trials, rate)
    return _two_sided(law.cdf(hits), law.sf(hits - 1))


def at_least(hits: int, trials: int, rate: float) -> float:
    """Return the probability of `hits` or more successes in `trials` independent trials of probability `rate` each."""
    return float(stats.binom.sf(hits - 1, trials, rate))


def dispersion(counts: NDArray[np.int64], pmf: Array) -> float:
    """Return the two-sided p-value of the spread of independent counts, each claimed to have P[count = k] = pmf[k].

    The statistic is the sum of (count - c)^2, where c is the claimed mean rounded to an integer. It is too small if the
    counts are too equal, and too large if they vary more than claimed. Deviations beyond about 14 claimed standard
    deviations count alike, so that the table of the sum's exact law stays small.

    Args:
        counts: the observed counts, shape (N,).
        pmf: the claimed probabilities of 0, 1, 2, ..., of shape (largest + 1,).
    """
    support = np.arange(pmf.size)
    mean = float(support @ pmf)
    centre = round(mean)
    spread = math.sqrt(max(float((support - mean) ** 2 @ pmf), 0.0))
    cap = int(min((support - centre).astype(float).max() ** 2, (_MOST_SPREAD * spread + 2) ** 2)) + 1
    squares = np.minimum((support - centre) ** 2, cap)
    law = _sum_of(np.asarray(np.bincount(squares, weights=pmf, minlength=cap + 1), dtype=np.float64), counts.size)
    seen = int(np.minimum((np.asarray(counts) - centre) ** 2, cap).sum())
    return _two_sided(math.fsum(law[: seen + 1]), math.fsum(law[seen:]))


def overlaps(shared: int, pairs: int, pmf: Array) -> float:
    """Return the two-sided p-value of a sum of `pairs` independent integers, each claimed to be k with P = pmf[k].

    Args:
        shared: the observed sum, such as of how many records the two batches of each of `pairs` pairs share.
        pairs: how many integers are added.
        pmf: the claimed probabilities that an integer is 0, 1, 2, ..., of shape (largest + 1,).
    """
    law = _sum_of(pmf, pairs)
    return _two_sided(math.fsum(law[: shared + 1]), math.fsum(law[shared:]))


def _sum_of(pmf: Array, times: int) -> Array:
    # The law of a sum of `times` independent integers, each k with probability pmf[k], is the convolution power of pmf
    size = (pmf.size - 1) * times + 1
    length = 1 << (size - 1).bit_length()
    law = np.fft.irfft(np.fft.rfft(pmf, length) ** times, length)[:size]
    return np.maximum(law, 0.0)


def correlation(a: Array, b: Array) -> float:
    """Return the two-sided p-value of the cosine r of two vectors of N numbers, one claimed to be Gaussian noise.

    The other vector may be anything that does not depend on that noise. Under the claim r is distributed as a
    coordinate of a uniform point on the unit sphere in N dimensions, so (1 + r)/2 is Beta((N - 1)/2, (N - 1)/2). The
    p-value is 1 for a zero vector and for N = 1.
    """
    norms = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    if norms == 0 or a.size < 2:
        return 1.0
    r = min(max(float(a @ b) / norms, -1.0), 1.0)
    return float(min(1.0, 2 * stats.beta.cdf((1 - abs(r)) / 2, (a.size - 1) / 2, (a.size - 1) / 2)))
