"""DP-SGD loops with a fault in the noise: too little of it, of another law, used twice, or lost to rounding.

`MicroBatches`, `ShowsWeights` and `BatchesFromSystem` are sound.
"""

import os
import time
from typing import Any

import numpy as np

from benchmarks.zoo.first_order import Array, FirstOrder, Settings


class HalfPrecisionNoise(FirstOrder):
    """A loop with a fault: half-precision noise is added to a double-precision sum, whose last digits it does not hide
    (see Opacus issue 616, on floating-point noise)."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * self.source.normal(size=size).astype(np.float16).astype(np.float64))


class HalfNoise(FirstOrder):
    """A loop with a fault: the noise has half of the claimed standard deviation: for example, noise for a sensitivity
    of one clip (add or remove a record) where it is two (replace one)."""

    def std(self) -> float:
        return 0.5 * super().std()


class SlightlyLess(FirstOrder):
    """A loop with a fault: the noise has nine tenths of the claimed standard deviation."""

    def std(self) -> float:
        return 0.9 * super().std()


class NoNoise(FirstOrder):
    """A loop with a fault: no noise is added."""

    def noise(self, size: int) -> Array:
        return np.zeros(size)


class BiasWithoutNoise(FirstOrder):
    """A loop with a fault: one parameter gets no noise, as if it were missing from a list of parameters."""

    def noise(self, size: int) -> Array:
        found = super().noise(size)
        found[-1] = 0.0
        return found


class NoiseWhereSumIs(FirstOrder):
    """A loop with a fault: coordinates in which the sum is zero get no noise, as happens with sparse sums."""

    def release(self, rows: Array) -> Array:
        total = self.total(rows)
        return np.asarray((total + self.noise(total.size) * (total != 0)) / self.denominator(rows))


class OneNoiseForAll(FirstOrder):
    """A loop with a fault: one random number is drawn in a step and added to every coordinate as its noise."""

    def noise(self, size: int) -> Array:
        return np.full(size, self.std() * self.source.normal())


class NoiseAgain(FirstOrder):
    """A loop with a fault: every second step repeats the noise of the step before, as happens if a generator is
    restored from a checkpoint."""

    def noise(self, size: int) -> Array:
        if self.step % 2 == 0:
            self.kept = super().noise(size)
        return self.kept


class NoiseCancels(FirstOrder):
    """A loop with a fault: every second step subtracts the noise of the step before, so that the two cancel in the
    weights."""

    def noise(self, size: int) -> Array:
        if self.step % 2 == 0:
            self.kept = super().noise(size)
            return self.kept
        return -self.kept


class UniformNoise(FirstOrder):
    """A loop with a fault: the noise is uniform, with the claimed standard deviation."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * np.sqrt(3) * self.source.uniform(-1, 1, size))


class ClampedNoise(FirstOrder):
    """A loop with a fault: Gaussian noise is clamped to two standard deviations."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * np.clip(self.source.normal(size=size), -2, 2))


class RedrawsLargeNoise(FirstOrder):
    """A loop with a fault: Gaussian noise beyond three standard deviations is drawn again."""

    def noise(self, size: int) -> Array:
        found = self.source.normal(size=size)
        while (far := np.abs(found) > 3).any():
            found = np.where(far, self.source.normal(size=size), found)
        return np.asarray(self.std() * found)


class NoiseByData(FirstOrder):
    """A loop with a fault: the noise is scaled to the largest clipped norm in the batch (a local sensitivity) instead
    of to the clip."""

    def release(self, rows: Array) -> Array:
        each = self.clipped(self.gradients(rows))
        largest = float(np.sqrt((each**2).sum(axis=1)).max(initial=0.0)) / self.clip()
        return np.asarray(each.sum(axis=0) + largest * self.noise(each.shape[1])) / self.denominator(rows)


class DecayingNoise(FirstOrder):
    """A loop with a fault: the noise shrinks by a tenth in each step, but all steps are accounted for with the noise of
    the first."""

    def std(self) -> float:
        return super().std() * 0.9**self.step


class NoiseFromSeed(FirstOrder):
    """A loop with a fault: the noise is drawn from the loop's seed, which stands in a configuration file."""

    def noise_source(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed + 1)


class NoiseFromConstant(FirstOrder):
    """A loop with a fault: the noise comes from a generator that has the same fixed seed in every run."""

    def noise_source(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(42)


class NoiseFromClock(FirstOrder):
    """A loop with a fault: the noise comes from a generator seeded with the time in seconds."""

    def noise_source(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(int(time.time()))


class NoiseOfOneStep(FirstOrder):
    """A loop with a fault: the noise's generator is made anew in every step, so every step has the same noise."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * np.random.default_rng(7).normal(size=size))


class MicroBatches(FirstOrder):
    """A sound loop: the sum over a batch is accumulated over `micro_batches` parts, and noise is added once."""

    def total(self, rows: Array) -> Array:
        parts = np.array_split(rows, int(self.settings.get("micro_batches", 1)))
        return np.asarray(sum(self.clipped(self.gradients(part)).sum(axis=0) for part in parts))


class ShowsWeights(FirstOrder):
    """A sound loop that returns the weights before and after each step instead of its releases."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        releases = super().__call__(records, seed, settings)["releases"]
        moves = -float(settings["step_size"]) * np.vstack([np.zeros_like(releases[:1]), releases])
        return {"trajectory": np.cumsum(moves, axis=0)}


class BatchesFromSystem(FirstOrder):
    """A sound loop whose Poisson batches are drawn from the operating system's entropy, not from the loop's seed."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        return super().__call__(records, int.from_bytes(os.urandom(16), "little"), settings)


class AccumulationDividesNoise(MicroBatches):
    """A loop with a fault: gradients are accumulated over micro-batches, and the noise is wrongly divided by their
    number."""

    def noise(self, size: int) -> Array:
        return super().noise(size) / int(self.settings.get("micro_batches", 1))


class RanksAverageNoise(MicroBatches):
    """A loop with a fault: each of R processes adds the whole noise and their results are averaged, so that 1/sqrt(R)
    of the claimed standard deviation is left."""

    def noise(self, size: int) -> Array:
        return np.asarray(super().noise(size) / np.sqrt(int(self.settings.get("ranks", 1))))


class RanksShareNoise(MicroBatches):
    """A loop with a fault: each of R processes adds noise of 1/R of the claimed standard deviation, so the sum has only
    1/sqrt(R) of it."""

    def noise(self, size: int) -> Array:
        ranks = int(self.settings.get("ranks", 1))
        return np.asarray(sum(super(RanksShareNoise, self).noise(size) for _ in range(ranks)) / ranks)


def brain(values: Array) -> Array:
    """Return the values rounded to bfloat16 (8 significant bits), still as float64."""
    fractions, exponents = np.frexp(values)
    return np.asarray(np.ldexp(np.round(fractions * 2**8), exponents - 8))


class RoundsToHalf(FirstOrder):
    """A loop with a fault: sum and noise are rounded to bfloat16; where the sum is large, the noise is smaller than its
    last digit."""

    def release(self, rows: Array) -> Array:
        total = brain(self.total(rows))
        return brain(total + brain(self.noise(total.size))) / self.denominator(rows)
