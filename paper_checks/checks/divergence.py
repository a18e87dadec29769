"""The hockey-stick divergence of Gaussian releases, computed to 60 digits and apart from the library, and what noise
the paper's composition lemma (lm:composition) asks for."""

import math
from functools import cache

import mpmath
import numpy as np
from scipy.optimize import brentq

from paper_checks import formulas as f

DELTAS = (0.5, 0.1, 1e-3, 1e-5, 1e-6, 1e-10)


def lemma_gdp(epsilon: float, delta: float) -> float:
    """Return mu of Gaussian differential privacy, sqrt(T) Delta/sigma, of T Gaussian releases with sensitivity Delta
    and the noise sigma that the paper's composition lemma (lm:composition) asks for at (epsilon, delta). It depends on
    neither T nor Delta."""
    return 1 / f.value(f.lemma_deviation, {"eps": epsilon, "delta": delta})


def hockey_stick(epsilon: float, shift: float) -> float:
    """Return the least delta for which N(shift, 1) and N(0, 1) are (epsilon, delta)-indistinguishable: sup_B P(B) -
    e^epsilon Q(B) over all sets B, with P and Q the two laws, to 60 digits."""
    with mpmath.workdps(60):
        e, m = mpmath.mpf(epsilon), mpmath.mpf(shift)
        crossing = e / m + m / 2
        return float(mpmath.ncdf(-(crossing - m)) - mpmath.exp(e) * mpmath.ncdf(-crossing))


def least_epsilon(shift: float, delta: float) -> float:
    """Return the epsilon >= 0 with hockey_stick(epsilon, shift) = delta, to within 1e-12, or 0 if hockey_stick(0,
    shift) is at most delta."""
    if hockey_stick(0.0, shift) <= delta:
        return 0.0
    most = shift * (shift + math.sqrt(2 * math.log(1 / delta)))  # Gaussian tails are below exp(-x^2/2)
    return float(brentq(lambda epsilon: hockey_stick(epsilon, shift) - delta, 0, most, xtol=1e-12, rtol=1e-14))


@cache
def largest_gdp(epsilon: float, delta: float) -> float:
    """Return the mu of Gaussian differential privacy, up to 10, with hockey_stick(epsilon, mu) = delta, to within
    1e-12."""
    return float(brentq(lambda mu: hockey_stick(epsilon, mu) - delta, 1e-9, 10, xtol=1e-12, rtol=1e-14))


@cache
def lemma_limit(delta: float) -> float:
    """Return the epsilon up to which the noise of the paper's composition lemma (lm:composition) gives (epsilon, delta)
    at this delta, and beyond which it does not. The value is off by at most 1e-7 of itself. It lies between 0.5 and
    2,000."""

    def excess(epsilon: float) -> float:
        return hockey_stick(epsilon, lemma_gdp(epsilon, delta)) / delta - 1

    return float(brentq(excess, 0.5, 2000, rtol=1e-8))


def region(full: bool) -> tuple[float, float]:
    """Return the largest ratio of the delta(epsilon) that the noise of the paper's composition lemma really gives to
    the delta asked for: first over a grid of epsilon from 1e-3 to 2,000 and all delta in DELTAS, then over those of its
    points at which epsilon is at most `lemma_limit`. A ratio above 1 breaks the lemma. The grid is finer if `full`."""
    everywhere, below = 0.0, 0.0
    for delta in DELTAS:
        for epsilon in np.geomspace(1e-3, 2000, 200 if full else 40):
            ratio = hockey_stick(float(epsilon), lemma_gdp(float(epsilon), delta)) / delta
            everywhere = max(everywhere, ratio)
            if epsilon <= lemma_limit(delta):
                below = max(below, ratio)
    return everywhere, below
