"""DP-SGD loops with faults most of which the first version of the audit missed.

Examples are noise with few values or few seeds, wrong clipping, and releases that are not accounted for.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo.first_order import Array, FirstOrder, Settings, fresh

_POOL = np.random.default_rng(8).normal(size=4096)


class SinglePrecisionNoise(FirstOrder):
    """A loop with a fault: single-precision noise is added to a double-precision sum."""

    def noise(self, size: int) -> Array:
        return np.asarray((self.std() * self.source.normal(size=size)).astype(np.float32).astype(np.float64))


class NoiseFromPool(FirstOrder):
    """A loop with a fault: noise is taken from a table of 4,096 numbers, drawn once to save time."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * _POOL[self.source.integers(0, _POOL.size, size)])


class NoiseFromSmallSeed(FirstOrder):
    """A loop with a fault: the noise's generator is seeded with 16 bits of a secret seed."""

    def noise_source(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed % 2**16)


class NoiseFromTwoBytes(FirstOrder):
    """A loop with a fault: the noise's generator is seeded with two bytes from the operating system."""

    def noise_source(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(int.from_bytes(os.urandom(2), "little"))


class MostlyLittleNoise(FirstOrder):
    """A loop with a fault: 99% of the noise has half of the claimed standard deviation and 1% has ten times it, so that
    the variance is larger than claimed although most noise is too small."""

    def noise(self, size: int) -> Array:
        return np.asarray(super().noise(size) * np.where(self.source.random(size) < 0.01, 10.0, 0.5))


class NoiseOncePerEpoch(FirstOrder):
    """A loop with a fault: noise is drawn once in an epoch and added in each of its steps."""

    def noise(self, size: int) -> Array:
        if self.step % max(1, int(self.settings["n"]) // int(self.settings["batch"])) == 0:
            self.kept = super().noise(size)
        return self.kept


class NoiseBeforeClip(FirstOrder):
    """A loop with a fault: a share of the noise is added to each gradient before clipping, and the clipping takes much
    of it away."""

    def release(self, rows: Array) -> Array:
        found = self.gradients(rows)
        shares = self.std() / np.sqrt(max(1, len(rows))) * self.source.normal(size=found.shape)
        return np.asarray(self.clipped(found + shares).sum(axis=0) / self.denominator(rows))


class NoiseOverRecords(FirstOrder):
    """A loop with a fault: the sum is divided by the expected batch size, but the noise by the number of all records,
    which is larger."""

    def release(self, rows: Array) -> Array:
        total = self.total(rows)
        return np.asarray(total / self.denominator(rows) + self.noise(total.size) / int(self.settings["n"]))


class NoiseAlwaysHalf(FirstOrder):
    """A loop with a fault: the noise has a fixed standard deviation, half of the claimed one, and ignores the noise
    multiplier."""

    def std(self) -> float:
        return 1.0


class ClipsWithoutBias(FirstOrder):
    """A loop with a fault: the clip factor is computed without the last coordinate of a gradient, whose size is
    therefore not bounded."""

    def clipped(self, gradients: Array) -> Array:
        part = np.minimum(np.abs(gradients[:, :-1]), 1e120)
        lengths = np.sqrt((part**2).sum(axis=1, keepdims=True))
        return np.asarray(gradients * np.minimum(1.0, self.clip() / np.maximum(lengths, 1e-300)))


class CountsTwice(FirstOrder):
    """A loop with a fault: two augmentations of each record are clipped separately and summed, so a record adds up to
    two clips."""

    def total(self, rows: Array) -> Array:
        turned = rows.copy()
        turned[:, 0] *= -1
        return np.asarray(super().total(rows) + super().total(turned))


class StaleNorms(FirstOrder):
    """A loop with a fault: gradients are clipped by the norms that the gradients at the same positions in the batch had
    one step before, so by the norms of other records."""

    kept: Array

    def clipped(self, gradients: Array) -> Array:
        norms = np.sqrt((np.minimum(np.abs(gradients), 1e120) ** 2).sum(axis=1, keepdims=True))
        kept = self.kept if self.step and len(self.kept) >= len(norms) else np.ones_like(norms)
        self.kept = norms
        return np.asarray(gradients * np.minimum(1.0, self.clip() / np.maximum(kept[: len(norms)], 1e-300)))


class LabelsSeedTheBatches(FirstOrder):
    """A loop with a fault: the seed of the batches depends on the number of positive labels, so one record may change
    all batches."""

    def batch(self) -> NDArray[np.intp]:
        if self.step == 0:
            self.rng = np.random.default_rng(self.seed + int((self.records[:, -1] > 0).sum()))
        return super().batch()


class BatchesFromNowhere(FirstOrder):
    """A loop with a fault: batches of a fixed size are drawn from the operating system's entropy, but are accounted for
    as Poisson."""

    def batch(self) -> NDArray[np.intp]:
        return np.sort(fresh().permutation(len(self.records))[: int(self.settings["batch"])])


class ShowsBatchSizes(FirstOrder):
    """A loop with a fault: the size of every Poisson batch is printed."""

    def release(self, rows: Array) -> Array:
        print(f"step {self.step}: {len(rows)} records")
        return super().release(rows)


class ShowsNoisyCounts(FirstOrder):
    """A loop with a fault: the number of clipped gradients of each step is shown with noise of its own, as for an
    adaptive clip, but is not accounted for."""

    def total(self, rows: Array) -> Array:
        norms = np.sqrt((np.minimum(np.abs(self.gradients(rows)), 1e120) ** 2).sum(axis=1))
        self.outputs.setdefault("clipped", []).append(float((norms > self.clip()).sum() + self.source.normal()))
        return super().total(rows)


class ReleasesTwice(FirstOrder):
    """A loop with a fault: each sum is released twice, the second time with new noise (as for a moving average), but
    accounted for once."""

    def release(self, rows: Array) -> Array:
        self.outputs.setdefault("average", []).append(super().release(rows))
        return super().release(rows)


class SaysDiverged(FirstOrder):
    """A loop with a fault: a printed word says whether any record's final loss was above 10."""

    def finish(self) -> None:
        print("diverged" if self.losses().max() > 10 else "fine")


class NamesByLoss(FirstOrder):
    """A loop with a fault: the final training loss, without noise, is part of the name of a checkpoint file."""

    def finish(self) -> None:
        Path(f"weights_{self.losses().mean():.4f}.txt").write_text("")


class HalfNoiseInWeights(FirstOrder):
    """A loop with a fault: the noise has half of the claimed standard deviation, and only the last weights are
    returned."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        super().__call__(records, seed, settings)
        return {"weights": self.weights}

    def std(self) -> float:
        return 0.5 * super().std()


class AdaptsByExactCount(FirstOrder):
    """A loop with a fault: its clip follows a quantile of the gradients' lengths by a count of short ones that has no
    noise. It is said to adapt to releases alone, and releases are in units of the step's clip."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.adapted = 0.5
        return super().__call__(records, seed, settings)

    def clip(self) -> float:
        return self.adapted

    def release(self, rows: Array) -> Array:
        lengths = np.sqrt((np.minimum(np.abs(self.gradients(rows)), 1e120) ** 2).sum(axis=1))
        found = super().release(rows) / self.clip()
        self.outputs.setdefault("clips", []).append(self.clip())
        self.adapted *= float(np.exp(-0.3 * ((lengths <= self.clip()).sum() / self.denominator(rows) - 0.5)))
        return found


class ShowsAccuracy(FirstOrder):
    """A loop with a fault: the final share of records with a loss below log 2 is shown without noise, to two
    decimals."""

    def finish(self) -> None:
        self.outputs["accuracy"] = round(float((self.losses() < np.log(2)).mean()), 2)


class ClipsGroups(FirstOrder):
    """A loop with a fault: the mean gradients of groups of four records are clipped, in place of each record's."""

    def gradients(self, rows: Array) -> Array:
        found = super().gradients(rows)
        groups = np.array_split(found, max(1, len(found) // 4))
        return np.array([group.mean(axis=0) for group in groups]) if len(found) else found


class KeepsItsBatch(FirstOrder):
    """A loop with a fault: a Poisson batch is kept for five steps, but accounted for as drawn anew in each step."""

    def batch(self) -> NDArray[np.intp]:
        if self.step % 5 == 0:
            self.kept = super().batch()
        return self.kept


class BestByCleanLoss(FirstOrder):
    """A loop with a fault: of its weights it shows those with the smallest training loss, which it computes without
    noise."""

    lowest = np.inf

    def stops(self) -> bool:
        loss = float(self.losses().mean())
        if self.step == 0 or loss < self.lowest:
            self.lowest, self.outputs["best"] = loss, self.weights.copy()
        return False


class LeavesOutLargeBatches(FirstOrder):
    """A loop with a fault: a batch a quarter larger than expected is drawn again, but accounted for as Poisson."""

    def batch(self) -> NDArray[np.intp]:
        found = super().batch()
        return found if len(found) <= 1.25 * float(self.settings["batch"]) else self.batch()
