"""Discrete Gaussian noise under any sampling: what it costs beyond the continuous Gaussian of the accountants.

A bound that holds for every sampling, every adaptive use and K coordinates a release, and costs nothing (1e-34 a
release). Lengths are in units of the lattice.

**One release.** Let DG(sigma; m) have P[x] proportional to exp(-(x - m)^2/(2 sigma^2)) on the integers, m an integer,
and for real y let kernel(x | y) be proportional to exp(-(x - y)^2/(2 tau^2)) on the integers. By Poisson summation
the normaliser of the kernel is sqrt(2 pi) tau (1 + 2 sum_j exp(-2 pi^2 tau^2 j^2) cos(2 pi j y)), within
1 +- kappa of sqrt(2 pi) tau for every y, with kappa = 2 sum_j exp(-2 pi^2 tau^2 j^2); that of DG is within
[1, 1 + kappa] of sqrt(2 pi) sigma for sigma >= tau. Variances add: integrating
N(y; m, sigma^2 - tau^2) N(x; y, tau^2) over y gives N(x; m, sigma^2). So

    DG(sigma; m)(x)  and  integral of N(y; m, sigma^2 - tau^2) kernel(x | y) dy

differ by a factor within [(1 - kappa)/(1 + kappa), 1 + kappa], hence by at most exp(+-g), g = 2 artanh(kappa).

**T releases of K coordinates.** The kernel does not look at the data. So, given the batches and what was released
before, each release is within exp(+-K g) of a post-processing of the continuous Gaussian N(m, (sigma^2 - tau^2) I);
multiplying over the releases and averaging over the batches, the law of the whole run, M(D), is within exp(+-G),
G = T K g, of a post-processing C(D) of a run with continuous noise, adaptive as before. If C is
(epsilon', delta')-DP then M(D)(E) <= e^G C(D)(E) <= e^G (e^epsilon' C(D')(E) + delta')
<= e^(epsilon' + 2 G) M(D')(E) + e^G delta', that is

    delta(epsilon) <= e^G delta'(epsilon - 2 G),

with delta' of the noise multiplier sqrt(sigma^2 - tau^2)/levels where every record moves the K-vector of integers by
at most `levels` in L2 norm. With tau = 2, g = 2e-34, and tau^2 is nothing beside sigma^2.

**From below.** Conversely N(0, tau^2) added to DG(sigma; m) has at y the density N(y; m, sigma^2 + tau^2) times a theta
sum that is within 1 +- kappa of a constant (its width is tau sigma/sqrt(sigma^2 + tau^2), at least 1.99 from
sigma = 20 on). So a run with continuous noise of variance sigma^2 + tau^2 is within exp(+-G) of a post-processing of
M, and epsilon of M at delta is at least that of it at e^G delta, less 2 G. From sigma = 2^28 on the two multipliers
agree to 1e-16.
"""

import math
from fractions import Fraction

from dpzero_theory.check import integer, real

KERNEL = 2
"""tau, in units of the lattice."""


def discrete_gap(numbers: int, tau: float = KERNEL) -> float:
    """G = numbers * 2 artanh(kappa(tau)) of the module, rounded up: `numbers` = T K integers are released.

    tau: at least 1/2. Raises ValueError.
    """
    count = integer("numbers", numbers, at_least=0, at_most=10**24)
    r = math.exp(-2 * math.pi**2 * real("tau", tau, at_least=0.5) ** 2)
    kappa = 2 * r / (1 - r**3)  # j^2 >= 1 + 3 (j - 1)
    return count * 2 * math.atanh(kappa) * (1 + 1e-12)


def discrete_scale(noise_multiplier: float, levels: int) -> int:
    """The smallest integer sigma with sqrt(sigma^2 - tau^2) >= noise_multiplier * levels, in exact arithmetic.

    noise_multiplier: > 0, of the continuous Gaussian. levels: the clip in lattice units, >= 1. Raises ValueError.
    """
    ratio = Fraction(real("noise_multiplier", noise_multiplier, above=0.0))
    variance = (ratio * integer("levels", levels)) ** 2 + KERNEL**2
    return math.isqrt(math.ceil(variance) - 1) + 1
