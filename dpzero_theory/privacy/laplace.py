"""Discrete Laplace noise: pure epsilon-DP of T releases, full batch or Poisson, for both relations.

At delta > 0 they cost less than that, `certified.laws.exponential`.

A record moves the integer sum by at most `levels`, so with noise of parameter b (lattice units) one record in the
batch changes the probability of a value by a factor of at most e^a, a = levels/b. Let M(0), M(v), M(w) be the laws
given that the record is absent, is v, is w; they are within e^a of M(0).

- add-remove and zero-out, Poisson rate q: (1-q) M(0) + q M(v) against M(0). The ratio is at most 1 - q + q e^a, and
  its inverse at most 1/(1 - q + q e^-a), which is smaller: (1 - q + q e^a)(1 - q + q e^-a) >= 1 by Cauchy and
  Schwarz. So epsilon_1 = log(1 + q (e^a - 1)).
- replace-one: (1-q) M(0) + q M(v) against (1-q) M(0) + q M(w): the ratio of the two factors, so
  epsilon_1 = log(1 + q (e^a - 1)) - log(1 - q (1 - e^-a)), which is 2 a for full batches.

Both bounds are attained. T adaptive releases cost T epsilon_1 at delta = 0.

From below at delta > 0: v = levels in every batch (and w = -levels) attains the ratio e^epsilon_1 on the event that
each of t <= T releases is at least `levels`, which has probability at least p^t under the first data set,
p = (q + (1-q) e^-a)/2. So delta(epsilon) >= p^t - e^epsilon p^t e^(-t epsilon_1), that is
epsilon(delta) >= t epsilon_1 + log(1 - delta/p^t).
"""

import math

from dpzero_theory.check import real

FINE_LAPLACE = 2**30
"""The least number of integers to a clip of the lattices that the name `laplace` stands for."""
_FORMULA_ROUNDING = 1e-12
"""More than the relative rounding error of the formulas below in float64."""
_LARGEST = 700.0
"""The largest a, with sampling, and the largest epsilon_1: e^a and e^epsilon_1 must be floats."""


def release_epsilon(noise_multiplier: float, sample_rate: float, *, replaced: bool) -> float:
    """The module's epsilon_1 of one release, rounded up.

    noise_multiplier: b/levels = 1/a > 0, the parameter of the noise over the clip. sample_rate: q in (0, 1]. replaced:
    whether neighbours replace a record; else it is there or not. Raises ValueError.
    """
    a = 1 / real("noise_multiplier", noise_multiplier, at_least=1e-300)
    q = real("sample_rate", sample_rate, above=0.0, at_most=1.0)
    if q < 1 and a > _LARGEST:
        raise ValueError(f"noise_multiplier must be at least 1/{_LARGEST:g} with sampling; got {noise_multiplier!r}")
    more = a if q == 1 else math.log1p(q * math.expm1(a))
    less = a if q == 1 else -math.log1p(q * math.expm1(-a))
    return (more + less if replaced else more) * (1 + _FORMULA_ROUNDING)


def lattice_gap(noise_multiplier: float, steps: int) -> float:
    """G: T releases on a lattice of 2^30 integers to a clip, or more, and T of continuous noise are each within e^G of
    a post-processing of the other.

    With b the parameter in integers and y = 1/(2 b): rounded to an integer, continuous noise has at distance 0 the
    probability 1 - e^-y, at k the probability sinh(y) e^(-2 y k), and discrete noise tanh(y) e^(-2 y k), which is
    between 1 - y^2/2 and 1 + y/2 times that; and discrete noise with a uniform number in [-1/2, 1/2] added has a
    density within e^y tanh(y)/y of the continuous one. So G = y a release. noise_multiplier: b over the clip, > 0.
    """
    return steps * 2.0**-31 / real("noise_multiplier", noise_multiplier, above=0.0) * (1 + _FORMULA_ROUNDING)


def least_epsilon(noise_multiplier: float, steps: int, sample_rate: float, delta: float, *, replaced: bool) -> float:
    """A lower bound on epsilon(delta) of `steps` releases, 0 <= delta < 1: the module's bound from below, at its
    best t."""
    each = release_epsilon(noise_multiplier, sample_rate, replaced=replaced) * (1 - 3 * _FORMULA_ROUNDING)
    log_p = math.log((sample_rate + (1 - sample_rate) * math.exp(-1 / noise_multiplier)) / 2)
    if delta == 0:
        return steps * each
    longest = min(steps, int(math.log(delta) / log_p))
    found = [0.0]
    for t in range(max(longest - 60, 1), longest + 1):
        left = delta * math.exp(-t * log_p)
        if left < 1:
            found.append(t * each + math.log1p(-left))
    return max(found) * (1 - _FORMULA_ROUNDING)


def laplace_multiplier(target_epsilon: float, steps: int, sample_rate: float, *, replaced: bool) -> float:
    """The smallest b/levels, up to 1e-10 of it, for which `steps` releases are target_epsilon-DP at delta = 0.

    Inverts epsilon_1 in closed form: e^a = 1 + (e^epsilon_1 - 1)/q, and for replace-one the positive root y = e^a of
    q y^2 + (1 - q)(1 - E) y - q E = 0, E = e^epsilon_1. Raises ValueError.
    """
    goal = real("target_epsilon", target_epsilon, at_least=1e-290, at_most=600.0 * steps) * (1 - 4 * _FORMULA_ROUNDING)
    each, q = goal / steps, sample_rate
    if not replaced:
        a = math.log1p(math.expm1(each) / q)
    elif q == 1:
        a = each / 2
    else:
        middle = (1 - q) * math.expm1(each) / 2
        # y - 1, without cancellation for small epsilon_1: the root of q z^2 + (2 q - 2 middle) z - (E - 1) = 0
        half = q - middle
        root = math.hypot(half, math.sqrt(q * math.expm1(each)))
        a = math.log1p((root - half) / q if half < 0 else math.expm1(each) / (root + half))
    if q < 1 and a >= _LARGEST:
        most = release_epsilon((1 + 1e-9) / _LARGEST, q, replaced=replaced) * steps
        raise ValueError(f"target_epsilon must be at most {most:.6g} with these batches; got {target_epsilon!r}")
    low, high = 1 / a, 1 / a
    while release_epsilon(high, q, replaced=replaced) * steps * (1 + _FORMULA_ROUNDING) > target_epsilon:
        low, high = high, high + (high - low) * 2 + 1e-12 * high
    return high
