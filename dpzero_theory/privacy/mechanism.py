"""The noise laws. For each law: how it is drawn, what it costs, how it is calibrated, and how exactly it is drawn.

A release is a sum of clipped contributions plus noise of one of these laws. What releases cost is stated as a `Cost`,
which composes with the costs of releases with other laws. What a release asks may depend on earlier ones; its noise
may not. A new law is a subclass of `Mechanism` and one call of `MECHANISMS.register`; a law that is not registered is
not accounted.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from dpzero_theory import check
from dpzero_theory.privacy.discrete import FINE_GAUSSIAN, between, discrete_scale, least_multiplier
from dpzero_theory.privacy.laplace import FINE_LAPLACE, laplace_multiplier, lattice_gap, release_epsilon
from dpzero_theory.privacy.laws.finite import FinitePair
from dpzero_theory.privacy.laws.integers import LEAST_DISCRETE, WIDEST, discrete_pairs
from dpzero_theory.privacy.laws.laplace import (
    LEAST_LAPLACE,
    MOST_IN_LAPLACE_GROUP,
    laplace_group_pairs,
    laplace_pairs,
)
from dpzero_theory.privacy.laws.law import UNKNOWN, Cost
from dpzero_theory.privacy.laws.shifts import any_drawn
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.privacy.sampling import FullBatch, Poisson, Sampling
from dpzero_theory.registry import Registry


class Made(Protocol):
    """What a noise law needs to know of equal steps. A `step.Step` has all of it."""

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
    """One law of noise on a sum.

    name: its name in a `Step`. noise: the family of laws to which it belongs, which is the name that runs take.
    lattice: whether sums and noise are integers. exactness: one sentence on what is drawn. coordinates: the largest
    number of coordinates of a release, whose vector is clipped in L2 norm. samplings: the names of the samplings with
    which the law is accounted for, or None for all. note: a sentence that whoever reads an accountant's answer must
    know, or empty.
    """

    name: str
    noise: ClassVar[str]
    lattice: ClassVar[bool]
    exactness: ClassVar[str]
    coordinates: ClassVar[int] = 2**16
    samplings: ClassVar[tuple[str, ...] | None] = None
    note: str = ""

    def on(self, levels: int) -> "Mechanism":
        """The law of this family for a lattice on which the clip is `levels` units; laws without a lattice return
        themselves."""
        return self

    def require(self, step: Made) -> None:
        """Raise ValueError unless steps with this law, this sampling and this number of coordinates are accounted, and
        if they have so little noise that their cost is not known."""
        if self.samplings is not None and step.sampling.name not in self.samplings:
            names = ", ".join(self.samplings)
            raise ValueError(f"sampling must be one of {names} with mechanism {self.name}; got {step.sampling.word!r}")
        if step.coordinates > self.coordinates:
            raise ValueError(
                f"coordinates must be at most {self.coordinates} with mechanism {self.name}; got {step.coordinates}"
            )

    @abstractmethod
    def cost(self, step: Made, size: int = 1, n: int | None = None) -> Cost:
        """What the steps cost data sets that differ in up to `size` of n records; `UNKNOWN` if it is not known.

        n: the number of all records, or None, which stands for any number. Raises ValueError for steps outside the
        law's range.
        """

    def multiplier(self, step: Made, target_epsilon: float) -> float | None:
        """The least noise multiplier with which the steps are target_epsilon-DP at delta = 0, or None for a law
        without pure epsilon."""
        return None

    @abstractmethod
    def scale(self, noise_multiplier: float, levels: int) -> float:
        """The parameter of the law of noise with this multiplier, in units of the sum, whose clip is `levels` units.

        For laws on a lattice it is an integer, rounded up.
        """

    @abstractmethod
    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        """Draw an array of this shape of noise with parameter `scale`, with random bits from `source`."""


class Gaussian(Mechanism):
    """Continuous Gaussian noise, as float64 numbers."""

    name = "gaussian"
    noise = "gaussian"
    lattice = False
    exactness = "float64 numbers whose law is the continuous Gaussian up to rounding"
    coordinates = 10**18

    def cost(self, step: Made, size: int = 1, n: int | None = None) -> Cost:
        return step.sampling.cost(step.noise, step.steps, step.relation, size, n)

    def scale(self, noise_multiplier: float, levels: int) -> float:
        return noise_multiplier * levels

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        return source.gaussian(scale, shape)


_PURE_ROUNDING = 1e-11
"""A bound on the relative rounding error of a pure epsilon."""
MOST_COMPOSED = 2**24
"""The largest number of equal steps whose cost is computed from a finite pair of laws."""


class DiscreteGaussian(Mechanism):
    """Discrete Gaussian noise on a lattice on which the clip is M units; its name is discrete-gaussian:M.

    The noise has the parameter s M, where s is the noise multiplier. The cost of releases of one number with full or
    Poisson batches is computed by sums over the integers. If s M is more than a few lattice units
    (`discrete.least_multiplier`), the cost of any releases is bounded by that of continuous Gaussian noise with a
    slightly smaller, or larger, standard deviation (module `discrete`). Everything else is refused. The name without M,
    `discrete-gaussian`, stands for what runs draw: a clip of 2^28 units or more.

    levels: M, or 0 for the name without M.
    """

    family: ClassVar[str] = "discrete-gaussian"
    noise = "gaussian"
    lattice = True
    exactness = "integers with exactly the discrete Gaussian law"
    coordinates = 2**32

    def __init__(self, levels: int = 0) -> None:
        self._runs, self.levels = levels == 0, levels or FINE_GAUSSIAN
        self.name = self.family if self._runs else f"{self.family}:{levels}"
        if self._runs:
            self.note = (
                f"{self.family}: on a lattice with 2^28 integers to the clip, or more, as runs have;"
                f" {self.family}:M on one with M"
            )

    def on(self, levels: int) -> "Mechanism":
        return MECHANISMS[self.family if levels >= FINE_GAUSSIAN else f"{self.family}:{levels}"]

    def _summed(self, step: Made) -> bool:
        """Whether the cost of these steps can be computed by sums over the integers.

        They must be few, of one coordinate each, and with full or Poisson batches.
        """
        return step.coordinates == 1 and type(step.sampling) in (FullBatch, Poisson) and step.steps <= MOST_COMPOSED

    def require(self, step: Made) -> None:
        super().require(step)
        least = least_multiplier(self.levels, step.steps * step.coordinates)
        if self._summed(step):
            least = min(least, LEAST_DISCRETE)
        if not step.noise >= least:
            raise ValueError(
                f"noise_multiplier must be at least {least:.6g} with mechanism {self.name}, sampling"
                f" {step.sampling.word}, {step.steps} steps and {step.coordinates} coordinates; got {step.noise!r}"
            )

    def cost(self, step: Made, size: int = 1, n: int | None = None) -> Cost:
        few = self._summed(step) and step.noise >= LEAST_DISCRETE and step.noise * self.levels <= WIDEST
        if size == 1 and few:
            pairs = discrete_pairs(step.noise, step.sampling.sample_rate, self.levels, replaced=step.relation.replaces)
            return Cost.of(*pairs, count=step.steps)
        return self.compared(step, size, n)

    def compared(self, step: Made, size: int = 1, n: int | None = None) -> Cost:
        """The cost by comparison with continuous Gaussian noise."""
        compared = between(step.noise, self.levels, step.steps * step.coordinates)
        if compared is None or (size > 1 and not self._runs):
            return UNKNOWN
        above, below = (
            step.sampling.cost(noise, step.steps, step.relation, size, n) for noise in (compared.above, compared.below)
        )
        return replace(above if compared.above == compared.below else above.bounding(below), ratio=compared.ratio)

    def scale(self, noise_multiplier: float, levels: int) -> int:
        if self._runs:
            return discrete_scale(noise_multiplier, levels)
        return math.ceil(Fraction(noise_multiplier) * levels)

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        return source.discrete_gaussian(scale, shape)


class Laplace(Mechanism):
    """Discrete Laplace noise on a lattice on which the clip is M units; its name is discrete-laplace:M.

    The name without M, `laplace`, stands for 2^30 units or more. Its cost also bounds that of continuous Laplace noise.

    levels: M, or 0 for the name without M.
    """

    family: ClassVar[str] = "discrete-laplace"
    noise = "laplace"
    lattice = True
    exactness = "integers with exactly the discrete Laplace law, by rational arithmetic"
    coordinates = 1
    samplings = ("full", "poisson")

    def __init__(self, levels: int = 0) -> None:
        self.levels = levels
        self.name = f"{self.family}:{levels}" if levels else "laplace"

    def on(self, levels: int) -> "Mechanism":
        return MECHANISMS["laplace" if levels >= FINE_LAPLACE else f"{self.family}:{levels}"]

    def cost(self, step: Made, size: int = 1, n: int | None = None) -> Cost:
        s, q, replaced = step.noise, step.sampling.sample_rate, step.relation.replaces
        if size > 1 and self.levels:
            return UNKNOWN
        if size > 1 and q < 1 and size <= MOST_IN_LAPLACE_GROUP:
            pure = size * release_epsilon(s, q, replaced=replaced)
            return self._cost(pure, step.steps, s / size, partial(laplace_group_pairs, s, q, size, replaced=replaced))
        # One record that moves the sum by `size` clips whenever any record of the group is drawn costs as much or more.
        rate = any_drawn(q, size)
        pure = release_epsilon(s / size, rate, replaced=replaced)
        pairs = partial(laplace_pairs, s / size, rate, self.levels, replaced=replaced)
        found = self._cost(pure, step.steps, s / size, pairs)
        return found if size == 1 or q == 1 else found.bounding()

    def _cost(self, pure: float, steps: int, noise: float, pairs: Callable[[], tuple[FinitePair, FinitePair]]) -> Cost:
        """The cost of steps with this pure epsilon each, noise over the change of the sum, and pairs of laws."""
        total = (steps * pure, steps * pure * (1 - _PURE_ROUNDING))
        if noise < LEAST_LAPLACE or steps > MOST_COMPOSED:
            return Cost(pure=total, apart=total[0])
        ratio = 0.0 if self.levels else lattice_gap(noise, steps)
        return replace(Cost.of(*pairs(), count=steps), pure=total, ratio=ratio)

    def multiplier(self, step: Made, target_epsilon: float) -> float:
        rate = step.sampling.sample_rate
        return laplace_multiplier(target_epsilon, step.steps, rate, replaced=step.relation.replaces)

    def scale(self, noise_multiplier: float, levels: int) -> int:
        return math.ceil(Fraction(noise_multiplier) * levels)

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        return source.discrete_laplace(scale, shape)


def _member(law: type[DiscreteGaussian] | type[Laplace], arguments: str) -> Mechanism:
    """The law with M lattice units to a clip, from the text after the colon of its name. Raises ValueError unless that
    is a whole number from 1 on, of at most 10 digits."""
    if not re.fullmatch(r"[1-9]\d{0,9}", arguments):
        raise ValueError(f"mechanism must be {law.family}:M, M >= 1 integers to a clip; got {arguments!r}")
    return law(int(arguments))


MECHANISMS: Registry[Mechanism] = Registry("mechanism")
for _mechanism in (Gaussian(), DiscreteGaussian(), Laplace()):
    MECHANISMS.register(_mechanism)
for _law in (DiscreteGaussian, Laplace):
    MECHANISMS.register_family(_law.family, partial(_member, _law))


def noise_law(noise: object, *, lattice: bool) -> Mechanism:
    """The noise law that a training run draws from, for the name of a family of laws.

    noise: the family, such as `gaussian` or `laplace`. lattice: whether sums and noise are integers. Raises ValueError
    if there is no such law.
    """
    laws = {law.noise: law for law in MECHANISMS.values() if law.lattice == lattice}
    return laws[check.choice("noise", noise, laws)]
