"""The noise laws. For each law: how it is drawn, what it costs, how it is calibrated, and how exactly it is drawn.

A release is a sum of clipped contributions plus noise of one of these laws. What releases cost is stated as a `Cost`,
which composes with the costs of releases with other laws, also if they are chosen adaptively. A new law is a subclass
of `Mechanism` and one call of `MECHANISMS.register`; a law that is not registered is not accounted.
"""

import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar, Protocol

from numpy.typing import NDArray

from dpzero_theory import check
from dpzero_theory.privacy.bracket import Bracket
from dpzero_theory.privacy.certified.laws.concentrated import Curve
from dpzero_theory.privacy.certified.laws.exponential import (
    LEAST_LAPLACE,
    MOST_IN_LAPLACE_GROUP,
    laplace_group_pairs,
    laplace_pairs,
)
from dpzero_theory.privacy.certified.laws.finite import FinitePair
from dpzero_theory.privacy.certified.laws.integers import LEAST_DISCRETE, WIDEST, discrete_pairs
from dpzero_theory.privacy.discrete import FINE_GAUSSIAN, between, discrete_scale, least_multiplier, on_lattice
from dpzero_theory.privacy.laplace import FINE_LAPLACE, laplace_multiplier, lattice_gap, least_epsilon, release_epsilon
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.privacy.relation import Relation
from dpzero_theory.registry import Registry


@dataclass(frozen=True)
class Cost:
    """What equal releases cost, in a form that composes with other costs.

    gaussian: whether they count as continuous Gaussian releases. multipliers: the noise multipliers of continuous
    Gaussian releases that cost at least, and at most, as much; None means the releases' own multiplier. pairs: for
    another law the dominating pair of one release in each of the two directions, if it is known. ratio: G >= 0 such
    that every event has, under the law of what is released, e^-G to e^G times its probability under a post-processing
    of those Gaussian releases or pairs. epsilon: the pure epsilon of all the releases, without that factor; 0 for
    Gaussian releases, infinite for a law that has none. least: a lower bound on epsilon of these releases alone, at the
    delta that was asked for. concentrated: (rho, xi) of all the releases, of which nothing else is known: their Renyi
    divergence of order a is at most xi + rho a; (0, 0) for other releases. renyi: of releases of which only Renyi
    divergences at some orders are known, those of all of them, as `certified.laws.concentrated.Curve`.
    """

    gaussian: bool
    ratio: float = 0.0
    epsilon: float = 0.0
    least: float = 0.0
    pairs: tuple[FinitePair, FinitePair] | None = None
    multipliers: tuple[float, float] | None = None
    concentrated: tuple[float, float] = (0.0, 0.0)
    renyi: Curve = ()

    @property
    def composed(self) -> bool:
        """Whether the releases have a privacy loss that composes with others, so that their pure epsilon (`epsilon`)
        need not be added to the cost."""
        return self.gaussian or self.pairs is not None or self.concentrated[0] > 0 or bool(self.renyi)


_UNKNOWN = Cost(gaussian=False, epsilon=math.inf)


class Counted(Protocol):
    """What a noise law needs to know of a number of equal releases. A `step.Release` has all of it."""

    @property
    def noise_multiplier(self) -> float: ...
    @property
    def steps(self) -> int: ...
    @property
    def sampling(self) -> str: ...
    @property
    def sample_rate(self) -> float: ...
    @property
    def relation(self) -> Relation: ...
    @property
    def coordinates(self) -> int: ...
    @property
    def group(self) -> tuple[float, int] | None: ...


class Mechanism(ABC):
    """One law of noise on a sum.

    name: its name in a `Release`. noise: the family of laws to which it belongs, which is the name that runs take.
    lattice: whether sums and noise are integers. power: p if the probability of an integer x is proportional to
    exp(-|x|^p/(p scale^p)), and 0 for other laws. exactness: one sentence on what is drawn. coordinates: the largest
    number of coordinates of a release, whose vector is clipped in L2 norm. samplings: the samplings with which the law
    is accounted for, or None for all. note: a sentence that whoever reads an accountant's answer must know, or empty.
    """

    name: str
    noise: ClassVar[str]
    lattice: ClassVar[bool]
    power: ClassVar[int] = 0
    exactness: ClassVar[str]
    coordinates: ClassVar[int] = 2**16
    samplings: ClassVar[tuple[str, ...] | None] = None
    note: str = ""

    def on(self, levels: int) -> "Mechanism":
        """The law of this family for a lattice on which the clip is `levels` units; laws without a lattice return
        themselves."""
        return self

    def require(self, sampling: str, coordinates: int) -> None:
        """Raise ValueError unless releases with this law, this sampling and this number of coordinates are
        accounted."""
        if self.samplings is not None and sampling not in self.samplings:
            names = ", ".join(self.samplings)
            raise ValueError(f"sampling must be one of {names} with mechanism {self.name}; got {sampling!r}")
        if coordinates > self.coordinates:
            raise ValueError(
                f"coordinates must be at most {self.coordinates} with mechanism {self.name}; got {coordinates}"
            )

    def require_noise(self, releases: Counted) -> None:
        """Raise ValueError if the releases have so little noise that the cost of this law is not known."""
        return

    @abstractmethod
    def cost(self, releases: Counted, delta: float) -> Cost:
        """Return what these releases cost. delta: 0 <= delta < 1, at which the lower bound `Cost.least` holds.

        Raises ValueError for releases outside the range of the law's formulas.
        """

    def multiplier(self, releases: Counted, target_epsilon: float) -> float | None:
        """The least noise multiplier with which the releases are target_epsilon-DP at delta = 0, or None for a law
        without pure epsilon."""
        return None

    def on_lattice(self, continuous: Bracket) -> Bracket:
        """The bracket of the least noise multiplier with which this law meets a target, from that of continuous
        Gaussian noise for the same target.

        continuous: the bracket of the continuous noise's multiplier. The method is used for laws that are accounted as
        Gaussian noise.
        """
        return continuous

    @abstractmethod
    def scale(self, noise_multiplier: float, levels: int) -> float:
        """The parameter of the law of noise with this multiplier, in units of the sum, whose clip is `levels` units.

        For laws on a lattice it is an integer, rounded up.
        """

    @abstractmethod
    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        """Draw an array of this shape of noise with parameter `scale`, with random bits from `source`."""


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


_PURE_ROUNDING = 1e-11
"""A bound on the relative rounding error of a pure epsilon."""
_MOST_COMPOSED = 2**24
"""The largest number of equal releases whose cost is computed from a finite pair of laws; more are accounted in another
way."""


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
    power = 2
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

    @classmethod
    def of(cls, arguments: str) -> "DiscreteGaussian":
        """The law for the number M of lattice units to a clip, given as the text `arguments`. Raises ValueError unless
        that is a whole number from 1 on, of at most 10 digits."""
        return cls(_levels(cls.family, arguments))

    def on(self, levels: int) -> "Mechanism":
        return MECHANISMS[self.family if levels >= FINE_GAUSSIAN else f"{self.family}:{levels}"]

    def _summed(self, releases: Counted) -> bool:
        """Whether the cost of these releases can be computed by sums over the integers.

        They must be few, of one coordinate each, and with full or Poisson batches.
        """
        r = releases
        return r.coordinates == 1 and r.sampling in ("full", "poisson") and r.steps <= _MOST_COMPOSED

    def require_noise(self, releases: Counted) -> None:
        r = releases
        least = least_multiplier(self.levels, r.steps * r.coordinates)
        if self._summed(r):
            least = min(least, LEAST_DISCRETE)
        if not r.noise_multiplier >= least:
            raise ValueError(
                f"noise_multiplier must be at least {least:.6g} with mechanism {self.name}, sampling {r.sampling},"
                f" {r.steps} steps and {r.coordinates} coordinates; got {r.noise_multiplier!r}"
            )

    def cost(self, releases: Counted, delta: float) -> Cost:
        r, s = releases, releases.noise_multiplier
        if self._summed(r) and s >= LEAST_DISCRETE and s * self.levels <= WIDEST:
            pairs = discrete_pairs(s, r.sample_rate, self.levels, replaced=r.relation.replaces)
            return Cost(gaussian=False, epsilon=math.inf, pairs=pairs)
        compared = between(s, self.levels, r.steps * r.coordinates)
        if compared is None:
            return _UNKNOWN
        return Cost(gaussian=True, ratio=compared.ratio, multipliers=(compared.above, compared.below))

    def on_lattice(self, continuous: Bracket) -> Bracket:
        upper = on_lattice(continuous.upper, self.levels)
        lower = continuous.lower - 2 * (upper - continuous.upper)
        return replace(continuous, lower=max(lower, 0.0), value=upper, upper=upper)

    def scale(self, noise_multiplier: float, levels: int) -> int:
        if self._runs:
            return discrete_scale(noise_multiplier, levels)
        return math.ceil(Fraction(noise_multiplier) * levels)

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        return source.discrete_gaussian(scale, shape)


def _levels(family: str, arguments: str) -> int:
    """The number M in a mechanism's name `family:M`, the lattice units to a clip. arguments: the text after the colon.
    Raises ValueError unless it is a whole number of 1 to 10 digits."""
    if not re.fullmatch(r"[1-9]\d{0,9}", arguments):
        raise ValueError(f"mechanism must be {family}:M, M >= 1 integers to a clip; got {arguments!r}")
    return int(arguments)


class _Laplace(Mechanism):
    """Discrete Laplace noise on a lattice on which the clip is 2^30 units or more.

    The cost that `cost` returns for it also bounds that of continuous Laplace noise.
    """

    name = "laplace"
    noise = "laplace"
    lattice = True
    power = 1
    exactness = "integers with exactly the discrete Laplace law, by rational arithmetic"
    coordinates = 1
    samplings = ("full", "poisson")
    levels: int = 0

    def on(self, levels: int) -> "Mechanism":
        return MECHANISMS["laplace" if levels >= FINE_LAPLACE else f"{CoarseLaplace.family}:{levels}"]

    def cost(self, releases: Counted, delta: float) -> Cost:
        r, replaced = releases, releases.relation.replaces
        known = r.noise_multiplier >= LEAST_LAPLACE and r.steps <= _MOST_COMPOSED
        if known and r.group and r.group[1] <= MOST_IN_LAPLACE_GROUP:
            return self._grouped(releases, delta, *r.group)
        return Cost(
            gaussian=False,
            ratio=0.0 if self.levels else lattice_gap(r.noise_multiplier, r.steps),
            epsilon=r.steps * release_epsilon(r.noise_multiplier, r.sample_rate, replaced=replaced),
            least=least_epsilon(r.noise_multiplier, r.steps, r.sample_rate, delta, replaced=replaced),
            pairs=laplace_pairs(r.noise_multiplier, r.sample_rate, self.levels, replaced=replaced) if known else None,
        )

    def _grouped(self, releases: Counted, delta: float, rate: float, size: int) -> Cost:
        """What releases of Poisson batches cost a group of `size` records, each drawn at `rate`.

        The noise multiplier of the releases is over `size` clips.
        """
        r, s, replaced = releases, releases.noise_multiplier * size, releases.relation.replaces
        pure = r.steps * size * release_epsilon(s, rate, replaced=replaced)
        return Cost(
            gaussian=False,
            ratio=lattice_gap(r.noise_multiplier, r.steps),
            epsilon=pure,
            least=pure * (1 - _PURE_ROUNDING) if delta == 0 else 0.0,
            pairs=laplace_group_pairs(s, rate, size, replaced=replaced),
        )

    def multiplier(self, releases: Counted, target_epsilon: float) -> float:
        r = releases
        return laplace_multiplier(target_epsilon, r.steps, r.sample_rate, replaced=r.relation.replaces)

    def scale(self, noise_multiplier: float, levels: int) -> int:
        return math.ceil(Fraction(noise_multiplier) * levels)

    def draw(self, source: NoiseSource, scale: float, shape: tuple[int, ...]) -> NDArray[Any]:
        return source.discrete_laplace(scale, shape)


class CoarseLaplace(_Laplace):
    """Discrete Laplace noise on a lattice on which the clip is M units; its name is discrete-laplace:M.

    levels: M.
    """

    family: ClassVar[str] = "discrete-laplace"

    def __init__(self, levels: int) -> None:
        self.levels = levels
        self.name = f"{self.family}:{levels}"

    @classmethod
    def of(cls, arguments: str) -> "CoarseLaplace":
        """The law for the number M of lattice units to a clip, given as the text `arguments`. Raises ValueError unless
        that is a whole number from 1 on, of at most 10 digits."""
        return cls(_levels(cls.family, arguments))


MECHANISMS: Registry[Mechanism] = Registry("mechanism")
for _mechanism in (_Gaussian(), DiscreteGaussian(), _Laplace()):
    MECHANISMS.register(_mechanism)
MECHANISMS.register_family(DiscreteGaussian.family, DiscreteGaussian.of)
MECHANISMS.register_family(CoarseLaplace.family, CoarseLaplace.of)


def noise_law(noise: object, *, lattice: bool) -> Mechanism:
    """The noise law that a training run draws from, for the name of a family of laws.

    noise: the family, such as `gaussian` or `laplace`. lattice: whether sums and noise are integers. Raises ValueError
    if there is no such law.
    """
    laws = {law.noise: law for law in MECHANISMS.values() if law.lattice == lattice}
    return laws[check.choice("noise", noise, laws)]
