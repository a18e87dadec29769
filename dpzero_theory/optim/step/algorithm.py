"""The algorithms of a training run: how the records' numbers of a step become the sums over the batch that it releases.

In a step each record has K numbers, its *differences*: how fast its loss changes along K random directions. An
`Algorithm` turns the differences of some records into the K sums of what the records contribute. Noise is added later,
to the sums over the whole batch. A further algorithm is a subclass of `Algorithm` and one call of
`ALGORITHMS.register`. The functions here have no side effects.

**Sensitivity.** With `dpzero` a record's K differences are clipped together to L2 norm C, and rounded to K integers
whose L2 norm is at most `Algorithm.levels`, whatever its loss is. So adding or removing a record changes the vector of
sums by at most `levels` in L2 norm, and replacing one by at most 2 levels. Integers are summed exactly.

**Losses that overflow.** A difference that is NaN becomes 0, and an infinite one C or -C, so that every contribution is
finite. If some of a record's K differences are infinite, its finite ones become 0.
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
"""K sums over records, one for each direction of a step, shape (K,), in int64 if an algorithm rounds, else float64."""

_SHRINK = 1e-12
"""The relative amount by which the clip is reduced before K > 1 clipped differences are rounded toward zero. It is more
than a norm's relative rounding error in float64 with K <= 2^16."""


def clip_jointly(rows: Array, clip: float) -> Array:
    """Return s min(1, C/||s||) for each row s of `rows`, shape (n, K), where ||s|| is the L2 norm.

    C is `clip` > 0. Before, NaN is replaced by 0; in a row with infinite entries these become C or -C, and its other
    entries 0. The L2 norm of a row of the result is at most C, but for the rounding errors of float64 if K > 1.
    """
    # In C order, as numpy then adds a row's squares in pairs: one after the other, rounding errors grow with K.
    known = np.where(np.isnan(rows), 0.0, np.ascontiguousarray(rows))
    if known.shape[-1] == 1:
        return np.clip(known, -clip, clip)
    infinite = np.isinf(known)
    known = np.where(infinite.any(axis=1, keepdims=True), np.where(infinite, np.sign(known) * clip, 0.0), known)
    size = np.abs(known).max(axis=1, initial=0.0)
    unit = np.where(size > 0, size, 1.0)[:, None]  # Dividing by the largest entry keeps squares finite.
    scaled = known / unit
    norms = np.linalg.norm(scaled, axis=1, keepdims=True)
    with np.errstate(over="ignore"):
        inside = norms <= clip / unit  # norms * unit <= clip, without an overflow
    # A row of zeros is divided by 1 in place of its norm 0.
    clipped: Array = scaled * np.where(inside, unit, clip / np.where(norms > 0, norms, 1.0))
    return clipped


def _to_lattice(rows: Array, clip: float, levels: int) -> NDArray[np.int64]:
    # Clips each row and rounds it to integers, as `Algorithm.contributions` says.
    units = clip_jointly(rows, clip) / clip
    if rows.shape[1] == 1:
        return np.rint(units * levels).astype(np.int64)
    # Rounding errors could make a row's norm larger than `levels`, so the clip is reduced by more than these.
    return np.trunc(units * (levels * (1 - _SHRINK))).astype(np.int64)


class Algorithm(ABC):
    """A rule that turns the records' differences, K numbers for each record, into the K sums that a step releases.

    A record's difference is the rate at which its loss changes along a random direction.

    Attributes:
        name: the name of the algorithm in a `Plan`.
        private: whether a record's differences are clipped and noise is added to the sums.
        levels: the integer that stands for the clip C in contributions rounded to integers; 0 without rounding.
        dtype: numpy's type of the sums.
    """

    name: ClassVar[str]
    private: ClassVar[bool] = True
    levels: ClassVar[int] = 0
    dtype: ClassVar[type] = np.float64

    def law(self, noise: object) -> Mechanism:
        """Return the distribution of the noise on this algorithm's sums: on integers if `levels` > 0, else continuous.

        `noise` is its family, such as "gaussian" or "laplace". Raises ValueError for an unknown one.
        """
        return noise_law(noise, lattice=self.levels > 0).on(self.levels)

    def require(self, direction: object, directions_per_step: object) -> None:
        """Raise ValueError unless `direction` is a name in `sphere.DIRECTIONS` or "low-rank:RANK", and
        `directions_per_step` an integer from 1 to 2^16."""
        DIRECTIONS[direction]  # type: ignore[index]
        check.integer("directions_per_step", directions_per_step, at_most=2**16)

    def unit(self, clip: float) -> float:
        """Return what the number 1 in a sum over a batch stands for, in the unit of the differences: `clip` / `levels`,
        or 1 if contributions are not rounded. (`Plan.unit` is this divided by the expected batch size.)"""
        return clip / self.levels if self.levels else 1.0

    @abstractmethod
    def contributions(self, differences: Array, clip: float) -> Sums:
        """Return the sums over some records of what each of them contributes, shape (K,).

        A private algorithm shortens each record's K differences to L2 norm `clip`. If `levels` is not 0, it divides
        them by clip / levels and rounds to integers: to the nearest if K = 1, otherwise toward zero. So the L2 norm of
        one record's contribution is at most `levels`.

        Args:
            differences: the differences of each record, shape (records, K).
            clip: C > 0; not used by an algorithm that is not private.
        """


# Algorithm 2 of the paper "DPZero: Private Fine-Tuning of Language Models without Backpropagation". A record
# contributes its K differences, clipped together to L2 norm C, divided by C/2^30 and rounded to integers.
class _DPZero(Algorithm):
    name = "dpzero"
    levels = 2**30
    dtype = np.int64

    def contributions(self, differences: Array, clip: float) -> Sums:
        total: Sums = _to_lattice(differences, clip, self.levels).sum(axis=0)
        return total


class _MeZO(Algorithm):
    # DPZero without clipping and without noise, so it is not private
    name = "mezo"
    private = False

    def contributions(self, differences: Array, clip: float) -> Sums:
        # A difference that is NaN or infinite counts as 0: without a clip there is no largest number to replace it.
        total: Sums = np.where(np.isfinite(differences), differences, 0.0).sum(axis=0)
        return total


ALGORITHMS: Registry[Algorithm] = Registry("algorithm")
"""All algorithms by name. Looking up an unknown name raises ValueError."""
for _algorithm in (_DPZero(), _MeZO()):
    ALGORITHMS.register(_algorithm)
