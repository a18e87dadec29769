"""The integer lattice on which contributions are summed.

Each clipped contribution is rounded to a multiple of clip/levels. In units of clip/levels their sum is an integer,
whose sensitivity is 2 levels under replace-one and `levels` under add-remove. Because each record is rounded by itself,
rounding costs no privacy.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzero_theory.check import integer, real


@dataclass(frozen=True)
class Lattice:
    """The multiples of clip/levels between -clip and clip.

    clip: C > 0, the bound on a contribution, in the contribution's unit.
    levels: an integer in [1, 2^52], the number of steps from 0 to C. Rounding moves a clipped contribution by at most
    C/(2 levels). Raises ValueError for numbers outside these ranges.
    """

    clip: float
    levels: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", real("clip", self.clip, above=0.0))
        object.__setattr__(self, "levels", integer("levels", self.levels, at_most=2**52))

    @property
    def spacing(self) -> float:
        """The distance C/levels between neighbouring points."""
        return self.clip / self.levels

    def round(self, contributions: ArrayLike) -> NDArray[np.int64]:
        """Clip each contribution to [-C, C], with C the lattice's clip, and round it to the nearest lattice point.

        contributions: numbers, an array of any shape. An infinite one becomes +-levels; a NaN becomes 0 without a
        warning, because an error would itself reveal a record.

        Returns an array of that shape of integers in [-levels, levels], in units of C/levels.
        """
        values = np.asarray(contributions, dtype=np.float64)
        clipped = np.clip(np.where(np.isnan(values), 0.0, values), -self.clip, self.clip)
        return np.rint(clipped / self.clip * self.levels).astype(np.int64)
