"""Which records a step uses: drawn from the operating system's entropy and told to nobody.

Amplification by sampling holds for batches that an observer cannot know, so `Batches` has no seed and keeps no
state. n is the number of records that there are, never an argument that could disagree with them.
"""

import random
from typing import ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from dpzero_theory.check import choice, integer, real

__all__ = ["SAMPLINGS", "Batches", "BatchesFromSeedNotPrivate"]

SAMPLINGS = ("full", "poisson", "fixed-size")

Indices = NDArray[np.int64]


class Batches:
    """Secret batches of n records.

    sampling: `full`, every record; `poisson`, each record independently with probability q rounded down to a
    multiple of 2^-64 (an empty batch is a batch); `fixed-size`, a uniformly random set of q n records. n: >= 1.
    sample_rate: q in (0, 1], 1 for full; q n an integer for fixed-size. Raises ValueError.
    """

    private: ClassVar[bool] = True

    def __init__(self, sampling: str, n: int, sample_rate: float) -> None:
        self.sampling = choice("sampling", sampling, SAMPLINGS)
        self.n = integer("n", n)
        self.sample_rate = real("sample_rate", sample_rate, above=0.0, at_most=1.0)
        if sampling == "full" and self.sample_rate != 1:
            raise ValueError(f"sample_rate must be 1 with sampling full; got {sample_rate!r}")
        self._size = round(self.sample_rate * self.n)
        if sampling == "fixed-size" and (self._size < 1 or abs(self._size - self.sample_rate * self.n) > 1e-9):
            raise ValueError(f"sample_rate * n must be an integer with sampling fixed-size; got {sample_rate!r} * {n}")
        self._source: random.Random = random.SystemRandom()

    def draw(self) -> Indices:
        """The numbers of the records of one batch, in ascending order."""
        if self.sampling == "full" or (self.sampling == "poisson" and self.sample_rate == 1):
            return np.arange(self.n)
        if self.sampling == "fixed-size":
            return np.sort(np.array(self._source.sample(range(self.n), self._size), dtype=np.int64))
        words = np.frombuffer(self._source.randbytes(8 * self.n), dtype=np.uint64)
        return np.flatnonzero(words < np.uint64(int(self.sample_rate * 2.0**64)))

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("batches cannot be pickled or copied: make new ones where they are needed")


class BatchesFromSeedNotPrivate(Batches):
    """Reproducible batches, for tests and comparisons: whoever knows the seed knows every batch."""

    private = False

    def __init__(self, sampling: str, n: int, sample_rate: float, seed: int) -> None:
        super().__init__(sampling, n, sample_rate)
        self._source = random.Random(integer("seed", seed, at_least=0, at_most=2**64 - 1))
