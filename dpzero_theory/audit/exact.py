"""Exact tests of what private loops draw: batches and noise.

Every function returns a p-value: the probability, where the loop does as it claims, of a statistic at least as far out
as the observed one; two-sided where not said otherwise (twice the smaller tail). No law here is an approximation but
for the rounding of float64 (1e-13 of a probability by convolution), so that rejecting below a level errs with at most
that probability.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from dpzero_theory.check import Array

Counts = NDArray[np.int64]
_WIDTH = 14.0
"""Standard deviations beyond which all values of a law are taken together."""


def two_sided(lower: float, upper: float) -> float:
    """From P[S <= s] and P[S >= s]."""
    return float(min(1.0, 2 * min(lower, upper)))


def binomial(hits: int, trials: int, rate: float) -> float:
    """`hits` of `trials` independent ones, each with probability `rate`."""
    law = stats.binom(trials, rate)
    return two_sided(law.cdf(hits), law.sf(hits - 1))


def at_least(hits: int, trials: int, rate: float) -> float:
    """One-sided: so many of independent trials."""
    return float(stats.binom.sf(hits - 1, trials, rate))


def dispersion(counts: Counts, pmf: Array) -> float:
    """Independent counts, each with P[count = k] = pmf[k]: sum (count - c)^2, c the integer next to the mean.

    Its law is the convolution of that of the summands. Too small where counts are all alike, too large where they are
    not of that law.
    """
    support = np.arange(pmf.size)
    mean = float(support @ pmf)
    centre = round(mean)
    spread = math.sqrt(max(float((support - mean) ** 2 @ pmf), 0.0))
    cap = int(min((support - centre).astype(float).max() ** 2, (_WIDTH * spread + 2) ** 2)) + 1
    squares = np.minimum((support - centre) ** 2, cap)
    law = power(np.asarray(np.bincount(squares, weights=pmf, minlength=cap + 1), dtype=np.float64), counts.size)
    seen = int(np.minimum((np.asarray(counts) - centre) ** 2, cap).sum())
    return two_sided(math.fsum(law[: seen + 1]), math.fsum(law[seen:]))


def overlaps(shared: int, pairs: int, pmf: Array) -> float:
    """`shared` records in all that both batches of independent pairs have; pmf: of one pair's number."""
    law = power(pmf, pairs)
    return two_sided(math.fsum(law[: shared + 1]), math.fsum(law[shared:]))


def power(pmf: Array, times: int) -> Array:
    """The law of the sum of `times` independent numbers with this law on 0, 1, 2, ..."""
    size = (pmf.size - 1) * times + 1
    length = 1 << (size - 1).bit_length()
    law = np.fft.irfft(np.fft.rfft(pmf, length) ** times, length)[:size]
    return np.maximum(law, 0.0)


def too_little(squares: float, count: int) -> float:
    """One-sided: `count` Gaussians of variance 1 whose squares sum to as little as this."""
    return float(stats.chi2.cdf(squares, count))


def too_much(squares: float, count: int) -> float:
    """One-sided: whose squares sum to as much as this."""
    return float(stats.chi2.sf(squares, count))


def least_seen(count: int, level: float, power: float = 0.95) -> float:
    """The largest fraction of a standard deviation that `too_little` finds below `level` with probability `power`."""
    return math.sqrt(float(stats.chi2.ppf(level, count)) / float(stats.chi2.ppf(power, count)))


def correlation(a: Array, b: Array) -> float:
    """Two vectors, one of them of independent Gaussians of mean 0 and one variance, whatever the other is.

    Their cosine r has the law of a coordinate on the sphere: (1 + r)/2 is Beta((N - 1)/2, (N - 1)/2).
    """
    norms = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    if norms == 0 or a.size < 2:
        return 1.0
    r = min(max(float(a @ b) / norms, -1.0), 1.0)
    return float(min(1.0, 2 * stats.beta.cdf((1 - abs(r)) / 2, (a.size - 1) / 2, (a.size - 1) / 2)))


def gaussian(values: Array) -> float:
    """Independent standard Gaussians: Kolmogorov's distance from the normal law."""
    return float(stats.kstest(values, "norm").pvalue)


def many_within(values: Array, threshold: float) -> float:
    """One-sided: so many of independent Gaussians, of standard deviation 1 or more, within +-threshold."""
    return at_least(int((np.abs(values) <= threshold).sum()), values.size, 1 - 2 * float(stats.norm.sf(threshold)))


def few_beyond(values: Array, threshold: float) -> float:
    """One-sided: so few of independent standard Gaussians beyond +-threshold."""
    return float(stats.binom.cdf(int((np.abs(values) > threshold).sum()), values.size, 2 * stats.norm.sf(threshold)))
