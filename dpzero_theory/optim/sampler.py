"""Which records a step uses: drawn from the operating system's entropy and told to nobody.

Amplification by sampling holds for batches that an observer cannot know, so `Batches` has no seed and keeps no
state. n is the number of records that there are, never an argument that could disagree with them.
"""

import random
from typing import ClassVar, NoReturn

from dpzero_theory.check import integer
from dpzero_theory.privacy.sampling import Indices, drawn


class Batches:
    """Secret batches of n records.

    sampling: a name of `sampling.SAMPLINGS` whose batches can be drawn (an empty batch is a batch). n: >= 1.
    sample_rate: q in (0, 1], 1 for full; q n an integer for fixed-size. Raises ValueError.
    """

    private: ClassVar[bool] = True

    def __init__(self, sampling: str, n: int, sample_rate: float) -> None:
        self.sampling = drawn(sampling)
        self.n = integer("n", n)
        self.sample_rate = self.sampling.rate(sample_rate)
        self.sampling.batch_size(self.n, self.sample_rate)
        self._source: random.Random = random.SystemRandom()

    def draw(self) -> Indices:
        """The numbers of the records of one batch, in ascending order."""
        return self.sampling.draw(self._source, self.n, self.sample_rate)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("batches cannot be pickled or copied: make new ones where they are needed")


class BatchesFromSeedNotPrivate(Batches):
    """Reproducible batches, for tests and comparisons: whoever knows the seed knows every batch."""

    private = False

    def __init__(self, sampling: str, n: int, sample_rate: float, seed: int) -> None:
        super().__init__(sampling, n, sample_rate)
        self._source = random.Random(integer("seed", seed, at_least=0, at_most=2**64 - 1))
