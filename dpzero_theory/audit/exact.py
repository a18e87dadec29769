"""Exact tests of the batches and the noise that a private training loop draws.

Each function returns a p-value: the probability that a loop which does what it claims has a statistic at least as
extreme as the observed one. P-values are two-sided (twice the smaller tail) if nothing else is said. No distribution is
approximated, apart from rounding errors of about 1e-13.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpzero_theory.check import Array

_MOST_SPREAD = 14.0  # `dispersion` caps deviations at about this many claimed standard deviations


def _two_sided(lower: float, upper: float) -> float:
    # For a statistic S with the observed value s, `lower` is P[S <= s] and `upper` is P[S >= s]
    return float(min(1.0, 2 * min(lower, upper)))


def binomial(hits: int, trials: int, rate: float) -> float:
    """Return the two-sided p-value of `hits` successes in `trials` independent trials with success probability
    `rate`."""
    law = stats.binom(trials, rate)
    return _two_sided(law.cdf(hits), law.sf(hits - 1))


def at_least(hits: int, trials: int, rate: float) -> float:
    """Return the probability of `hits` or more successes in `trials` independent trials with success probability
    `rate`."""
    return float(stats.binom.sf(hits - 1, trials, rate))


def dispersion(counts: NDArray[np.int64], pmf: Array) -> float:
    """Return the two-sided p-value of how much independent counts vary, if each has the distribution P[count = k] =
    pmf[k].

    The statistic is the sum of (count - c)^2, where c is the mean of the distribution, rounded to an integer. A larger
    term than about 14^2 times the variance of a count is replaced by that number.

    Args:
        counts: the observed counts, integers of shape (N,).
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
    """Return the two-sided p-value of the sum of `pairs` independent integers, each with the distribution P[k] =
    pmf[k].

    Args:
        shared: the observed sum, such as the number of records that two batches share, summed over `pairs` pairs.
        pairs: how many integers are added.
        pmf: the claimed probabilities of 0, 1, 2, ..., of shape (largest + 1,).
    """
    law = _sum_of(pmf, pairs)
    return _two_sided(math.fsum(law[: shared + 1]), math.fsum(law[shared:]))


def _sum_of(pmf: Array, times: int) -> Array:
    # Returns the distribution of a sum of `times` independent integers, each equal to k with probability pmf[k]
    size = (pmf.size - 1) * times + 1
    length = 1 << (size - 1).bit_length()
    law = np.fft.irfft(np.fft.rfft(pmf, length) ** times, length)[:size]
    return np.maximum(law, 0.0)


def correlation(a: Array, b: Array) -> float:
    """Return the two-sided p-value of the cosine of the angle between two vectors of N numbers, if one is Gaussian
    noise.

    The noise has independent entries of equal variance, and the other vector must not depend on it. (1 + cosine)/2 then
    has the distribution Beta((N - 1)/2, (N - 1)/2). The p-value is 1 if a vector is zero or N = 1.
    """
    norms = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    if norms == 0 or a.size < 2:
        return 1.0
    r = min(max(float(a @ b) / norms, -1.0), 1.0)
    return float(min(1.0, 2 * stats.beta.cdf((1 - abs(r)) / 2, (a.size - 1) / 2, (a.size - 1) / 2)))
