"""Which records a step uses: they are drawn from the operating system's entropy, and nobody is told.

Amplification by sampling holds for batches that an observer cannot know, so `Batches` has no seed. It keeps no state
either, with one exception. Where batches depend on one another (which steps of an epoch a record is in, or its group),
what they have in common comes from a secret, `data.key` in a run's folder, so that a resumed run goes on with it.
"""

import os
import random
from typing import ClassVar, NoReturn

from dpzero_theory.check import integer
from dpzero_theory.privacy.sampling import Sampling
from dpzero_theory.privacy.schedule import SECRET_BYTES, Indices


class Batches:
    """Draws the secret batches of a run on n records; a batch may be empty.

    sampling: how batches are drawn. n: the number of records, >= 1. Raises ValueError where they do not fit, as where
    the expected batch q n is no integer for fixed-size batches.
    """

    private: ClassVar[bool] = True

    def __init__(self, sampling: Sampling, n: int) -> None:
        self.sampling = sampling
        self.n = integer("n", n)
        self.sampling.batch_size(self.n)
        self._next = 0
        self._from(random.SystemRandom(), os.urandom(SECRET_BYTES))

    def keep(self, secret: bytes) -> None:
        """Set the secret of the run, `SECRET_BYTES` long, from which later batches are drawn where they depend on each
        other.

        For example, each batch may be the next part of one secret order of the records. This order is computed from the
        secret, so a resumed run, which has the same secret, goes on with the same order.
        """
        self._from(random.SystemRandom(), secret)

    def draw(self, release: int | None = None) -> Indices:
        """Draw a batch, and return the numbers of its records, ascending.

        release: the number, from 0, of the release that the batch is for; None for the one after that of the last call,
        at first 0. The number matters only where batches depend on one another.
        """
        number = self._next if release is None else integer("release", release, at_least=0)
        self._next = number + 1
        return self._drawer(number)

    def _from(self, source: random.Random, secret: bytes) -> None:
        self._drawer = self.sampling.drawer(source, secret, self.n)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("batches cannot be pickled or copied: make new ones where they are needed")


class BatchesFromSeedNotPrivate(Batches):
    """Reproducible batches, for tests and comparisons. They are not private: who knows the seed knows every batch."""

    private = False

    def __init__(self, sampling: Sampling, n: int, seed: int) -> None:
        super().__init__(sampling, n)
        number = integer("seed", seed, at_least=0, at_most=2**64 - 1)
        self._from(random.Random(number), number.to_bytes(SECRET_BYTES, "little"))

    def keep(self, secret: bytes) -> None:
        """Ignore the secret of the run, since all batches come from the seed."""
