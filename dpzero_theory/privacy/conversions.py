"""The privacy of a history in other currencies: trade-off curve (f-DP) and Renyi DP.

delta(epsilon) is the whole story; each of these is a summary of it. Renyi is needed where other results are stated
in it, and throws privacy away: converted back to (epsilon, delta) it asks for more noise.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.accountant import (
    compositions,
    delta_of_history,
    epsilon_of_history,
    gaussian_part,
    total_gdp,
)
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.tilting import cumulant
from dpzero_theory.privacy.step import Steps


def rdp_of_history(history: Steps, order: float) -> Bracket:
    """Renyi differential privacy: the largest Renyi divergence D_a(P || Q) of order a > 1, both directions.

    D_a = (1/(a-1)) sum_j T_j K_j(a - 1) with K the cumulant of the loss under P, plus a mu^2/2 of the plain Gaussian
    releases (Mironov 2017). The bracket holds the quadrature and rounding errors, and G (2a - 1)/(a - 1) for laws
    within e^G of Gaussian ones (both densities of the divergence's integrand).

    Raises:
        ValueError: an argument outside its range.
        OverflowError: an order so large that the divergence needs too many nodes.
    """
    a = check.real("order", order, above=1)
    tau = a - 1
    above, below, ratio = gaussian_part(history)
    base, least = (a * total_gdp(releases) ** 2 / 2 for releases in (above, below))
    apart = ratio * (2 * a - 1) / tau
    best = Bracket(max(least - apart, 0.0), base, base + apart, "closed form")
    for more, less in zip(compositions(above), compositions(below), strict=True):
        low, high = least - apart, base + apart
        for (pair, steps), (lesser, _) in zip(more, less, strict=True):
            value, error = cumulant(pair, tau)
            high += steps * (value + error) / tau
            if lesser != pair:
                value, error = cumulant(lesser, tau)
            low += steps * max(value - error, 0.0) / tau
        if high > best.upper:
            best = Bracket(low, high, high, "quadrature")
    return best


def trade_off(history: Steps, type_one: ArrayLike, *, points: int = 60) -> Array:
    """A certified lower bound on the trade-off function: no test of level a has a type II error below it.

    f(a) = max over epsilon of 1 - delta(epsilon) - e^epsilon a and e^{-epsilon} (1 - delta(epsilon) - a), 0 (Dong,
    Roth and Su, Proposition 2.12), with the certified upper delta at `points` values of epsilon: every finite set
    gives a lower bound, close to the curve for 60.

    Args:
        history: groups of releases.
        type_one: levels a in [0, 1] of the test, any shape.

    Raises:
        ValueError: an argument outside its range.
    """
    a = check.real_array("type_one", type_one, at_least=0, at_most=1)
    count = check.integer("points", points, at_least=2)
    top = epsilon_of_history(history, 1e-12).upper
    best = np.zeros_like(a)
    for epsilon in np.concatenate([[0.0], np.geomspace(1e-3, 1.0, count - 1) * max(top, 1e-9)]):
        spent = delta_of_history(history, float(epsilon)).upper
        best = np.maximum(best, 1 - spent - math.exp(epsilon) * a)
        best = np.maximum(best, math.exp(-epsilon) * (1 - spent - a))
    return best
