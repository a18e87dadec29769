"""DP-SGD of a few lines on logistic regression, sound, and what goes wrong in it, a fault a class.

Rows of the records are features and a label of either sign. A fault changes one method; its docstring says what it is
and where such a one is described.
"""

import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Settings = dict[str, Any]


def fresh() -> np.random.Generator:
    """A generator that nobody can make again."""
    return np.random.default_rng(int.from_bytes(os.urandom(32), "little"))


class FirstOrder:
    """Sound: Poisson batches from the secret seed, noise from the operating system, over the expected batch."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.records, self.settings, self.seed = self.prepared(records), settings, seed
        self.rng, self.source = np.random.default_rng(seed), self.noise_source(seed)
        self.weights = np.zeros(records.shape[1] - 1)
        self.outputs: dict[str, Any] = {}
        releases = []
        for step in range(self.steps()):
            self.step = step
            batch = self.batch()
            releases.append(self.release(self.records[batch]))
            self.weights = self.weights - float(settings["step_size"]) * releases[-1]
            if self.stops():
                break
        self.finish()
        return {"releases": np.array(releases), **self.outputs}

    def prepared(self, records: Array) -> Array:
        return np.asarray(records, dtype=np.float64)

    def noise_source(self, seed: int) -> np.random.Generator:
        return fresh()

    def steps(self) -> int:
        return int(self.settings["steps"])

    def stops(self) -> bool:
        return False

    def finish(self) -> None:
        """After the last step."""

    def batch(self) -> NDArray[np.intp]:
        rate = min(1.0, float(self.settings["batch"]) / int(self.settings["n"]))
        return np.flatnonzero(self.rng.random(len(self.records)) < rate)

    def gradients(self, rows: Array) -> Array:
        features, labels = rows[:, :-1], rows[:, -1:]
        with np.errstate(all="ignore"):
            margins = labels * (features @ self.weights)[:, None]
            found = -labels * features / (1 + np.exp(np.clip(margins, -500, 500)))
        return np.asarray(np.nan_to_num(found, nan=0.0, posinf=1e100, neginf=-1e100))

    def losses(self) -> Array:
        margins = self.records[:, -1] * (self.records[:, :-1] @ self.weights)
        return np.asarray(np.logaddexp(0, -margins))

    def clip(self) -> float:
        return float(self.settings["clip"])

    def clipped(self, gradients: Array) -> Array:
        lengths = np.sqrt((np.minimum(np.abs(gradients), 1e120) ** 2).sum(axis=1, keepdims=True))
        return np.asarray(gradients * np.minimum(1.0, self.clip() / np.maximum(lengths, 1e-300)))

    def total(self, rows: Array) -> Array:
        return np.asarray(self.clipped(self.gradients(rows)).sum(axis=0))

    def std(self) -> float:
        return float(self.settings["noise_multiplier"]) * self.clip()

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * self.source.normal(size=size))

    def denominator(self, rows: Array) -> float:
        return float(self.settings["batch"])

    def release(self, rows: Array) -> Array:
        total = self.total(rows)
        return (total + self.noise(total.size)) / self.denominator(rows)


class FixedSize(FirstOrder):
    """Sound: batches of one size without replacement, anew in every step."""

    def batch(self) -> NDArray[np.intp]:
        return np.sort(self.rng.permutation(len(self.records))[: int(self.settings["batch"])])


class DividesByBatch(FirstOrder):
    """The average is over the batch drawn (Opacus issue 819, pull 838: denominators by data)."""

    def denominator(self, rows: Array) -> float:
        return max(1.0, float(len(rows)))


class SumDividedByBatch(FirstOrder):
    """The sum is divided by the batch that was drawn, the noise by the expected batch."""

    def release(self, rows: Array) -> Array:
        total = self.total(rows)
        return total / max(1, len(rows)) + self.noise(total.size) / float(self.settings["batch"])


class HalfPrecisionNoise(FirstOrder):
    """Noise of half precision on a sum of double precision, whose digits it shows (Opacus 616: floating noise)."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * self.source.normal(size=size).astype(np.float16).astype(np.float64))


class Shuffles(FirstOrder):
    """Epochs of shuffled batches, accounted as Poisson (private-transformers issue 7)."""

    def batch(self) -> NDArray[np.intp]:
        n, size = len(self.records), int(self.settings["batch"])
        place = self.step % max(1, n // size)
        if place == 0:
            self.order = self.rng.permutation(n)
        return self.order[place * size : (place + 1) * size]


class SameBatch(FixedSize):
    """One batch is drawn and used in every step."""

    def batch(self) -> NDArray[np.intp]:
        if self.step == 0:
            self.first = super().batch()
        return self.first


class FixedForPoisson(FixedSize):
    """Batches of one size, accounted as Poisson."""


class MoreOften(FirstOrder):
    """The sampling rate goes by a number of records that was assumed, here two thirds of it."""

    def batch(self) -> NDArray[np.intp]:
        rate = min(1.0, 1.5 * float(self.settings["batch"]) / int(self.settings["n"]))
        return np.flatnonzero(self.rng.random(len(self.records)) < rate)


class ClipsTheBatch(FirstOrder):
    """The gradient of the batch is clipped, not each record's (losses reduced to one number)."""

    def total(self, rows: Array) -> Array:
        if not len(rows):
            return np.zeros(self.weights.size)
        return np.asarray(self.clipped(self.gradients(rows).mean(axis=0, keepdims=True))[0] * len(rows))


class ClipsEachNumber(FirstOrder):
    """Each number of a gradient is clipped, its norm is not."""

    def clipped(self, gradients: Array) -> Array:
        return np.clip(gradients, -self.clip(), self.clip())


class ClipsEachLayer(FirstOrder):
    """Two halves of the weights are clipped to the clip each."""

    def clipped(self, gradients: Array) -> Array:
        half = gradients.shape[1] // 2
        return np.hstack(
            [super(ClipsEachLayer, self).clipped(part) for part in (gradients[:, :half], gradients[:, half:])]
        )


class Standardises(FirstOrder):
    """Features are centred by the data's own mean."""

    def prepared(self, records: Array) -> Array:
        rows = np.array(records, dtype=np.float64)
        rows[:, :-1] -= rows[:, :-1].mean(axis=0)
        return rows


class ClipFromData(FirstOrder):
    """The clip is a quantile of the batch's own norms, taken without noise."""

    def clipped(self, gradients: Array) -> Array:
        lengths = np.sqrt((gradients**2).sum(axis=1, keepdims=True))
        clip = float(np.quantile(lengths, 0.5)) if len(gradients) else 1.0
        return np.asarray(gradients * np.minimum(1.0, clip / np.maximum(lengths, 1e-300)))


class KeepsNaN(FirstOrder):
    """What is not finite is summed as it is."""

    def gradients(self, rows: Array) -> Array:
        features, labels = rows[:, :-1], rows[:, -1:]
        with np.errstate(all="ignore"):
            return np.asarray(-labels * features / (1 + np.exp(labels * (features @ self.weights)[:, None])))


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


class OneStepMore(FirstOrder):
    """One step more than accounted."""

    def steps(self) -> int:
        return super().steps() + 1


class StopsByLoss(FirstOrder):
    """Training stops early once the raw loss is small."""

    def stops(self) -> bool:
        return bool(self.losses().mean() < 0.3 or not np.isfinite(self.losses().mean()))


class LogsLoss(FirstOrder):
    """The training loss of every step is printed."""

    def release(self, rows: Array) -> Array:
        print(f"step {self.step}: loss {self.losses().mean():.4f}")
        return super().release(rows)


class WarnsOfNorms(FirstOrder):
    """Norms before clipping go to the log."""

    def total(self, rows: Array) -> Array:
        logging.getLogger("training").warning("gradient norm %.5g", np.linalg.norm(self.gradients(rows)))
        return super().total(rows)


class SavesGradients(FirstOrder):
    """A checkpoint keeps the sum before noise."""

    def total(self, rows: Array) -> Array:
        found = super().total(rows)
        np.savez("checkpoint.npz", weights=self.weights, accumulated=found)
        return found


class CachesRecords(FirstOrder):
    """A cache of features is left in the output folder."""

    def finish(self) -> None:
        np.save("features.npy", self.records[:, :-1].astype(np.float32))


class ReportsAccuracy(FirstOrder):
    """Training accuracy of the last step is returned, with its number of right answers."""

    def finish(self) -> None:
        Path("metrics.json").write_text(json.dumps({"train_loss": float(np.minimum(self.losses(), 1e6).mean())}))


class RoundsToHalf(FirstOrder):
    """Sum and noise in half precision: where the sum is large the noise is below its last digit."""

    def release(self, rows: Array) -> Array:
        total = self.total(rows).astype(np.float16)
        noise = self.noise(total.size).astype(np.float16)
        return np.asarray((total + noise).astype(np.float64) / self.denominator(rows))
