"""Discrete Gaussian noise under any sampling: continuous Gaussian noises that cost at least, and at most, as much.

The two bounds hold for every sampling, every adaptive use and K coordinates a release. They are sharp where the noise
is wide compared with the lattice; with less noise `certified.laws.integers` sums over the lattice. Lengths are in units
of the lattice, M of them to a clip; the noise has the parameter sigma = s M, s the noise multiplier of a `Step`.

**From above.** Let DG(sigma; m) have P[x] proportional to exp(-(x - m)^2/(2 sigma^2)) on the integers, m an integer,
and for real y let kernel(x | y) be proportional to exp(-(x - y)^2/(2 tau^2)) on the integers, tau < sigma. By Poisson
summation the normaliser of the kernel is sqrt(2 pi) tau (1 + 2 sum_j exp(-2 pi^2 tau^2 j^2) cos(2 pi j y)), within
1 +- kappa of sqrt(2 pi) tau for every y, with kappa = 2 sum_j exp(-2 pi^2 tau^2 j^2); that of DG is within
[1, 1 + kappa] of sqrt(2 pi) sigma. Variances add: integrating N(y; m, sigma^2 - tau^2) N(x; y, tau^2) over y gives
N(x; m, sigma^2). So

    DG(sigma; m)(x)  and  integral of N(y; m, sigma^2 - tau^2) kernel(x | y) dy

differ by a factor within [(1 - kappa)/(1 + kappa), 1 + kappa], hence by at most exp(+-g), g = 2 artanh(kappa).

**T releases of K coordinates.** The kernel does not look at the data. So, given the batches and what was released
before, each release is within exp(+-K g) of a post-processing of the continuous Gaussian N(m, (sigma^2 - tau^2) I);
multiplying over the releases and averaging over the batches, the law of the whole run, M(D), is within exp(+-G),
G = T K g, of a post-processing C(D) of a run with continuous noise, adaptive as before. If C is
(epsilon', delta')-DP then M(D)(E) <= e^G C(D)(E) <= e^G (e^epsilon' C(D')(E) + delta')
<= e^(epsilon' + 2 G) M(D')(E) + e^G delta', that is

    delta(epsilon) <= e^G delta'(epsilon - 2 G),

with delta' of the noise multiplier sqrt(sigma^2 - tau^2)/M where every record moves the K-vector of integers by at most
M in L2 norm. It is less than s: with one integer to a clip and sigma = 1/2 there is no such bound at all.

**From below.** Conversely N(0, t^2) added to DG(sigma; m) has at y the density N(y; m, sigma^2 + t^2) times a theta sum
of width t sigma/sqrt(sigma^2 + t^2) that is within 1 +- kappa of a constant where that width is tau,
t^2 = tau^2 sigma^2/(sigma^2 - tau^2). So a run with continuous noise of variance sigma^2 + t^2 is within exp(+-G) of a
post-processing of M, and epsilon of M at delta is at least epsilon of that continuous run at e^G delta, minus 2 G.

**Runs** draw with `discrete_scale`, sigma^2 >= (s M)^2 + tau^2 with tau = 2, on lattices of 2^28 integers to a clip, or
more: there g = 2e-34, and both multipliers are s to 1e-14 of it from s = 1/16 on.
"""

import math
from fractions import Fraction
from typing import NamedTuple

from dpzero_theory.check import integer, real

KERNEL = 2
"""The parameter tau, in units of the lattice, of the random rounding (see `_kernel`) that turns continuous into
discrete noise. It is the one with which the noise of training runs is accounted."""
FINE_GAUSSIAN = 2**28
"""The name `discrete-gaussian` stands for noise on lattices on which the clip is this many units or more."""
_RATIO = 1e-12
"""Where (KERNEL/sigma)^2 exceeds `_SAME`, tau is the smallest one whose G is about this. G is a bound on the absolute
log of the ratio of probabilities with discrete and with continuous noise."""
_SAME = 2.0**-46
"""If (tau/sigma)^2 is at most this, both multipliers of continuous noise in `Between` are taken to be that of the
discrete noise, from which they differ by less than 1e-14 of it."""


class Between(NamedTuple):
    """Noise multipliers of continuous Gaussian noise that costs at least (`above`) and at most (`below`) as much as
    discrete noise.

    ratio: G >= 0. A run with one of the two noises, and a run with the other whose releases are then randomised without
        looking at the data, give each outcome probabilities that differ by a factor between e^-G and e^G.
    """

    above: float
    below: float
    ratio: float


def _kernel(sigma: float, numbers: int) -> float:
    """The width tau, in units of the lattice, of the kernel by which discrete noise is compared with continuous noise.

    The kernel maps a real number y to a random integer x with probability proportional to exp(-(x - y)^2/(2 tau^2)). G
    bounds the absolute log of the ratio of the probabilities that two runs give to any outcome: one with discrete
    noise, and one with continuous noise to which the kernel is then applied. If (KERNEL/sigma)^2 <= `_SAME`, tau is
    `KERNEL`, as in runs; with less noise it is a smaller one, for which G is about `_RATIO`, and at most `KERNEL`.

    sigma: the parameter of the discrete noise, in units of the lattice. numbers: how many integers a run releases.
    """
    if (KERNEL / sigma) ** 2 <= _SAME:
        return KERNEL
    return min(KERNEL, math.sqrt(math.log(4 * numbers / _RATIO) / 2) / math.pi)


def least_multiplier(levels: int, numbers: int) -> float:
    """The least noise multiplier for which `between` gives bounds; below it None is returned there.

    levels: M >= 1, the clip in units of the lattice. numbers: T K, how many integers T releases of K integers each
    have.
    """
    return 2 * _kernel(1.0, numbers) / levels


def between(noise_multiplier: float, levels: int, numbers: int) -> Between | None:
    """The noise multipliers of continuous Gaussian noise that costs at least, and at most, as much as discrete Gaussian
    noise, up to a factor of probabilities (`Between.ratio`).

    None is returned if the noise is less than 2 widths of the rounding kernel, where no bound is known.
    noise_multiplier: s > 0. levels: M >= 1, the clip in units of the lattice. numbers: T K, how many integers T
    releases of K integers each have. Raises ValueError for a number outside its range.
    """
    s, sigma = real("noise_multiplier", noise_multiplier, above=0.0), noise_multiplier * levels
    if s < least_multiplier(levels, numbers):
        return None
    tau = _kernel(sigma, numbers)
    share = (tau / sigma) ** 2
    ratio = discrete_gap(numbers, tau)
    if share <= _SAME:
        return Between(s, s, ratio)
    less = math.sqrt(1 - share)
    return Between(s * less * (1 - 1e-15), s * math.sqrt(1 + share / less**2) * (1 + 1e-15), ratio)


def on_lattice(continuous: float, levels: int) -> float:
    """A noise multiplier with which discrete Gaussian noise costs at most as much as continuous noise does.

    continuous: the noise multiplier of the continuous Gaussian noise, > 0. levels: the clip in units of the lattice.
    The cost is that of `between`, up to its factor e^G.
    """
    least = KERNEL / levels
    return continuous if (least / continuous) ** 2 <= _SAME else math.hypot(continuous, least) * (1 + 1e-15)


def discrete_gap(numbers: int, tau: float = KERNEL) -> float:
    """The G = numbers * 2 artanh(kappa) by which discrete noise and a post-processing of continuous noise differ,
    rounded up.

    The probabilities of the two are within a factor e^G. kappa bounds the relative error of the rounding kernel's
    normaliser (module's docstring). numbers: T K, how many integers T releases of K integers each have. tau: the width
    of the kernel in units of the lattice, at least 1/2, which determines kappa. Raises ValueError for a number outside
    its range.
    """
    count = integer("numbers", numbers, at_least=0, at_most=10**24)
    r = math.exp(-2 * math.pi**2 * real("tau", tau, at_least=0.5) ** 2)
    kappa = 2 * r / (1 - r**3)  # at least 2 times the sum of r^(j^2) over j >= 1, since j^2 >= 1 + 3 (j - 1)
    return count * 2 * math.atanh(kappa) * (1 + 1e-12)


def discrete_scale(noise_multiplier: float, levels: int) -> int:
    """The parameter of the discrete Gaussian noise that a run draws: the smallest integer sigma such that sqrt(sigma^2
    - tau^2) >= noise_multiplier * levels.

    tau = 2 is the width of the rounding kernel. The arithmetic is exact. noise_multiplier: > 0, that of the continuous
    Gaussian noise which costs at least as much, up to `discrete_gap`. levels: the clip in units of the lattice, >= 1.
    Raises ValueError for a number outside its range.
    """
    ratio = Fraction(real("noise_multiplier", noise_multiplier, above=0.0))
    variance = (ratio * integer("levels", levels)) ** 2 + KERNEL**2
    return math.isqrt(math.ceil(variance) - 1) + 1
