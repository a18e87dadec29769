"""How small a certificate of the last iterate can be, for every schedule of step sizes and noises.

On losses of the family of `hardest`, a slope beside a curvature h in k other coordinates, the squared gradient of
the last iterate x_T has at least the parts

    gap/S   and   4 k (c L)^2 (1 - e^(-h S))^2/(n mu)^2,   S = sum of the step sizes,

whatever the step sizes alpha_t and the noises of a run with n samples that is mu-GDP. Here L is the Lipschitz constant
and c the clip over L sqrt(K), with K directions a step. The best noise of step t has a variance proportional to
exp(h S v)/alpha_t, where v is the share of S that is left after it. With k h = r ell and x = h S the second part is
r ell S (2 c L/(n mu))^2 (1 - e^(-x))^2/x, and (1 - e^(-x))^2/x is at most 0.4073. For the mean over the run with
constant step sizes it is 1/2 in its place. Statement and proof: dpzero_theory/theory/sharp/proof.md, section 12.
"""

import math

import numpy as np

from dpzero_theory.check import Array
from dpzero_theory.theory.noise import noise_std as full_batch_noise
from dpzero_theory.theory.problem import Problem

WORST_EXPONENT = 1.2564312086261697  # The x > 0 at which (1 - e^(-x))^2/x is largest; it solves e^x = 1 + 2 x


def curvature_share(x: Array | float) -> Array:
    """(1 - e^(-x))^2/x for each x > 0: the factor by which the curved coordinates count in the last iterate's bound."""
    at = np.asarray(x, dtype=float)
    share: Array = np.expm1(-at) ** 2 / at
    return share


def last_iterate_limit(problem: Problem, gdp: float, *, clip: float = 1.0) -> float:
    """The bound on E||grad F_S(x_T)||^2 below which no schedule of step sizes and noises is certified, in the limit of
    many samples and steps.

    It is the least over S, the sum of the step sizes, of gap/S + r ell S (2 c L/(n mu))^2 (1 - e^(-x))^2/x. x is what
    makes the second part largest: `WORST_EXPONENT`, or the nearest x for which k = r ell S/x is between r and d - 1. In
    large dimension the least is 4 (0.4073 gap r ell)^(1/2) c L/(n mu). At finite n it is a limit and no bound. Where d
    is below about r ell S/1.26 it says less, because k is at most d - 1. Where r > d - 1, r is replaced by d - 1.

    Args:
        problem: n, d > 1, r, lipschitz, smoothness and gap are used.
        gdp: mu > 0 of the whole run, with full batches, for replace-one.
        clip: c > 0, the clip of a sample's K differences over L sqrt(K).

    Returns:
        The limit, in the unit of the squared gradient.
    """
    p = problem
    noise = (full_batch_noise(gdp, 1, 1.0, p.n, "replace-one") * clip * p.lipschitz) ** 2
    curvature = min(p.r, p.d - 1) * p.smoothness
    free = math.sqrt(p.gap / (float(curvature_share(WORST_EXPONENT)) * curvature * noise))
    sums = free * np.concatenate([[1.0], np.geomspace(1e-6, 1e6, 2401)])
    x = np.clip(WORST_EXPONENT, curvature * sums / (p.d - 1), p.smoothness * sums)
    x = np.maximum(x, curvature * sums / (p.d - 1))
    return float((p.gap / sums + curvature * sums * noise * curvature_share(x)).min())
