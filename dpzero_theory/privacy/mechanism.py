"""The noise laws, such as Gaussian and Laplace noise. A law knows how its noise is drawn, what steps with it cost, and
how exactly the drawn numbers follow it.

A step releases a sum of clipped per-record contributions plus noise of one law. The function that is summed may depend
on earlier releases; the noise may not. To add a law, write a subclass of `Mechanism` and call `MECHANISMS.register`.
"""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from dpzero_theory import check
from dpzero_theory.bisection import smallest
from dpzero_theory.privacy.laws.law import UNKNOWN, Cost
from dpzero_theory.privacy.laws.shifts import (
    LEAST_DISCRETE,
    LEAST_LAPLACE,
    MOST_IN_LAPLACE_GROUP,
    WIDEST,
    IntegerNoise,
    LaplaceNoise,
    any_drawn,
    binomial_shifts,
    shifted_pairs,
)
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FullBatch, Poisson, Sampling
from dpzero_theory.registry import Registry

MOST_COMPOSED = 2**24  # the largest number of equal steps whose cost is computed from a finite pair of laws
_KERNEL = 2
"""The parameter tau, in lattice units, of the random rounding of y to an integer x with probability proportional to
e^(-(x - y)^2/(2 tau^2)). Continuous Gaussian noise, so rounded, is all but discrete Gaussian noise: by it the noise of
training runs is accounted (laws/derivation.md, section 8)."""
_RATIO = 1e-12  # for noise too small for tau = `_KERNEL`, a tau is chosen for which `_discrete_gap` is about this
_SAME = 2.0**-46
"""If (`_KERNEL`/sigma)^2 is at most this, discrete Gaussian noise of sigma lattice units is accounted as continuous
noise of the same multiplier. The smaller and larger ones that bound its cost are within a relative 1e-14 of it."""
_PURE_ROUNDING = 1e-11  # a bound on the relative rounding error of an epsilon at delta = 0
_FORMULA_ROUNDING = 1e-12  # a bound on the relative rounding error of the formulas of Laplace noise
_LARGEST = 700.0  # the largest a = 1/noise_multiplier of Laplace noise with sampled batches: e^a must be a float


class StepLike(Protocol):
    """The fields of `step.Step` that a noise law reads: the noise multiplier, the sampling, the neighbouring relation,
    the number of released coordinates and the number of equal steps."""

    @property
    def noise(self) -> float: ...
    @property
    def sampling(self) -> Sampling: ...
    @property
    def relation(self) -> Relation: ...
    @property
    def coordinates(self) -> int: ...
    @property
    def steps(self) -> int: ...


class Mechanism(ABC):
    """The base class of noise laws. A noise law is the distribution of the noise that is added to a sum.

    Attributes:
        name: the law's name, as given to `Step(mechanism=...)`.
        noise: "gaussian", "laplace" or another family name, by which a training run selects its law.
        lattice: True if sums and noise are integers, False if they are floats.
        exactness: a clause for privacy statements that says how exactly drawn numbers follow the law.
        coordinates: the largest number of coordinates of one release. A record's vector of them is clipped in L2 norm.
        samplings: the names of the samplings with which the law can be accounted, or None for all.
        note: a sentence that is shown with every privacy answer for this law, or "".
    """

    name: str
    noise: ClassVar[str]
    lattice: ClassVar[bool]
    exactness: ClassVar[str]
    coordinates: ClassVar[int] = 2**16
    samplings: ClassVar[tuple[str, ...] | None] = None
    note: str = ""

    def on(self, levels: int) -> "Mechanism":
        """Returns the noise law of this family on integers where the clip is `levels` >= 1 integers. A continuous law
        returns itself."""
        return self

    def require(self, step: StepLike) -> None:
        """Raises ValueError if no cost is known for this law with the sampling, coordinates and noise of `step`."""
        if self.samplings is not None and step.sampling.name not in self.samplings:
            names = ", ".join(self.samplings)
            raise ValueError(f"sampling must be one of {names} with mechanism {self.name}; got {step.sampling.word!r}")
        if step.coordinates > self.coordinates:
            raise ValueError(
                f"coordinates must be at most {self.coordinates} with mechanism {self.name}; got {step.coordinates}"
            )

    def least(self, step: StepLike) -> float:
        """Returns the smallest noise multiplier for which the accountant knows a bound for the steps `step`, or 0 if it
        knows one for every multiplier. The multiplier of `step` itself is ignored."""
        return 0.0

    @abstractmethod
    def cost(self, step: StepLike, size: int = 1, n: int | None = None) -> Cost:
        """Returns the privacy cost of all `step.steps` equal steps for data sets that differ in up to `size` >= 1
        records; `law.UNKNOWN`, an infinite cost, if no bound is known. `n` is the number of records of the larger data
        set; with None the cost holds for any number. Call `require` first."""

    def multiplier(self, step: StepLike, target_epsilon: float) -> float | None:
        """Returns the smallest noise multiplier, rounded up by at most a relative 1e-11, with which all `step.steps`
        steps together are `target_epsilon`-private at delta = 0 for data sets that differ in one record. Returns None
        if the noise is never private at delta = 0. The multiplier of `step` itself is ignored. Raises ValueError for a
        target so large that the multiplier is below the smallest that can be accounted."""
        return None

    def scale(self, noise_multiplier: float, levels: int) -> float:
        """Returns the parameter to pass to `draw`, in the units of the sum, for a noise multiplier and a clip of
        `levels` units. It is the standard deviation of Gaussian noise, the sigma of exp(-x^2/(2 sigma^2)) on integers,
        or the b of exp(-|x|/b) for Laplace noise. For noise on integers it is rounded up to an integer.
        Raises ValueError for a law that is only accounted."""
        raise ValueError(f"mechanism must be one that is drawn; got {self.name}, which is only accounted")

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        """Draws an array of noise of this `shape` with the parameter `scale`, using random bits of `source`. Its dtype
        is float64, or int64 for noise on integers."""
        raise ValueError(f"mechanism must be one that is drawn; got {self.name}")


class Gaussian(Mechanism):
    """Continuous Gaussian noise, drawn as float64 numbers."""

    name = "gaussian"
    noise = "gaussian"
    lattice = False
    exactness = "float64 numbers whose law is the continuous Gaussian up to rounding"
    coordinates = 10**18

    def cost(self, step: StepLike, size: int = 1, n: int | None = None) -> Cost:
        return step.sampling.cost(step.noise, step.steps, step.relation, size, n)

    def scale(self, noise_multiplier: float, levels: int) -> float:
        return noise_multiplier * levels

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        return source.gaussian(scale, shape)


class _OnLattice(Mechanism):
    # Noise on integers, where the clip is M = `levels` integers, or any M >= `fine` if `levels` is 0
    family: ClassVar[str]  # the law's name is `family`:M, such as discrete-gaussian:16
    whole: ClassVar[str]  # its name for `levels` 0
    fine: ClassVar[int]
    lattice = True

    def __init__(self, levels: int = 0) -> None:
        self.levels, self.name = levels, f"{self.family}:{levels}" if levels else self.whole

    def on(self, levels: int) -> Mechanism:
        return MECHANISMS[self.whole if levels >= self.fine else f"{self.family}:{levels}"]

    def scale(self, noise_multiplier: float, levels: int) -> int:
        return math.ceil(Fraction(noise_multiplier) * levels)


class DiscreteGaussian(_OnLattice):
    """Discrete Gaussian noise on integer sums: the integer x has a probability proportional to exp(-x^2/(2 (s M)^2)),
    where s is the noise multiplier and the per-record clip is M integers.

    The cost is computed from the integer probabilities themselves for at most 2^24 releases of one number each, with
    full or Poisson batches, if s is at least 0.05 and s M at most 256. Otherwise it is bounded by the costs of
    continuous Gaussian noise with a slightly smaller and a slightly larger standard deviation. For that s M must be at
    least 2.43 for one released number, and up to 4 for many; `require` raises ValueError below.

    Args:
        levels: M >= 1, for the law named "discrete-gaussian:M". 0 is for the law "discrete-gaussian", which stands for
            any M >= 2^28; its cost hardly depends on M, and M = 2^28 is used.
    """

    family = whole = "discrete-gaussian"
    fine = 2**28
    noise = "gaussian"
    exactness = "integers with exactly the discrete Gaussian law"
    coordinates = 2**32

    def __init__(self, levels: int = 0) -> None:
        super().__init__(levels)
        self._units = levels or self.fine
        if not levels:
            self.note = (
                f"{self.family}: on a lattice with 2^28 integers to the clip, or more, as runs have;"
                f" {self.family}:M on one with M"
            )

    def _can_be_summed(self, step: StepLike) -> bool:
        return step.coordinates == 1 and type(step.sampling) in (FullBatch, Poisson) and step.steps <= MOST_COMPOSED

    def least(self, step: StepLike) -> float:
        least = _least_multiplier(self._units, step.steps * step.coordinates)
        return min(least, LEAST_DISCRETE) if self._can_be_summed(step) else least

    def require(self, step: StepLike) -> None:
        super().require(step)
        least = self.least(step)
        if not step.noise >= least:
            raise ValueError(
                f"noise_multiplier must be at least {least:.6g} with mechanism {self.name}, sampling"
                f" {step.sampling.word}, {step.steps} steps and {step.coordinates} coordinates; got {step.noise!r}"
            )

    def cost(self, step: StepLike, size: int = 1, n: int | None = None) -> Cost:
        few = self._can_be_summed(step) and step.noise >= LEAST_DISCRETE and step.noise * self._units <= WIDEST
        if size == 1 and few:
            noise, rate = IntegerNoise(step.noise, self._units), step.sampling.sample_rate
            pairs = shifted_pairs(noise, binomial_shifts(rate, 1), replaced=step.relation.replaces)
            return Cost.of(*pairs, count=step.steps)
        return self.compared(step, size, n)

    def compared(self, step: StepLike, size: int = 1, n: int | None = None) -> Cost:
        """Bounds the privacy cost of all steps of `step` by the costs of continuous Gaussian noise with a slightly
        smaller (upper bound) and a slightly larger standard deviation (lower bound). Data sets differ in up to `size`
        records, and the larger one has `n`; None for `n` means any number. Returns an infinite cost if the noise is too
        small for this comparison (below 2.43 integers for one released number, up to 4 for many), or if `size` > 1 and
        the clip is a fixed number of integers (`levels` > 0)."""
        s, numbers = step.noise, step.steps * step.coordinates
        if s < _least_multiplier(self._units, numbers) or (size > 1 and self.levels):
            return UNKNOWN
        tau = _kernel(s * self._units, numbers)
        share = (tau / (s * self._units)) ** 2
        cost = partial(step.sampling.cost, steps=step.steps, relation=step.relation, size=size, n=n)
        if share <= _SAME:
            found = cost(s)
        else:
            less = math.sqrt(1 - share)
            more = math.sqrt(1 + share / less**2)
            found = cost(s * less * (1 - 1e-15)).bounding(cost(s * more * (1 + 1e-15)))
        return replace(found, ratio=_discrete_gap(numbers, tau))

    def scale(self, noise_multiplier: float, levels: int) -> int:
        if self.levels:
            return super().scale(noise_multiplier, levels)
        # The smallest integer sigma for which sigma^2 - `_KERNEL`^2 is at least the variance of the continuous noise
        # that the accountant assumes, the multiplier times `levels`, squared.
        variance = (Fraction(noise_multiplier) * levels) ** 2 + _KERNEL**2
        return math.isqrt(math.ceil(variance) - 1) + 1

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        return source.discrete_gaussian(int(scale), shape)


class _Laplace(_OnLattice):
    # Discrete Laplace noise with the scale s M, rounded up, for the noise multiplier s and a clip of M integers. The
    # cost of the law `laplace`, for any M >= 2^30, also bounds that of continuous Laplace noise of the scale s clips.
    family, whole = "discrete-laplace", "laplace"
    fine = 2**30
    noise = "laplace"
    exactness = "integers with exactly the discrete Laplace law, by rational arithmetic"
    coordinates = 1
    samplings = ("full", "poisson")

    def cost(self, step: StepLike, size: int = 1, n: int | None = None) -> Cost:
        s, q, steps, replaced = step.noise, step.sampling.sample_rate, step.steps, step.relation.replaces
        if size > 1 and self.levels:
            return UNKNOWN
        together = size > 1 and q < 1 and size <= MOST_IN_LAPLACE_GROUP
        # One record that moves the sum by `size` clips whenever any record of the group is drawn costs as much or more.
        rate = any_drawn(q, size)
        one = _release_epsilon(s, q, replaced=replaced) * size
        if not together:
            one = _release_epsilon(s / size, rate, replaced=replaced)
        pure = (steps * one, steps * one * (1 - _PURE_ROUNDING))
        if s / size < LEAST_LAPLACE or steps > MOST_COMPOSED:
            return replace(UNKNOWN, pure=pure)
        noise, shifts = (s, binomial_shifts(q, size)) if together else (s / size, binomial_shifts(rate, 1))
        found = Cost.of(*shifted_pairs(LaplaceNoise(noise, self.levels), shifts, replaced=replaced), count=steps)
        found = replace(found, pure=pure, ratio=0.0 if self.levels else _lattice_gap(s / size, steps))
        return found if size == 1 or q == 1 or together else found.bounding()

    def multiplier(self, step: StepLike, target_epsilon: float) -> float:
        q, goal = step.sampling.sample_rate, check.real("target_epsilon", target_epsilon, at_least=1e-290)
        each, sensitivity = goal / step.steps, step.relation.sensitivity
        least = 0.9 * sensitivity / each if q == 1 else (1 + 1e-9) / _LARGEST
        most = max(1.1 * sensitivity / each, least)  # sensitivity/s, the epsilon with known batches, is an upper bound
        found = smallest(lambda s: _release_epsilon(s, q, replaced=sensitivity > 1) <= each, least, most, 1e-11)
        if found in (None, least):
            most = step.steps * _release_epsilon(least, q, replaced=sensitivity > 1)
            raise ValueError(f"target_epsilon must be at most {most:.6g} with these batches; got {target_epsilon!r}")
        return found

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        return source.discrete_laplace(int(scale), shape)


def _on_lattice(law: type[_OnLattice], arguments: str) -> Mechanism:
    if not re.fullmatch(r"[1-9]\d{0,9}", arguments):
        raise ValueError(f"mechanism must be {law.family}:M, M >= 1 integers to a clip; got {arguments!r}")
    return law(int(arguments))


MECHANISMS: Registry[Mechanism] = Registry("mechanism")
for _mechanism in (Gaussian(), DiscreteGaussian(), _Laplace()):
    MECHANISMS.register(_mechanism)
for _law in (DiscreteGaussian, _Laplace):
    MECHANISMS.register_family(_law.family, partial(_on_lattice, _law))


def noise_law(noise: object, *, lattice: bool) -> Mechanism:
    """Returns the noise law from which a training run draws: one on integers if `lattice` is True, else a continuous
    one. `noise` is "gaussian", or with `lattice` also "laplace", or the attribute `noise` of another registered law.
    Raises ValueError if there is no such law."""
    laws = {law.noise: law for law in MECHANISMS.values() if law.lattice == lattice}
    return laws[check.choice("noise", noise, laws)]


def _kernel(sigma: float, numbers: int) -> float:
    # The parameter tau of the random rounding by which discrete Gaussian noise is compared with continuous noise. It is
    # 2 from `sigma` = 2^24 on, where tau^2 is negligible, else about the least tau with which the probabilities of
    # `numbers` released integers differ by a factor of at most e^1e-12.
    if (_KERNEL / sigma) ** 2 <= _SAME:
        return _KERNEL
    return min(_KERNEL, math.sqrt(math.log(4 * numbers / _RATIO) / 2) / math.pi)


def _least_multiplier(levels: int, numbers: int) -> float:
    # The least noise multiplier at which discrete noise is compared with continuous noise: sigma, the multiplier times
    # `levels`, is then 2 tau, tau being what `_kernel` returns for a small sigma such as 1.
    return 2 * _kernel(1.0, numbers) / levels


def _discrete_gap(numbers: int, tau: float = _KERNEL) -> float:
    """Returns a number G >= 0, rounded up, such that the probabilities of every event about `numbers` released integers
    under two noises are within a factor e^G. The first noise is discrete Gaussian with a parameter sigma > `tau`. The
    second is Gaussian of variance sigma^2 - tau^2, after which the noisy sum y is rounded to an integer x with
    probability proportional to e^(-(x - y)^2/(2 tau^2)). `tau` >= 1/2 and sigma are in lattice units."""
    r = math.exp(-2 * math.pi**2 * check.real("tau", tau, at_least=0.5) ** 2)
    # For all y the sum of e^(-(x - y)^2/(2 tau^2)) over integers x is 1 - kappa to 1 + kappa times the same number.
    kappa = 2 * r / (1 - r**3)  # at least 2 times the sum of r^(j^2) over j >= 1, since j^2 >= 1 + 3 (j - 1)
    return numbers * 2 * math.atanh(kappa) * (1 + 1e-12)


def _release_epsilon(noise_multiplier: float, sample_rate: float, *, replaced: bool) -> float:
    # With a = 1/`noise_multiplier`, one record in the batch changes the probability of a value by a factor of at most
    # e^a. So with Poisson batches of rate q epsilon is log(1 + q (e^a - 1)); if neighbours differ in a record that is
    # replaced by another, it is log(1 + q (e^a - 1)) - log(1 - q (1 - e^-a)). Some data attain it. It is raised by
    # 1e-12 of it for rounding.
    a, q = 1 / check.real("noise_multiplier", noise_multiplier, at_least=1e-300), sample_rate
    if q < 1 and a > _LARGEST:
        raise ValueError(f"noise_multiplier must be at least 1/{_LARGEST:g} with sampling; got {noise_multiplier!r}")
    more = a if q == 1 else math.log1p(q * math.expm1(a))
    less = a if q == 1 else -math.log1p(q * math.expm1(-a))
    return (more + less if replaced else more) * (1 + _FORMULA_ROUNDING)


def _lattice_gap(noise_multiplier: float, steps: int) -> float:
    # On a lattice of 2^30 or more units to a clip all events of `steps` releases with Laplace noise of the scale
    # `noise_multiplier` clips have probabilities within a factor e^G of those with continuous noise, G being this
    # number (laws/derivation.md, section 8).
    y = 2.0**-31 / noise_multiplier
    return steps * y * (1 + y) * (1 + _FORMULA_ROUNDING)
