"""Certified tails of a binomial law of up to 10^15 trials.

scipy's `bdtr` and `bdtrc` err by 5e-8 near 10^7 trials, and overflow a C integer from 2^31 on. Here the probability of
one outcome is computed in decimals, and the tail beyond it as a sum of falling terms with a bound on the rest.
"""

import math
from decimal import Context, Decimal, localcontext
from typing import NamedTuple

import numpy as np

from dpzero_theory.privacy.laws.law import UNIT

_DIGITS = 60
_HALF_LOG_2PI = Decimal("0.91893853320467274178032973640561763986139747363778")
_MOST_TERMS = 2**22
"""So many terms of a tail are summed. They suffice for 10^12 trials; beyond that the bracket may be wide."""


class _Tails(NamedTuple):
    """Lower and upper bounds on P(X >= k), and on P(X < k), for a binomial variable X."""

    least: float
    most: float
    less_least: float
    less_most: float


def binomial_tails(k: int, trials: int, rate: float) -> _Tails:
    """Certified bounds on P(X >= k) and P(X < k) for a binomial variable X.

    Args:
        k: from 1 to `trials`.
        trials: the number of trials, at most 10^15.
        rate: q, the probability of success of one trial, in (0, 1).

    The smaller tail, on the side of k that does not hold the mean, has a relative error of about 1e-9 or less for up to
    10^12 trials. The other is 1 minus it.
    """
    odds = rate / (1 - rate)
    if k > (trials + 1) * rate:
        # P(X = m + 1)/P(X = m) = (N - m)/(m + 1) q/(1 - q) for m = k, k + 1, ...
        low, high = _tail(_chance(k, trials, rate), trials - k, k + 1, odds)
        return _Tails(low, high, *_complement(low, high))
    # P(X = m - 1)/P(X = m) = m/(N - m + 1) (1 - q)/q for m = k - 1, k - 2, ...
    low, high = _tail(_chance(k - 1, trials, rate), k - 1, trials - k + 2, 1 / odds)
    return _Tails(*_complement(low, high), low, high)


def _complement(low: float, high: float) -> tuple[float, float]:
    """Bounds on 1 - x, from bounds on x."""
    return max(1 - high - UNIT, 0.0), min(1 - low + UNIT, 1.0)


def _chance(k: int, trials: int, rate: float) -> float:
    """P(X = k), with a relative error of at most 2 UNIT; 0 if it is below the least normal float."""
    with localcontext(Context(prec=_DIGITS)):
        q = Decimal(rate)
        log = _log_factorial(trials) - _log_factorial(k) - _log_factorial(trials - k)
        log += k * q.ln() + (trials - k) * (1 - q).ln()
        return float(log.exp()) if log > -708 else 0.0


def _log_factorial(k: int) -> Decimal:
    """log k!, with an error below 1e-23: exact for k < 1000, else Stirling's series, whose error has the size of the
    first term left out, 1/(1680 k^7), at most."""
    if k < 1000:
        return Decimal(math.factorial(k)).ln()
    x = Decimal(k)
    return x * x.ln() - x + x.ln() / 2 + _HALF_LOG_2PI + 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)


def _tail(chance: float, top: int, bottom: int, odds: float) -> tuple[float, float]:
    """Bounds on chance (1 + r_0 + r_0 r_1 + ...) with r_i = odds (top - i)/(bottom + i) < 1, which fall to r_top = 0.

    The terms beyond the last one that is summed, t, are together at most t r/(1 - r), where r is the next ratio. A
    chance of 0 stands for one below 1e-307.
    """
    total, last, done = 1.0, 1.0, 0
    rest = math.inf
    while rest > UNIT * total and done < _MOST_TERMS:
        i = np.arange(done, min(done + max(1024, done), top, _MOST_TERMS), dtype=np.float64)
        terms = last * np.cumprod(odds * ((top - i) / (bottom + i)))
        total += float(terms.sum())
        done, last = done + i.size, float(terms[-1]) if i.size else last
        ratio = odds * max(top - done, 0) / (bottom + done)
        rest = last * ratio / (1 - ratio) if ratio < 1 else math.inf
    # A term is a product of at most `done` ratios with six roundings each (those of 1 - q and of the odds among them);
    # the sum, the chance and the last line are covered by the eight more.
    error = 8 * (done + 8) * UNIT
    low = chance * total * (1 - error)
    high = max(chance, 1e-307) * (total + rest * (1 + 1e-6)) * (1 + error)
    return low, min(high, 1.0)
