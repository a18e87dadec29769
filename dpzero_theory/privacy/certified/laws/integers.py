"""One release with discrete Gaussian noise, in full or Poisson batches: finite pairs above and below, by sums.

Lengths are in lattice units: a clip is M = `levels` of them, the noise has the parameter sigma = s M, s = `noise`. With
the record the sum is moved by M, with the other one of replace-one by -M, and every output is an atom with its own
loss. Outputs up to `_REACH` sigma beyond the means are there; the rest, and what is too rare for a float, is beyond all
losses. Derived in derivation.md, section 16.
"""

import math
from functools import lru_cache

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.certified.laws.exponential import log_mixed
from dpzero_theory.privacy.certified.laws.finite import FinitePair
from dpzero_theory.privacy.relation import Relation

LEAST_NOISE = 0.05
WIDEST = 2.0**8
"""The largest sigma of which the atoms are summed."""
_REACH = 37.5
"""e^(-37.5^2/2) is just a float."""
_UNIT = 2.0**-53
_RARE = 1e-300
"""A mass that is not told from nothing."""


@lru_cache(maxsize=8)
def discrete_pairs(noise: float, sample_rate: float, relation: Relation, levels: int) -> tuple[FinitePair, FinitePair]:
    """The pairs (P, Q) and (Q, P) of one release, P with the record.

    noise: s of the module, at least `LEAST_NOISE`, and at most `WIDEST` / levels. sample_rate: q in (0, 1], of
    full or Poisson batches. levels: M >= 1.
    """
    sigma, q = noise * levels, sample_rate
    reach = math.ceil(_REACH * sigma)
    still = np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2) / 2)
    total = math.fsum(still)
    bottom = -levels if relation is Relation.REPLACE_ONE else 0
    x = np.arange(bottom - reach, levels + reach + 1)

    def law(centre: int) -> tuple[Array, Array]:
        """Masses of the sum with a record that adds `centre`, and log of the ratio of the law there to that at 0."""
        there = np.exp(-(((x - centre) / sigma) ** 2) / 2) / total
        if centre == 0:
            return there, np.zeros(len(x))
        without = np.exp(-((x / sigma) ** 2) / 2) / total
        return (1 - q) * without + q * there, centre * (2 * x - centre) / (2 * sigma**2)

    (p, used), (r, other) = law(levels), law(bottom)
    loss = log_mixed(q, used) - (log_mixed(q, other) if bottom else 0.0)
    error = 32 * _UNIT * (np.abs(used) + np.abs(other))
    # beyond the reach of its own mean, on either side: at most a geometric series
    beyond = math.exp(-(((reach + 1) / sigma) ** 2) / 2) / -math.expm1(-(2 * reach + 3) / (2 * sigma**2)) / total
    return _pair(loss, error, p, r, 2 * beyond), _pair(-loss[::-1], error[::-1], r[::-1], p[::-1], 2 * beyond)


def _pair(loss: Array, error: Array, p: Array, q: Array, beyond: float) -> FinitePair:
    """Of atoms with masses p under P and q under Q. error: of the losses. beyond: P of what no atom holds."""
    there = p > _RARE
    loss, error, p, q = loss[there], error[there], p[there], np.maximum(q[there], _RARE)
    infinite = beyond + _RARE * float(np.sum(~there))
    wrong = [8 * _UNIT * (4 - np.log(mass)) for mass in (p, q)]
    order = np.argsort(loss + error, kind="stable")
    return FinitePair((loss + error)[order], p[order], infinite, p * (1 - wrong[0]), q * (1 + wrong[1]), exact=True)
