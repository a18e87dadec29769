"""The algorithms a run can follow: what a record contributes to a sum, and what is released of the sum.

A step evaluates every record of a batch at the points x + lambda u_k and x - lambda u_k, k = 1..K, and forms the
differences of its losses. An algorithm maps the differences to what is summed, and releases the sum with noise. A
further algorithm is a subclass and one call of `ALGORITHMS.register`.

**Sensitivity.** A record enters only through its own K differences, since the losses must not mix records. The
differences are clipped jointly to L2 norm C and rounded to a vector of integers whose norm is at most `levels`,
whatever the losses are (`contributions.to_lattice`; with Algorithm 1 the vector has d coordinates, along u). So adding
or removing a record moves the sum by at most `levels`, and replacing one by at most 2 levels. Sums of integers over
micro-batches and processes are exact. Noise is added once to the whole sum, never to a part.
"""

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import ClassVar

import numpy as np

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.optim.step.contributions import Sums, to_lattice
from dpzero_theory.privacy.lattice import Lattice
from dpzero_theory.privacy.mechanism import Mechanism, noise_law
from dpzero_theory.privacy.noise import NoiseSource
from dpzero_theory.registry import Registry
from dpzero_theory.sphere import DIRECTIONS

_FEWEST = 128
"""The least number of integers between 0 and the clip along a direction where a release is a vector. With so few, the
rounding of the clip to an integer makes the noise larger, relative to the clip, by up to 1/128."""


class Algorithm(ABC):
    """An algorithm: how differences become what is summed, and what is released of the sum.

    name: by which a `Plan` names the algorithm. private: whether it clips and adds noise. levels: the integer that
    stands for the clip, where contributions are rounded to integers and sums are exact; 0 where they are not rounded.
    replayable: whether a release is K numbers, which the transcript holds; otherwise it is a vector, and is not kept.
    dtype: numpy's type of the sums.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = True
    levels: ClassVar[int] = 0
    replayable: ClassVar[bool] = True
    dtype: ClassVar[type] = np.float64

    @property
    def lattice(self) -> bool:
        """Whether the sums over records, to which the noise is added, are integers, in units of the clip over `levels`;
        else they are floating-point numbers."""
        return self.levels > 0

    def law(self, noise: object) -> Mechanism | None:
        """Return the law of the noise of a family such as "gaussian"; None where the algorithm adds no noise.

        Raises ValueError for a family that the algorithm cannot use.
        """
        return noise_law(noise, lattice=self.lattice)

    def require(self, direction: object, directions_per_step: object) -> None:
        """Raise ValueError for a direction law, or a number of directions a step, that the algorithm cannot use."""
        check.choice("direction", direction, DIRECTIONS)
        check.integer("directions_per_step", directions_per_step, at_most=2**16)

    def require_vectors(self, d: int, squared_norm: int, largest: int, n: int) -> None:
        """Raise PreconditionError if the algorithm releases vectors, and cannot do so with d coordinates and n records.

        A release is then an integer times v plus noise, where v is the vector of integers along the direction u, and it
        must fit into 64 bits. squared_norm: ||v||^2 for the first direction. largest: the largest |v_j| that any
        direction can have.
        """
        del d, squared_norm, largest, n

    def coordinates(self, directions_per_step: int) -> int:
        """Return how many numbers a release has at most: K, or for a vector the largest d that a run can have.

        directions_per_step: K.
        """
        return directions_per_step

    def unit(self, clip: float, levels: int, squared_norm: int) -> float:
        """Return the number in loss/length that 1 in a released sum stands for; C/levels where K integers are released.

        clip: C. levels: the integer that stands for C. squared_norm: ||v||^2 of the vector v of integers along the
        direction; it is used only where a release is a vector.
        """
        return clip / levels if self.lattice else 1.0

    @abstractmethod
    def contributions(self, differences: Array, clip: float, levels: int, d: int, squared_norm: int) -> Sums:
        """Return the sum of what the records of a micro-batch contribute, shape (K,).

        differences: of each record along the K directions, shape (batch, K). clip: C, to which they are clipped.
        levels: the integer that stands for C. d: the number of trained weights. squared_norm: ||v||^2 of the vector v
        of integers along the direction. The last two are used only where a release is a vector.
        """

    def release(self, total: Sums, law: Mechanism | None, scale: float, source: NoiseSource) -> Sums:
        """Add noise to `total`, the sum over the whole batch or some of its coordinates, and return what is released.

        law: of the noise; None where there is none. scale: the parameter of the noise on these sums. source: where the
        noise is drawn. This method must be called exactly once for each coordinate of a step, and never for a part of
        the batch.
        """
        if law is None or not self.lattice:
            return total
        noisy: Sums = total + law.draw(source, scale, total.shape)
        return noisy


_lattice = lru_cache(maxsize=4)(Lattice)


class _DPZero(Algorithm):
    """Algorithm 2: a step releases K numbers, sums of clipped differences rounded to integers, with noise."""

    name = "dpzero"
    levels = 2**30
    dtype = np.int64

    def contributions(self, differences: Array, clip: float, levels: int, d: int, squared_norm: int) -> Sums:
        total: Sums = to_lattice(_lattice(clip, levels), differences).sum(axis=0)
        return total


class _DPGD0th(Algorithm):
    """Algorithm 1: a step releases the sum of (clipped difference) u, with noise on each of the d coordinates.

    All of it is integers. u is a public number times the integer vector v (`Directions.integers`). A record's
    difference, clipped at C/||u||, becomes an integer t with |t| <= floor(levels/||v||), so that its contribution t v
    is a vector of integers of L2 norm at most `levels`. Released is the sum of t, times v, plus d independent integers
    of noise. The weights move by that vector times a public number, so what can be seen of the weights is a function of
    it.
    """

    name = "dpgd-0th"
    levels = 2**38
    replayable = False
    dtype = np.int64

    def law(self, noise: object) -> Mechanism:
        return noise_law(check.choice("noise", noise, ("gaussian",)), lattice=True)

    def require(self, direction: object, directions_per_step: object) -> None:
        check.choice("direction", direction, [name for name, law in DIRECTIONS.items() if law.fixed_norm])
        check.integer("directions_per_step", directions_per_step, at_most=1)

    def require_vectors(self, d: int, squared_norm: int, largest: int, n: int) -> None:
        longest, fits = along(self.levels, squared_norm), 2**62 // (n * largest)
        check.precondition(
            d <= self.coordinates(1) and _FEWEST <= longest <= fits,
            f"dpgd-0th needs d <= 2^32 and {_FEWEST} <= 2^38/||v|| <= 2^62/(n max|v|); got d = {d}, n = {n}",
        )

    def coordinates(self, directions_per_step: int) -> int:
        return 2**32

    def contributions(self, differences: Array, clip: float, levels: int, d: int, squared_norm: int) -> Sums:
        total: Sums = to_lattice(_lattice(clip / math.sqrt(d), along(levels, squared_norm)), differences).sum(axis=0)
        return total

    def unit(self, clip: float, levels: int, squared_norm: int) -> float:
        return clip / (along(levels, squared_norm) * math.sqrt(squared_norm))


def along(levels: int, squared_norm: int) -> int:
    """Return the largest integer t with t ||v|| <= levels, computed exactly; squared_norm: ||v||^2."""
    return math.isqrt(levels**2 // squared_norm)


class _MeZO(Algorithm):
    """Algorithm 2 without clip and noise, which is not private. Differences that are not finite count as 0."""

    name = "mezo"
    private = False

    def law(self, noise: object) -> None:
        check.choice("noise", noise, ("none",))

    def contributions(self, differences: Array, clip: float, levels: int, d: int, squared_norm: int) -> Sums:
        total: Sums = np.where(np.isfinite(differences), differences, 0.0).sum(axis=0)
        return total


ALGORITHMS: Registry[Algorithm] = Registry("algorithm")
for _algorithm in (_DPZero(), _DPGD0th(), _MeZO()):
    ALGORITHMS.register(_algorithm)
