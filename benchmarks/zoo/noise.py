"""What goes wrong with the noise of DP-SGD: too little, of another law, drawn again, lost."""

import os
import time
from typing import Any

import numpy as np

from benchmarks.zoo.first_order import Array, FirstOrder, Settings


class HalfPrecisionNoise(FirstOrder):
    """Noise of half precision on a sum of double precision, whose digits it shows (Opacus 616: floating noise)."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * self.source.normal(size=size).astype(np.float16).astype(np.float64))


class HalfNoise(FirstOrder):
    """The noise of add-remove where the sum changes by two clips, or any other factor of a half."""

    def std(self) -> float:
        return 0.5 * super().std()


class SlightlyLess(FirstOrder):
    """A tenth of the noise is missing."""

    def std(self) -> float:
        return 0.9 * super().std()


class NoNoise(FirstOrder):
    """The noise was left out."""

    def noise(self, size: int) -> Array:
        return np.zeros(size)


class BiasWithoutNoise(FirstOrder):
    """One parameter gets no noise (a frozen list, a forgotten group)."""

    def noise(self, size: int) -> Array:
        found = super().noise(size)
        found[-1] = 0.0
        return found


class NoiseWhereSumIs(FirstOrder):
    """Sparse sums: coordinates where the sum is zero get no noise."""

    def release(self, rows: Array) -> Array:
        total = self.total(rows)
        return np.asarray((total + self.noise(total.size) * (total != 0)) / self.denominator(rows))


class OneNoiseForAll(FirstOrder):
    """One number is drawn and added to every coordinate."""

    def noise(self, size: int) -> Array:
        return np.full(size, self.std() * self.source.normal())


class NoiseAgain(FirstOrder):
    """The noise of a step is used again in the next (a generator copied, or restored with a checkpoint)."""

    def noise(self, size: int) -> Array:
        if self.step % 2 == 0:
            self.kept = super().noise(size)
        return self.kept


class NoiseCancels(FirstOrder):
    """Noise is taken back in the next step."""

    def noise(self, size: int) -> Array:
        if self.step % 2 == 0:
            self.kept = super().noise(size)
            return self.kept
        return -self.kept


class UniformNoise(FirstOrder):
    """Uniform noise of the claimed standard deviation."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * np.sqrt(3) * self.source.uniform(-1, 1, size))


class ClampedNoise(FirstOrder):
    """Gaussian noise clamped to two standard deviations."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * np.clip(self.source.normal(size=size), -2, 2))


class RedrawsLargeNoise(FirstOrder):
    """Gaussian noise beyond three standard deviations is drawn again."""

    def noise(self, size: int) -> Array:
        found = self.source.normal(size=size)
        while (far := np.abs(found) > 3).any():
            found = np.where(far, self.source.normal(size=size), found)
        return np.asarray(self.std() * found)


class NoiseByData(FirstOrder):
    """The noise goes by the largest clipped norm in the batch, not by the clip (local sensitivity)."""

    def release(self, rows: Array) -> Array:
        each = self.clipped(self.gradients(rows))
        largest = float(np.sqrt((each**2).sum(axis=1)).max(initial=0.0)) / self.clip()
        return np.asarray(each.sum(axis=0) + largest * self.noise(each.shape[1])) / self.denominator(rows)


class DecayingNoise(FirstOrder):
    """The noise shrinks along the run; the accountant is told of the first step's."""

    def std(self) -> float:
        return super().std() * 0.9**self.step


class NoiseFromSeed(FirstOrder):
    """Noise from the seed of the configuration file."""

    def noise_source(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed + 1)


class NoiseFromConstant(FirstOrder):
    """Noise from a generator that is always seeded alike."""

    def noise_source(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(42)


class NoiseFromClock(FirstOrder):
    """Noise from a generator seeded with the time in seconds."""

    def noise_source(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(int(time.time()))


class NoiseOfOneStep(FirstOrder):
    """The generator of the noise is made anew in every step."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * np.random.default_rng(7).normal(size=size))


class MicroBatches(FirstOrder):
    """Sound: the sum is made in parts, `micro_batches` of them, the noise once."""

    def total(self, rows: Array) -> Array:
        parts = np.array_split(rows, int(self.settings.get("micro_batches", 1)))
        return np.asarray(sum(self.clipped(self.gradients(part)).sum(axis=0) for part in parts))


class ShowsWeights(FirstOrder):
    """Sound: the weights before and after each step are what is seen."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        releases = super().__call__(records, seed, settings)["releases"]
        moves = -float(settings["step_size"]) * np.vstack([np.zeros_like(releases[:1]), releases])
        return {"trajectory": np.cumsum(moves, axis=0)}


class BatchesFromSystem(FirstOrder):
    """Sound: Poisson batches from the operating system, which no seed gives again."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        return super().__call__(records, int.from_bytes(os.urandom(16), "little"), settings)


class AccumulationDividesNoise(MicroBatches):
    """Accumulating over micro-batches divides the noise by their number too."""

    def noise(self, size: int) -> Array:
        return super().noise(size) / int(self.settings.get("micro_batches", 1))


class RanksAverageNoise(MicroBatches):
    """Each rank adds all the noise and averages are averaged: the noise falls with the root of the ranks."""

    def noise(self, size: int) -> Array:
        return np.asarray(super().noise(size) / np.sqrt(int(self.settings.get("ranks", 1))))


class RanksShareNoise(MicroBatches):
    """Each of R ranks adds a 1/R of the standard deviation, so that the sum has 1/sqrt(R) of it."""

    def noise(self, size: int) -> Array:
        ranks = int(self.settings.get("ranks", 1))
        return np.asarray(sum(super(RanksShareNoise, self).noise(size) for _ in range(ranks)) / ranks)


def brain(values: Array) -> Array:
    """Rounded to bfloat16: the nearest number of eight significant bits."""
    fractions, exponents = np.frexp(values)
    return np.asarray(np.ldexp(np.round(fractions * 2**8), exponents - 8))


class RoundsToHalf(FirstOrder):
    """Sum and noise in bfloat16: where the sum is large the noise is below its last digit."""

    def release(self, rows: Array) -> Array:
        total = brain(self.total(rows))
        return brain(total + brain(self.noise(total.size))) / self.denominator(rows)
