"""Discrete Laplace noise: pure epsilon-DP of T releases, full batch or Poisson, for both relations.

A record moves the integer sum by at most `levels`, so with noise of parameter b (lattice units) one record in the
batch changes the probability of a value by a factor of at most e^a, a = levels/b. Let M(0), M(v), M(w) be the laws
given that the record is absent, is v, is w; they are within e^a of M(0).

- add-remove, Poisson rate q: (1-q) M(0) + q M(v) against M(0). The ratio is at most 1 - q + q e^a, and its inverse at
  most 1/(1 - q + q e^-a), which is smaller: (1 - q + q e^a)(1 - q + q e^-a) >= 1 by Cauchy and Schwarz. So
  epsilon_1 = log(1 + q (e^a - 1)).
- replace-one: (1-q) M(0) + q M(v) against (1-q) M(0) + q M(w): the ratio of the two factors, so
  epsilon_1 = log(1 + q (e^a - 1)) - log(1 - q (1 - e^-a)), which is 2 a for full batches.

Both bounds are attained. T adaptive releases cost T epsilon_1 at delta = 0.
"""

import math
from collections.abc import Sequence

from dpzero_theory.check import choice, integer, real
from dpzero_theory.privacy.certified.pairs import Group
from dpzero_theory.privacy.gaussian import RELATIONS

__all__ = ["SAMPLINGS", "calibrate_laplace", "laplace_epsilon", "release_epsilon"]

SAMPLINGS = ("full", "poisson")
_ROUNDING = 1e-12  # relative, of the formulas below in float64


def release_epsilon(noise_multiplier: float, sample_rate: float, relation: str) -> float:
    """epsilon_1 of the module, rounded up.

    noise_multiplier: here b/levels = 1/a > 0, the parameter of the noise over the clip. sample_rate: q in (0, 1].
    relation: one of `RELATIONS`. Raises ValueError.
    """
    a = 1 / real("noise_multiplier", noise_multiplier, above=0.0)
    q = real("sample_rate", sample_rate, above=0.0, at_most=1.0)
    if q < 1 and a > 700:
        raise ValueError(f"noise_multiplier must be at least 1/700 with sampling; got {noise_multiplier!r}")
    more = a if q == 1 else math.log1p(q * math.expm1(a))
    less = a if q == 1 else -math.log1p(q * math.expm1(-a))
    replaced = choice("relation", relation, RELATIONS) == "replace-one"
    return (more + less if replaced else more) * (1 + _ROUNDING)


def laplace_epsilon(history: Sequence[Group], delta: float = 0.0) -> float:
    """T epsilon_1 over all groups, for every delta: an accountant for `Ledger`.

    history: groups whose noise_multiplier is b/levels. Raises ValueError for a sampling other than full or poisson.
    """
    real("delta", delta, at_least=0.0, below=1.0)
    for group in history:
        choice("sampling", group.sampling, SAMPLINGS)
    costs = (g.steps * release_epsilon(g.noise_multiplier, g.sample_rate, g.relation) for g in history)
    return math.fsum(costs) * (1 + _ROUNDING)


def calibrate_laplace(*, target_epsilon: float, steps: int, sampling: str, relation: str, sample_rate: float) -> float:
    """The smallest b/levels, up to 1e-10 of it, for which `steps` releases are target_epsilon-DP at delta = 0.

    Inverts epsilon_1 in closed form: e^a = 1 + (e^epsilon_1 - 1)/q, and for replace-one the positive root y = e^a of
    q y^2 + (1 - q)(1 - E) y - q E = 0, E = e^epsilon_1. Raises ValueError.
    """
    choice("sampling", sampling, SAMPLINGS)
    rounds = integer("steps", steps)
    goal = real("target_epsilon", target_epsilon, above=0.0) * (1 - 4 * _ROUNDING)
    each = real("target_epsilon / steps", goal / rounds, above=0.0, at_most=600.0)
    q = real("sample_rate", sample_rate, above=0.0, at_most=1.0)
    if choice("relation", relation, RELATIONS) == "add-remove":
        a = math.log1p(math.expm1(each) / q)
    elif q == 1:
        a = each / 2
    else:
        middle = (1 - q) * math.expm1(each) / 2
        # y - 1, without cancellation for small epsilon_1: the root of q z^2 + (2 q - 2 middle) z - (E - 1) = 0
        half = q - middle
        root = math.hypot(half, math.sqrt(q * math.expm1(each)))
        a = math.log1p((root - half) / q if half < 0 else math.expm1(each) / (root + half))
    low, high = 1 / a, 1 / a
    while release_epsilon(high, q, relation) * rounds * (1 + _ROUNDING) > target_epsilon:
        low, high = high, high + (high - low) * 2 + 1e-12 * high
    return high
