"""The hockey-stick divergence of Gaussian releases in 60-digit arithmetic of our own, and the paper's composition
lemma."""

from functools import cache

import mpmath
import numpy as np

from paper_checks import formulas as f

DELTAS = (0.5, 0.1, 1e-3, 1e-5, 1e-6, 1e-10)


def lemma_gdp(epsilon: float, delta: float) -> float:
    """The mu that Lemma lm:composition implies, sqrt(T) Delta/sigma for its variance."""
    return 1 / f.value(f.lemma_deviation, {"eps": epsilon, "delta": delta})


def hockey_stick(epsilon: float, shift: float) -> float:
    """sup_B P(B) - e^epsilon Q(B) for P = N(shift, 1) and Q = N(0, 1), to 60 digits; the densities' ratio crosses
    once."""
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(shift)
        crossing = e / m + m / 2
        return float(mpmath.ncdf(-(crossing - m)) - mpmath.exp(e) * mpmath.ncdf(-crossing))


def least_epsilon(shift: float, delta: float) -> float:
    """The smallest epsilon with hockey_stick(epsilon, shift) <= delta."""
    low, high = 0.0, 1.0
    while hockey_stick(high, shift) > delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if hockey_stick(middle, shift) > delta else (low, middle)
    return high


@cache
def lemma_limit(delta: float) -> float:
    """The epsilon above which the lemma's noise is too little at this delta, by bisection to 1e-7."""
    low, high = 0.5, 0.5
    while hockey_stick(high, lemma_gdp(high, delta)) <= delta:
        low, high = high, 2 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if hockey_stick(middle, lemma_gdp(middle, delta)) <= delta else (low, middle)
    return low


def region(full: bool) -> tuple[float, float]:
    """The largest ratio of the true delta(epsilon) to the delta asked for, with the lemma's noise: over a grid of all
    epsilon, and over those below the limit."""
    everywhere, below = 0.0, 0.0
    for delta in DELTAS:
        for epsilon in np.geomspace(1e-3, 2000, 200 if full else 40):
            ratio = hockey_stick(float(epsilon), lemma_gdp(float(epsilon), delta)) / delta
            everywhere = max(everywhere, ratio)
            if epsilon <= lemma_limit(delta):
                below = max(below, ratio)
    return everywhere, below
