"""The noise laws: for each its draw, its accounting, its calibration and how exactly it is what it claims to be.

A release is a sum of clipped contributions plus noise of one of these laws. What releases cost is reduced to a `Cost`,
which composes with that of any other law, adaptively. A further law is a subclass and one call of
`MECHANISMS.register`; a law that is not registered is not accounted.
"""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from dpzero_theory import check
from dpzero_theory.privacy.certified.exponential import LEAST_NOISE, laplace_pairs
from dpzero_theory.privacy.certified.finite import FinitePair
from dpzero_theory.privacy.discrete import discrete_gap, discrete_scale
from dpzero_theory.privacy.laplace import laplace_multiplier, lattice_gap, least_epsilon, release_epsilon
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.registry import Registry


@dataclass(frozen=True)
class Cost:
    """What releases cost, as a part of a composition.

    gaussian: whether they count as continuous Gaussian releases with their noise multiplier. pairs: of a pure law, a
    dominating pair of one release, for each direction, if it is known. ratio: G >= 0, the law of what is released is
    within e^G of a post-processing of these. epsilon: pure epsilon of all of them, without the ratio, 0 for Gaussian
    ones. least: from below, epsilon at the delta asked for of these releases alone.
    """

    gaussian: bool
    ratio: float = 0.0
    epsilon: float = 0.0
    least: float = 0.0
    pairs: tuple[FinitePair, FinitePair] | None = None


class Counted(Protocol):
    """What a law needs to know of releases; a `Release` is one."""

    @property
    def noise_multiplier(self) -> float: ...
    @property
    def steps(self) -> int: ...
    @property
    def sample_rate(self) -> float: ...
    @property
    def relation(self) -> Relation: ...
    @property
    def coordinates(self) -> int: ...


class Mechanism(ABC):
    """One law of noise on a sum.

    name: of the law in a `Release`. noise: the family, the word that runs take. lattice: whether sums and noise are
    integers. exactness: one sentence on what is drawn. coordinates: how many numbers of a record, clipped jointly, a
    release may have. samplings: those it is accounted for, None for all.
    """

    name: str
    noise: ClassVar[str]
    lattice: ClassVar[bool]
    exactness: ClassVar[str]
    coordinates: ClassVar[int] = 2**16
    samplings: ClassVar[tuple[str, ...] | None] = None

    def require(self, sampling: str, coordinates: int) -> None:
        """Raise ValueError unless releases with this sampling and number of coordinates are accounted."""
        if self.samplings is not None and sampling not in self.samplings:
            names = ", ".join(self.samplings)
            raise ValueError(f"sampling must be one of {names} with mechanism {self.name}; got {sampling!r}")
        if coordinates > self.coordinates:
            raise ValueError(
                f"coordinates must be at most {self.coordinates} with mechanism {self.name}; got {coordinates}"
            )

    @abstractmethod
    def cost(self, releases: Counted, delta: float) -> Cost:
        """What these releases cost. delta: where `Cost.least` is taken, 0 <= delta < 1. Raises ValueError."""

    def multiplier(self, releases: Counted, target_epsilon: float) -> float | None:
        """The noise multiplier for pure target_epsilon; None for a law that has no pure epsilon."""
        return None

    @abstractmethod
    def scale(self, noise_multiplier: float, levels: int) -> float:
        """The law's parameter for a sum whose clip is `levels` units; an integer on a lattice. Never too small."""

    @abstractmethod
    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        """Noise of that parameter."""


class _Gaussian(Mechanism):
    name = "gaussian"
    noise = "gaussian"
    lattice = False
    exactness = "float64 numbers whose law is the continuous Gaussian up to rounding"
    coordinates = 10**18

    def cost(self, releases: Counted, delta: float) -> Cost:
        return Cost(gaussian=True)

    def scale(self, noise_multiplier: float, levels: int) -> float:
        return noise_multiplier * levels

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        return source.gaussian(scale, shape)


class _DiscreteGaussian(Mechanism):
    name = "discrete-gaussian"
    noise = "gaussian"
    lattice = True
    exactness = "integers with exactly the discrete Gaussian law"
    coordinates = 2**32

    def cost(self, releases: Counted, delta: float) -> Cost:
        return Cost(gaussian=True, ratio=discrete_gap(releases.steps * releases.coordinates))

    def scale(self, noise_multiplier: float, levels: int) -> int:
        return discrete_scale(noise_multiplier, levels)

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        return source.discrete_gaussian(scale, shape)


_MOST_COMPOSED = 2**24
"""Releases of a pure law beyond which their pure epsilon is all that is said."""


class _Laplace(Mechanism):
    """Integers of a lattice with 2^30 of them to a clip, or more; what is said of it holds for real numbers too."""

    name = "laplace"
    noise = "laplace"
    lattice = True
    exactness = "integers with exactly the discrete Laplace law, by rational arithmetic"
    coordinates = 1
    samplings = ("full", "poisson")
    levels: int = 0

    def cost(self, releases: Counted, delta: float) -> Cost:
        r = releases
        known = r.noise_multiplier >= LEAST_NOISE and r.steps <= _MOST_COMPOSED
        return Cost(
            gaussian=False,
            ratio=0.0 if self.levels else lattice_gap(r.noise_multiplier, r.steps),
            epsilon=r.steps * release_epsilon(r.noise_multiplier, r.sample_rate, r.relation),
            least=least_epsilon(r.noise_multiplier, r.steps, r.sample_rate, r.relation, delta),
            pairs=laplace_pairs(r.noise_multiplier, r.sample_rate, r.relation, self.levels) if known else None,
        )

    def multiplier(self, releases: Counted, target_epsilon: float) -> float:
        return laplace_multiplier(target_epsilon, releases.steps, releases.sample_rate, releases.relation)

    def scale(self, noise_multiplier: float, levels: int) -> int:
        return math.ceil(Fraction(noise_multiplier) * levels)

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        return source.discrete_laplace(scale, shape)


class CoarseLaplace(_Laplace):
    """Discrete Laplace noise on a lattice with M integers to a clip: discrete-laplace:M. Not what runs draw."""

    family: ClassVar[str] = "discrete-laplace"

    def __init__(self, levels: int) -> None:
        self.levels = levels
        self.name = f"{self.family}:{levels}"

    @classmethod
    def of(cls, arguments: str) -> "CoarseLaplace":
        """From M. Raises ValueError."""
        if not re.fullmatch(r"[1-9]\d{0,9}", arguments):
            raise ValueError(f"mechanism must be {cls.family}:M, M >= 1 integers to a clip; got {arguments!r}")
        return cls(int(arguments))


MECHANISMS: Registry[Mechanism] = Registry("mechanism")
for _mechanism in (_Gaussian(), _DiscreteGaussian(), _Laplace()):
    MECHANISMS.register(_mechanism)
MECHANISMS.register_family(CoarseLaplace.family, CoarseLaplace.of)


def noise_law(noise: object, *, lattice: bool) -> Mechanism:
    """The law of that family on a lattice, or off one. Raises ValueError."""
    found = {law.noise: law for law in MECHANISMS.values() if law.lattice == lattice}
    return found[check.choice("noise", noise, found)]
