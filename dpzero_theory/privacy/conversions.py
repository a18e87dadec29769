"""The privacy of a history in other currencies: trade-off curve (f-DP) and Renyi DP.

delta(epsilon) is the whole story; each of these is a summary of it. Renyi is needed where other results are stated
in it, and throws privacy away: converted back to (epsilon, delta) it asks for more noise.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.accountant import (
    delta_of_history,
    epsilon_of_history,
    gaussian_part,
    total_gdp,
)
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.analytic.tilting import cumulant
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.sampling import FixedSize
from dpzero_theory.privacy.step import Release, Steps

_ROUNDING = 1e-14
_LARGEST = 700.0
"""Log of a number that is as good as infinite."""


def rdp_of_history(history: Steps, order: float) -> Bracket:
    """Renyi differential privacy: the largest Renyi divergence D_a(P || Q) of order a > 1, both directions.

    D_a = (1/(a-1)) sum_j T_j K_j(a - 1) with K the cumulant of the loss under P, plus a mu^2/2 of the plain Gaussian
    releases (Mironov 2017). The bracket holds the quadrature and rounding errors, and G (2a - 1)/(a - 1) for laws
    within e^G of Gaussian ones (both densities of the divergence's integrand).

    Fixed-size batches, zero-out, count as those of a replaced record; a truncated Poisson step is, with a chance w that
    is told to everyone, one with fixed-size batches of the same rate, so that e^K is the mean of both; a random
    allocation counts with its steps known. There the lower end is that of what data attain, and may be far below.

    Raises:
        ValueError: an argument outside its range; an order so large, for the noise, that the divergence needs too many
            nodes.
    """
    a = check.real("order", order, above=1)
    tau = a - 1
    above, below, ratio = gaussian_part(history)
    apart = ratio * (2 * a - 1) / tau

    def cumulants(pairs: Sequence[Pair], index: int) -> tuple[float, float]:
        """Bounds of K at tau."""
        pair = pairs[min(index, len(pairs) - 1)]
        try:
            value, error = cumulant(pair, tau)
        except OverflowError:
            noise = f"noise {pair.noise:g} of its sensitivity"
            raise ValueError(f"order must be smaller for a divergence at {noise} to be known; got {a!r}") from None
        return max(value - error, 0.0), value + error

    def most(made: Release, index: int) -> float:
        if made.terms.truncated == 0:
            return cumulants(_dominating(made), index)[1]
        chance, still = made.terms.truncated, made.drawn_as(FixedSize(made.sample_rate))
        drawn, kept = cumulants(made.terms.pairs, index)[1], cumulants(_dominating(still), index)[1]
        top = max(drawn, kept)
        return top + math.log((1 - chance) * math.exp(drawn - top) + chance * math.exp(kept - top)) + _ROUNDING

    lower = upper = 0.0
    for index in (0, 1):
        low = sum(steps * cumulants(_attained(r), index)[0] for r, steps in _sampled(below)) / tau
        high = sum(steps * most(r, index) for r, steps in _sampled(above)) / tau
        lower, upper = max(lower, low), max(upper, high)
    plain = [r for r in below if r.terms.run is None]
    lower = max(lower + a * total_gdp(plain) ** 2 / 2 - apart, 0.0)
    upper = (upper + a * total_gdp(above) ** 2 / 2 + apart) * (1 + _ROUNDING)
    return Bracket(min(lower, upper), upper, upper, "quadrature" if _sampled(above) else "closed form")


def _sampled(releases: Sequence[Release]) -> list[tuple[Release, int]]:
    """Those that are no plain Gaussian releases, with their numbers."""
    return [(made, made.terms.releases or made.steps) for made in releases if made.terms.pairs or made.terms.finite]


def _dominating(made: Release) -> tuple[Pair, ...]:
    return made.terms.pairs or (Pair("fixed-size", made.sample_rate, made.noise_multiplier / 2),)


def _attained(made: Release) -> tuple[Pair, ...]:
    """Those of other records that add nothing, where the pairs are finite ones."""
    kinds = ("remove", "add")
    return made.terms.attained or tuple(Pair(kind, made.sample_rate, made.noise_multiplier) for kind in kinds)


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
        with np.errstate(divide="ignore"):
            best = np.maximum(best, 1 - spent - np.exp(np.minimum(np.log(a) + epsilon, _LARGEST)))
        best = np.maximum(best, math.exp(-epsilon) * (1 - spent - a))
    return best
