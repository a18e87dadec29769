"""The algorithms that a run can follow: what a record contributes to a sum, and what 1 in the released sum stands for.

A step evaluates every record of a batch at the points of its difference rule, and finds how fast the record's loss
changes along each of K directions: the record's K differences. An algorithm maps these to what is summed over the
batch; noise is added to the whole sum, never to a part. A further algorithm is a subclass of `Algorithm` and one call
of `ALGORITHMS.register`. All functions here are pure: numbers in, numbers out.

**Sensitivity.** A record enters only through its own K differences, since the losses must not mix records. The
differences are clipped jointly to L2 norm C and rounded to a vector of integers whose norm is at most `levels`,
whatever the losses are (`_to_lattice`). So adding or removing a record moves the sum by at most `levels`, and replacing
one by at most 2 levels. Sums of integers over micro-batches and processes are exact.

**Losses that overflow.** The clipped difference of such a record must lie in [-C, C] too: one NaN or infinity in the
average would reveal the record, and destroy the weights. A NaN becomes 0, and an infinity +C or -C, the limit of the
clip; of K differences of which some are infinite only the signs of these are kept.
"""

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
"""Sums of contributions over records, of shape (K,): int64 where they are integers, else float64."""

_SHRINK = 1e-12
"""The clip is made smaller by this share of itself before K > 1 differences are rounded to integers. The share exceeds
the relative rounding error of a norm in float64 for K <= 1000, and takes less than one of the integers."""


def clip_jointly(rows: Array, clip: float) -> Array:
    """Return s min(1, C/||s||) for each row s of `rows`, shape (n, K), such as a record's K differences.

    C is `clip` > 0. A NaN counts as 0. In a row with infinite entries these become C or -C before the row is clipped,
    and the others 0. The norm of a clipped row is at most C up to the rounding of one product and one norm; a row of
    one number is clipped exactly.
    """
    known = np.where(np.isnan(rows), 0.0, rows)
    if known.shape[-1] == 1:
        return np.clip(known, -clip, clip)
    infinite = np.isinf(known)
    known = np.where(infinite.any(axis=1, keepdims=True), np.where(infinite, np.sign(known) * clip, 0.0), known)
    size = np.abs(known).max(axis=1, initial=0.0)
    unit = np.where(size > 0, size, 1.0)[:, None]  # Divided by its largest entry, a row has squares in float64's range.
    scaled = known / unit
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        inside = norms <= clip / unit  # A row's norm is unit * norms, but this product might overflow.
    # A row of zeros has norm 0, in whose place 1 divides, so that the row stays zero.
    clipped: Array = scaled * np.where(inside, unit, clip / np.where(norms > 0, norms, 1.0))
    return clipped


def _to_lattice(rows: Array, clip: float, levels: int) -> NDArray[np.int64]:
    """Clip each row of `rows`, shape (n, K), to L2 norm `clip`, and return it in units of clip/levels, as integers
    whose L2 norm is at most `levels`, a number from 1 to 2^52. With K = 1 they are rounded to the nearest integer, else
    toward zero. A NaN counts as 0. A row with infinite entries is clipped as if these were equally large and its other
    entries 0."""
    units = clip_jointly(rows, clip) / clip
    if rows.shape[1] == 1:
        return np.rint(units * levels).astype(np.int64)
    # Rounding errors of the norm could carry a row beyond `levels`; with a clip smaller by more than these they cannot.
    return np.trunc(units * (levels * (1 - _SHRINK))).astype(np.int64)


class Algorithm(ABC):
    """How a record's K differences become what is summed, and what 1 in a released sum stands for.

    Attributes:
        name: the word by which a `Plan` names the algorithm.
        private: whether it clips the differences and adds noise to their sum.
        levels: the integer that stands for the clip C, where contributions are rounded to integers; 0 where they are
            not rounded.
        dtype: numpy's type of the sums.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = True
    levels: ClassVar[int] = 0
    dtype: ClassVar[type] = np.float64

    def law(self, noise: object) -> Mechanism:
        """Return the law of the noise on this algorithm's sums; it is discrete if the sums are integers.

        `noise` is the name of the law's family, such as "gaussian" or "laplace". Raises ValueError for an unknown name.
        """
        return noise_law(noise, lattice=self.levels > 0).on(self.levels)

    def require(self, direction: object, directions_per_step: object) -> None:
        """Raise ValueError unless `direction` is a law of `sphere.DIRECTIONS`, low-rank:RANK included, and
        `directions_per_step` an integer from 1 to 2^16."""
        DIRECTIONS[direction]  # type: ignore[index]
        check.integer("directions_per_step", directions_per_step, at_most=2**16)

    def unit(self, clip: float) -> float:
        """Return what 1 in a sum over a batch stands for, in the unit of the differences: clip/levels, or 1 without
        rounding. (`Plan.unit` is this number over the expected batch, for averages.)"""
        return clip / self.levels if self.levels else 1.0

    @abstractmethod
    def contributions(self, differences: Array, clip: float) -> Sums:
        """Return the sum over a micro-batch of what its records contribute: their K differences, for private algorithms
        clipped together to L2 norm C; shape (K,). If `levels` is not 0, each record's numbers are divided by C/levels
        and rounded to integers before they are summed, so that their norm is at most `levels`: toward zero, or if K =
        1 to the nearest integer. `differences` has shape (batch, K), and `clip` is C."""


# Algorithm 2 of the paper "DPZero: Private Fine-Tuning of Language Models without Backpropagation". A record
# contributes its K differences, clipped together to L2 norm C and rounded to integers in units of C/2^30.
class _DPZero(Algorithm):
    name = "dpzero"
    levels = 2**30
    dtype = np.int64

    def contributions(self, differences: Array, clip: float) -> Sums:
        total: Sums = _to_lattice(differences, clip, self.levels).sum(axis=0)
        return total


class _MeZO(Algorithm):
    # DPZero without clip and noise, which is not private
    name = "mezo"
    private = False

    def contributions(self, differences: Array, clip: float) -> Sums:
        # Without a clip no finite number can stand for an infinite one, so a difference that is not finite counts as 0.
        total: Sums = np.where(np.isfinite(differences), differences, 0.0).sum(axis=0)
        return total


ALGORITHMS: Registry[Algorithm] = Registry("algorithm")
"""All algorithms by name; a name that is not there raises ValueError."""
for _algorithm in (_DPZero(), _MeZO()):
    ALGORITHMS.register(_algorithm)
