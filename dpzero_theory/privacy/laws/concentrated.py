"""A finite pair of distributions that bounds delta of every zCDP release from above.

A release is (xi, rho)-zCDP if its Renyi divergence of order a between neighbouring data sets is at most xi + rho a for
every a > 1, in both directions (Bun and Steinke, arXiv 1605.02635). With t = a - 1 and c(t) = t^t/(1 + t)^(1 + t),

    delta(epsilon) <= min over t > 0 of c(t) exp(t (xi + rho (1 + t)) - t epsilon),

because (1 - e^{-y})_+ <= c(t) e^{t y} (Canonne, Kamath and Steinke, arXiv 2004.00010, proposition 12). The divergence
of order 1 is at most k = xi + rho, so delta(0), the total variation, is at most sqrt(k/2) (Pinsker) and sqrt(1 -
e^{-k}) (Bretagnolle and Huber). As delta is convex in e^epsilon, straight lines between these bounds are bounds too.
"""

import math
from functools import lru_cache

import numpy as np

from dpzero_theory.privacy.laws.finite import FinitePair, dominating

LEAST_RHO, MOST_RHO = 1e-9, 100.0  # with less, the ratios e^l of neighbouring losses l differ too little for floats
_LOG_LEAST, _LARGEST_LOSS = 650.0, 690.0
"""The bound on delta is computed up to the loss at which it is below e^-`_LOG_LEAST`, but at most `_LARGEST_LOSS`,
whose exponential is still a float. Its value at the largest loss counts as the probability of an infinite loss."""
_LOSSES, _ORDERS = 2000, 1200  # numbers of losses, and of orders 1 + t whose least bound on delta at a loss is taken
_MARGIN = 1e-9  # bounds the relative rounding error, 1e-16 over the relative gap of neighbouring e^l, >= 8e-7


@lru_cache(maxsize=16)
def concentrated_pair(rho: float, xi: float) -> FinitePair:
    """Returns a finite pair whose delta is at least that of every (xi, rho)-zCDP release, whose Renyi divergence of
    each order a > 1 is at most xi + rho a. `rho` must be from 1e-9 to 100 and `xi` >= 0; this is not checked. The pair
    serves both orders of neighbouring data sets. It gives upper bounds on delta; its lower bounds are 0."""
    largest = min(xi + rho + 2 * math.sqrt(rho * _LOG_LEAST), _LARGEST_LOSS)
    loss = np.linspace(0.0, largest, _LOSSES)
    middle = np.maximum(loss - xi - rho, math.sqrt(rho)) / (2 * rho)
    log_delta = np.full(len(loss), np.inf)
    for share in np.geomspace(1e-2, 1e2, _ORDERS):
        t = share * middle
        log_c = -t * np.log1p(1 / t) - np.log1p(t)
        log_delta = np.minimum(log_delta, t * (xi + rho * (1 + t) - loss) + log_c)
    above = np.exp(np.minimum(log_delta, 0.0))
    divergence = xi + rho
    above[0] = min(above[0], math.sqrt(divergence / 2), math.sqrt(-math.expm1(-divergence)))
    above = np.minimum.accumulate(above) * (1 + _MARGIN)
    side = loss, np.minimum(above, 1.0)
    pair = dominating(side, side)
    nothing = np.ones(1)
    return FinitePair(pair.loss, pair.mass, pair.infinite, nothing, nothing)
