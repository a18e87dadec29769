"""One release with discrete Gaussian noise, in full or Poisson batches: finite pairs above and below it, by sums.

One finite pair dominates the release, and the other is dominated by it. Lengths are in units of the lattice's spacing:
a clip is M = `levels` of them, and the probability of the noise x is proportional to e^{-x^2/(2 sigma^2)}, sigma = s M,
s = `noise`. The record moves the sum by M; with replace-one the other record moves it by -M. Every integer output has a
probability and a privacy loss of its own. Outputs farther than 37.5 sigma from the means, and outputs whose probability
is below the smallest float, count with an infinite loss. Derived in derivation.md, section 4.
"""

import math
from functools import lru_cache

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.privacy.laws.arithmetic import UNIT
from dpzero_theory.privacy.laws.finite import FinitePair
from dpzero_theory.privacy.laws.laplace import log_mixed

LEAST_DISCRETE = 0.05
"""The least noise multiplier s that is accounted for. There the sum with the record and the sum without it are 20
standard deviations apart, so that the noise hides nothing."""
WIDEST = 2.0**8
"""The largest sigma, in units of the lattice spacing, that is summed output by output here; wider noise is accounted
for as continuous."""
_DEVIATIONS = 37.5
"""How far from a mean outputs are summed, in sigma: e^(-37.5^2/2) is just above the least normal float."""
_NEGLIGIBLE = 1e-300
"""Outputs with a smaller probability under P than this count with an infinite loss."""


@lru_cache(maxsize=8)
def discrete_pairs(noise: float, sample_rate: float, levels: int, *, replaced: bool) -> tuple[FinitePair, FinitePair]:
    """Two results, each with a finite pair of laws that dominates one release with discrete Gaussian noise and one that
    it dominates.

    The first result is for (P, Q), with the record under P, and the second for (Q, P).

    noise: the noise multiplier s, at least `LEAST_DISCRETE`, and at most `WIDEST` / levels.
    sample_rate: q in (0, 1], of full or Poisson batches.
    levels: M >= 1, the lattice points to a clip.
    replaced: whether the record has another value under Q; else its contribution is 0 there.
    """
    sigma, q = noise * levels, sample_rate
    reach = math.ceil(_DEVIATIONS * sigma)
    still = np.exp(-((np.arange(-reach, reach + 1) / sigma) ** 2) / 2)
    total = math.fsum(still)
    bottom = -levels if replaced else 0
    x = np.arange(bottom - reach, levels + reach + 1)

    def law(centre: int) -> tuple[Array, Array]:
        """The masses of the outputs if a record that adds `centre` is drawn with probability q; and a log ratio for
        each output.

        That is the log of the ratio of the output's mass if the record is drawn to its mass if it is not.
        """
        there = np.exp(-(((x - centre) / sigma) ** 2) / 2) / total
        if centre == 0:
            return there, np.zeros(len(x))
        without = np.exp(-((x / sigma) ** 2) / 2) / total
        return (1 - q) * without + q * there, centre * (2 * x - centre) / (2 * sigma**2)

    (p, used), (r, other) = law(levels), law(bottom)
    loss = log_mixed(q, used) - (log_mixed(q, other) if bottom else 0.0)
    error = 32 * UNIT * (np.abs(used) + np.abs(other))
    # `beyond` bounds, by a geometric series, the mass of a law farther than `reach` from its mean, on one side.
    beyond = math.exp(-(((reach + 1) / sigma) ** 2) / 2) / -math.expm1(-(2 * reach + 3) / (2 * sigma**2)) / total
    forward = _pair(loss, error, p, r, 2 * beyond)
    if q == 1 or replaced:
        # Reflection of the outputs exchanges the two laws, so that both directions are one pair.
        return forward, forward
    return forward, _pair(-loss[::-1], error[::-1], r[::-1], p[::-1], 2 * beyond)


def _pair(loss: Array, error: Array, p: Array, q: Array, beyond: float) -> FinitePair:
    """The finite pairs that bound from above and from below a law whose outputs have the masses p under P and q under
    Q.

    loss, error: the losses of the outputs, and bounds on their absolute errors. beyond: a bound on P's mass outside of
    these outputs.
    """
    there = p > _NEGLIGIBLE
    loss, error, p, q = loss[there], error[there], p[there], np.maximum(q[there], _NEGLIGIBLE)
    infinite = beyond + _NEGLIGIBLE * float(np.sum(~there))
    wrong = [8 * UNIT * (4 - np.log(mass)) for mass in (p, q)]
    order = np.argsort(loss + error, kind="stable")
    return FinitePair((loss + error)[order], p[order], infinite, p * (1 - wrong[0]), q * (1 + wrong[1]))
