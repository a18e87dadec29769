"""The cost of discrete Laplace noise: pure epsilon-DP of T releases, with full or Poisson batches, for every relation.

This module computes epsilon at delta = 0. At delta > 0 the releases cost less, which `certified.laws.exponential`
computes.

One record moves the integer sum by at most `levels`. So with noise of parameter b, in units of the lattice, one record
in the batch changes the probability of a value by a factor of at most e^a, a = levels/b. Let M(0), M(v), M(w) be the
laws of the sum given that the record is absent, contributes v, or contributes w; probabilities under M(v) and M(w) are
within a factor e^a of those under M(0). Let q be the Poisson sample rate, and epsilon_1 the pure epsilon of one
release.

- add-remove and zero-out compare (1-q) M(0) + q M(v) with M(0). The ratio is at most 1 - q + q e^a, and its inverse at
  most 1/(1 - q + q e^-a), which is smaller: (1 - q + q e^a)(1 - q + q e^-a) >= 1 by Cauchy and Schwarz. So epsilon_1 =
  log(1 + q (e^a - 1)).
- replace-one compares (1-q) M(0) + q M(v) with (1-q) M(0) + q M(w). The ratio is at most that of the two factors above,
  so epsilon_1 = log(1 + q (e^a - 1)) - log(1 - q (1 - e^-a)), which is 2 a for full batches.

Both bounds are attained. T adaptive releases cost T epsilon_1 at delta = 0.
"""

import math

from dpzero_theory.bisection import outward
from dpzero_theory.check import real

FINE_LAPLACE = 2**30
"""The name `laplace` stands for noise on lattices on which the clip is this many units or more."""
_FORMULA_ROUNDING = 1e-12
"""A bound on the relative rounding error of this module's formulas in float64."""
_LARGEST = 700.0
"""The largest a = levels/b, the inverse of the noise multiplier, with sampled batches: e^a must be a float."""


def release_epsilon(noise_multiplier: float, sample_rate: float, *, replaced: bool) -> float:
    """The pure epsilon of one release with discrete Laplace noise, raised by 1e-12 of it to cover rounding errors.

    noise_multiplier: b/levels > 0, the parameter b of the noise over the clip of `levels` units. sample_rate: q in (0,
    1]. replaced: True if neighbours replace a record, False if a record is there or not. Raises ValueError for numbers
    outside these ranges, and with q < 1 for a noise_multiplier below 1/700.
    """
    a = 1 / real("noise_multiplier", noise_multiplier, at_least=1e-300)
    q = real("sample_rate", sample_rate, above=0.0, at_most=1.0)
    if q < 1 and a > _LARGEST:
        raise ValueError(f"noise_multiplier must be at least 1/{_LARGEST:g} with sampling; got {noise_multiplier!r}")
    more = a if q == 1 else math.log1p(q * math.expm1(a))
    less = a if q == 1 else -math.log1p(q * math.expm1(-a))
    return (more + less if replaced else more) * (1 + _FORMULA_ROUNDING)


def lattice_gap(noise_multiplier: float, steps: int) -> float:
    """The G >= 0 for which noise on a fine lattice and continuous Laplace noise are within a ratio e^G of each other.

    On a lattice with 2^30 integers to a clip or more, the law of T = `steps` releases is within a factor e^G of that of
    a post-processing of T releases with continuous noise, and the other way round. With b the noise parameter in
    integers and y = 1/(2 b): continuous noise rounded to an integer has at 0 the probability 1 - e^-y, at distance k
    the probability sinh(y) e^(-2 y k), and discrete noise has tanh(y) e^(-2 y k), which is between 1 - y^2/2 and 1 +
    y/2 times that. Discrete noise with a uniform number in [-1/2, 1/2] added has a density between e^-y tanh(y)/y and
    e^y tanh(y)/y times the continuous one, and tanh(y)/y >= e^(-y^2/2). So G = y + y^2 for one release is enough.
    noise_multiplier: b over the clip, > 0.
    """
    y = 2.0**-31 / real("noise_multiplier", noise_multiplier, above=0.0)
    return steps * y * (1 + y) * (1 + _FORMULA_ROUNDING)


def laplace_multiplier(target_epsilon: float, steps: int, sample_rate: float, *, replaced: bool) -> float:
    """The smallest noise multiplier b/levels, up to 1e-10 of it, with which `steps` releases are target_epsilon-DP at
    delta = 0.

    b is the parameter of the noise and `levels` the clip, in units of the lattice. The multiplier is the inverse of
    epsilon_1, the pure epsilon of one release, in closed form: e^a = 1 + (e^epsilon_1 - 1)/q where a record is there or
    not, and for replace-one the positive root y = e^a of q y^2 + (1 - q)(1 - E) y - q E = 0, E = e^epsilon_1, where q =
    `sample_rate` and a = levels/b. replaced: whether neighbours replace a record. The returned multiplier certainly
    meets the target. Raises ValueError for a target outside what can be computed.
    """
    goal = real("target_epsilon", target_epsilon, at_least=1e-290, at_most=600.0 * steps) * (1 - 4 * _FORMULA_ROUNDING)
    each, q = goal / steps, sample_rate
    if not replaced:
        a = math.log1p(math.expm1(each) / q)
    elif q == 1:
        a = each / 2
    else:
        middle = (1 - q) * math.expm1(each) / 2
        # y = e^a is computed as 1 + z, with z the positive root of q z^2 + 2 half z - (e^each - 1) = 0, so that nothing
        # cancels for small a.
        half = q - middle
        root = math.hypot(half, math.sqrt(q * math.expm1(each)))
        a = math.log1p((root - half) / q if half < 0 else math.expm1(each) / (root + half))
    if q < 1 and a >= _LARGEST:
        most = release_epsilon((1 + 1e-9) / _LARGEST, q, replaced=replaced) * steps
        raise ValueError(f"target_epsilon must be at most {most:.6g} with these batches; got {target_epsilon!r}")

    def meets(multiplier: float) -> bool:
        return release_epsilon(multiplier, q, replaced=replaced) * steps * (1 + _FORMULA_ROUNDING) <= target_epsilon

    return outward(meets, 1 / a, 1e-12 / a)[1]
