"""The algorithms a run can follow: what a record contributes to a sum, and what 1 in the released sum stands for.

A step evaluates every record of a batch at the points of its difference rule, and finds how fast the record's loss
changes along each of the K directions. An algorithm maps these K differences to what is summed; noise is added to the
whole sum. A further algorithm is a subclass and one call of `ALGORITHMS.register`.

**Sensitivity.** A record enters only through its own K differences, since the losses must not mix records. The
differences are clipped jointly to L2 norm C and rounded to a vector of integers whose norm is at most `levels`,
whatever the losses are (`_to_lattice`; with Algorithm 1 the vector has d coordinates, along u). So adding or removing a
record moves the sum by at most `levels`, and replacing one by at most 2 levels. Sums of integers over micro-batches and
processes are exact. Noise is added once to the whole sum, never to a part.

**Losses that overflow.** The clipped difference of such a record must lie in [-C, C] too: one NaN or infinity in the
average would reveal the record, and destroy the iterate. A NaN becomes 0, and an infinity +C or -C, the limit of the
clip; of K differences of which some are infinite only the signs of these are kept.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from dpzero_theory import check
from dpzero_theory.check import Array
from dpzero_theory.privacy.mechanism import Mechanism, noise_law
from dpzero_theory.registry import Registry
from dpzero_theory.sphere import DIRECTIONS

Sums = NDArray[Any]
"""Sums of contributions, int64 where they are integers, float64 elsewhere."""

_FEWEST = 128
"""The least number of integers between 0 and the clip along a direction where a release is a vector. With so few, the
rounding of the clip to an integer makes the noise larger, relative to the clip, by up to 1/128."""
_SHRINK = 1e-12
"""The share of itself by which the clip is shrunk before K > 1 differences are rounded to integers. It is more than the
relative rounding error of a norm in float64 for K <= 1000, and less than one of the integers."""


def clip_jointly(rows: Array, clip: float) -> Array:
    """Return s min(1, C/||s||) for each row s, such as the K differences of a record.

    A NaN counts as 0; of a row with infinite entries only their signs are kept. The norm of a clipped row is at most C
    up to the rounding of one product and one norm; a row of one number is clipped exactly.

    Args:
        rows: numbers, of shape (n, K).
        clip: C > 0, finite, which the caller has checked.
    """
    known = np.where(np.isnan(rows), 0.0, rows)
    if known.shape[-1] == 1:
        return np.clip(known, -clip, clip)
    infinite = np.isinf(known)
    known = np.where(infinite.any(axis=1, keepdims=True), np.where(infinite, np.sign(known) * clip, 0.0), known)
    size = np.abs(known).max(axis=1, initial=0.0)
    unit = np.where(size > 0, size, 1.0)[:, None]  # so that squares neither overflow nor underflow
    scaled = known / unit
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        inside = norms <= clip / unit  # the row's norm is unit * norms, a product that might overflow
    clipped: Array = scaled * np.where(inside, unit, clip / np.where(norms > 0, norms, 1.0))  # a zero row stays zero
    return clipped


def _to_lattice(rows: Array, clip: float, levels: int) -> NDArray[np.int64]:
    """Clip each row to L2 norm C and return it rounded to integers in units of C/levels, of norm at most `levels`.

    A single number is rounded to the nearest integer. Several numbers are rounded toward zero. rows, clip: as in
    `clip_jointly`. levels: the integer that stands for C, from 1 to 2^52.
    """
    units = clip_jointly(rows, clip) / clip
    if rows.shape[1] == 1:
        return np.rint(units * levels).astype(np.int64)
    # the clip is shrunk, so that the norm's bound holds in exact arithmetic
    return np.trunc(units * (levels * (1 - _SHRINK))).astype(np.int64)


class Algorithm(ABC):
    """How differences become what is summed, and what 1 in a released sum stands for.

    Attributes:
        name: by which a `Plan` names the algorithm.
        private: whether it clips and adds noise.
        levels: the integer that stands for the clip, where contributions are rounded to integers and sums are exact; 0
            where they are not rounded.
        replayable: whether a release is K numbers, which the run's file holds; otherwise it is a vector, and not kept.
        dtype: numpy's type of the sums.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = True
    levels: ClassVar[int] = 0
    replayable: ClassVar[bool] = True
    dtype: ClassVar[type] = np.float64

    def law(self, noise: object) -> Mechanism:
        """Return the law of the noise on sums of this algorithm, of the family `noise`, such as "gaussian". Raises
        ValueError for a family that it cannot use."""
        return noise_law(noise, lattice=self.levels > 0).on(self.levels)

    def require(self, direction: object, directions_per_step: object) -> None:
        """Raise ValueError for a direction law, or a number of directions a step, that the algorithm cannot use."""
        DIRECTIONS[direction]  # type: ignore[index]
        check.integer("directions_per_step", directions_per_step, at_most=2**16)

    def require_vectors(self, d: int, squared_norm: int, largest: int, n: int) -> None:
        """Raise PreconditionError if released vectors, an integer times the integer vector v of a direction plus noise,
        could overflow 64-bit integers.

        d: the number of weights. squared_norm: ||v||^2 of the first direction. largest: the largest |v_j| of any
        direction. n: the number of records.
        """
        del d, squared_norm, largest, n

    def coordinates(self, directions_per_step: int) -> int:
        """Return how many numbers a release has at most: K, or for a vector the largest d that a run can have."""
        return directions_per_step

    def unit(self, clip: float, squared_norm: int) -> float:
        """Return the number, in units of loss over length, that 1 in a released sum stands for.

        squared_norm: ||v||^2 of the integer vector v along the direction, where a release is a vector.
        """
        return clip / self.levels if self.levels else 1.0

    @abstractmethod
    def contributions(self, differences: Array, clip: float, d: int, squared_norm: int) -> Sums:
        """Return the sum of what the records of a micro-batch contribute, of shape (K,).

        Args:
            differences: of each record along the K directions, of shape (batch, K).
            clip: C, to which they are clipped.
            d, squared_norm: the number of trained weights, and ||v||^2 of the vector v of integers along the direction;
                used where a release is a vector.
        """


class _DPZero(Algorithm):
    """Algorithm 2: a step releases K numbers, sums of clipped differences rounded to integers, with noise."""

    name = "dpzero"
    levels = 2**30
    dtype = np.int64

    def contributions(self, differences: Array, clip: float, d: int, squared_norm: int) -> Sums:
        total: Sums = _to_lattice(differences, clip, self.levels).sum(axis=0)
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
        return super().law(check.choice("noise", noise, ("gaussian",)))

    def require(self, direction: object, directions_per_step: object) -> None:
        known = [name for name, law in DIRECTIONS.items() if law.fixed_norm and not law.rank]
        if DIRECTIONS[direction].name not in known:  # type: ignore[index]
            check.choice("direction", direction, known)
        check.integer("directions_per_step", directions_per_step, at_most=1)

    def require_vectors(self, d: int, squared_norm: int, largest: int, n: int) -> None:
        longest, fits = self._longest(squared_norm), 2**62 // (n * largest)
        check.precondition(
            d <= self.coordinates(1) and _FEWEST <= longest <= fits,
            f"dpgd-0th needs d <= 2^32 and {_FEWEST} <= 2^38/||v|| <= 2^62/(n max|v|); got d = {d}, n = {n}",
        )

    def coordinates(self, directions_per_step: int) -> int:
        return 2**32

    def contributions(self, differences: Array, clip: float, d: int, squared_norm: int) -> Sums:
        total: Sums = _to_lattice(differences, clip / math.sqrt(d), self._longest(squared_norm)).sum(axis=0)
        return total

    def unit(self, clip: float, squared_norm: int) -> float:
        return clip / (self._longest(squared_norm) * math.sqrt(squared_norm))

    def _longest(self, squared_norm: int) -> int:
        """Return the largest integer t with t ||v|| <= levels, computed exactly from ||v||^2."""
        return math.isqrt(self.levels**2 // squared_norm)


class _MeZO(Algorithm):
    """Algorithm 2 without clip and noise, which is not private. Differences that are not finite count as 0."""

    name = "mezo"
    private = False

    def contributions(self, differences: Array, clip: float, d: int, squared_norm: int) -> Sums:
        total: Sums = np.where(np.isfinite(differences), differences, 0.0).sum(axis=0)
        return total


ALGORITHMS: Registry[Algorithm] = Registry("algorithm")
for _algorithm in (_DPZero(), _DPGD0th(), _MeZO()):
    ALGORITHMS.register(_algorithm)
