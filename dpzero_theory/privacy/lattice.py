"""An integer lattice: how contributions get there.

Each clipped contribution is rounded to a multiple of clip/levels, so the sum is an integer of sensitivity
2 levels (replace-one) or levels (add-remove): rounding record by record costs no privacy.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpzero_theory.check import integer, real


@dataclass(frozen=True)
class Lattice:
    """Multiples of clip/levels between -clip and clip.

    clip: C > 0, the bound on a contribution, in the contribution's unit. levels: integer in [1, 2^52]; the
    rounding moves a contribution by at most C/(2 levels).
    """

    clip: float
    levels: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip", real("clip", self.clip, above=0.0))
        object.__setattr__(self, "levels", integer("levels", self.levels, at_most=2**52))

    @property
    def spacing(self) -> float:
        """C/levels: the unit of the integers."""
        return self.clip / self.levels

    def round(self, contributions: ArrayLike) -> NDArray[np.int64]:
        """Clip each contribution to [-C, C] and round it to the nearest lattice point.

        contributions: (n,) numbers. An infinite one becomes +-levels; a NaN becomes 0, silently, since an
        error would itself reveal a record. Returns (n,) integers in [-levels, levels].
        """
        values = np.asarray(contributions, dtype=np.float64)
        clipped = np.clip(np.where(np.isnan(values), 0.0, values), -self.clip, self.clip)
        return np.rint(clipped / self.clip * self.levels).astype(np.int64)
