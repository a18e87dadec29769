"""Bounds on delta(epsilon) of a composition that need neither an integral nor a grid.

`chernoff` bounds delta from above at any epsilon. `by_use` brackets delta by the probability that the record is in
some batch, which is sharp where the noise is so small that every use of the record is seen.
"""

import math
from dataclasses import replace

import numpy as np
from scipy.special import log_ndtr

from dpzero_theory.privacy.certified.analytic.tilting import cumulant
from dpzero_theory.privacy.certified.laws.pairs import Pair
from dpzero_theory.privacy.certified.laws.parts import OneOf, Parts
from dpzero_theory.privacy.gaussian import GDP_ACCURACY, log_delta_from_gdp

_USE_ROUNDING = 1e-12
"""A bound on the rounding errors in `by_use`: on the relative error of its upper bound, and on the absolute error of
its lower bound."""
_SIDE = {"add": "remove", "remove": "remove", "replace": "replace", "fixed-size": "remove"}
"""For each kind of pair in `pairs`, the kind whose tail probabilities (`Pair.beyond`) `by_use` takes. For `add` it is
`remove`, which is the same with P and Q exchanged, and for `fixed-size` it is `remove`, which has the same large
losses."""


def chernoff(epsilon: float, parts: Parts, gdp: float, enough: float = 0.0) -> float:
    """An upper bound on delta(epsilon): the smallest of 1 and prod_j M_j(tau)^{T_j} e^{-tau epsilon} over some tau.

    parts: the dominating pairs j of single releases, each with its number T_j of releases. M_j(tau) = E_P e^{tau L} is
    the moment of the privacy loss L of one release of pair j. The moment of the `gdp`-GDP mechanism is one more factor.
    The tau are the powers of four from 1 to 4^16. enough: the search ends at the first tau whose bound is below this
    number, though a later tau may give a smaller one.
    """
    best = 0.0
    for tau in np.geomspace(1.0, 4.0**16, 17):
        total = gdp**2 * tau * (tau + 1) / 2 - tau * epsilon
        try:
            for pair, steps in parts:
                value, error = cumulant(pair, float(tau))
                total += steps * (value + error)
        except OverflowError:
            break
        if total > best:  # larger tau only give larger bounds, because the logarithm of the bound is convex in tau
            break
        best = total
        if math.exp(best) < enough:
            break
    return min(math.exp(best) + 5e-324, 1.0)


def by_use(epsilon: float, parts: Parts, gdp: float) -> tuple[float, float]:
    """A lower and an upper bound on delta(epsilon), from the probability that some batch holds the record.

    parts: at least one dominating pair of a single release, all for one direction, each with its number of releases.
    Where no batch holds the record both laws are the same. So delta is at most the probability that a batch holds it,
    plus the delta of the full-batch releases, which are `gdp`-GDP. The lower bound is P(E) - e^epsilon Q(E) for one
    event E: that some output (for the kind `add`: every output) lies on the far side of the middle between the two
    means. It is 0 where releases are of one of several kinds by chance.
    """
    unused, low_p, low_q = 0.0, 0.0, 0.0
    plain = [(pair, steps) for pair, steps in parts if isinstance(pair, Pair)]
    for several, steps in parts:
        if isinstance(several, OneOf):
            unused += steps * (math.log1p(-several.sample_rate) if several.sample_rate < 1 else -math.inf)
    for pair, steps in plain:
        near = float(log_ndtr(0.5 / pair.noise))
        log_p, log_q = (
            steps * math.log1p(-math.exp(tail)) for tail in replace(pair, kind=_SIDE[pair.kind]).beyond(0.5)
        )
        unused += steps * math.log1p(-pair.sample_rate)
        low_p, low_q = (low_p + steps * near, low_q + log_p) if pair.kind == "add" else (low_p + log_p, low_q + log_q)
    upper = -math.expm1(unused) * (1 + _USE_ROUNDING)
    if gdp > 0:
        upper += math.exp(float(log_delta_from_gdp(epsilon, gdp))) * (1 + GDP_ACCURACY)
    if len(plain) < len(parts):
        lower = 0.0
    elif plain[0][0].kind == "add":
        lower = math.exp(low_p) - math.exp(min(epsilon + low_q, 700.0))
    else:
        lower = -math.expm1(low_p) + math.exp(min(epsilon, 700.0)) * math.expm1(low_q)
    return max(lower - _USE_ROUNDING, 0.0), min(upper, 1.0)
