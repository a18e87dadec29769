"""DP-SGD in a few lines on logistic regression: a sound loop, and loops with one fault each.

Records are rows of features and a label of -1 or +1. The class `FirstOrder` is the sound loop; each faulty class
changes one method of it, and its docstring says what the fault is, and sometimes where one like it is described.
"""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Settings = dict[str, Any]


def fresh() -> np.random.Generator:
    """Return a generator seeded with 32 random bytes from the operating system."""
    return np.random.default_rng(int.from_bytes(os.urandom(32), "little"))


class FirstOrder:
    """A sound DP-SGD loop: Poisson batches drawn from the loop's secret seed, noise from the operating system, and the
    noised sum divided by the expected batch size.

    Subclasses override single methods. Calling an object runs the loop and returns its outputs for the audit.
    """

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
            self.weights = self.moved(releases[-1])
            if self.stops():
                break
        self.finish()
        return {"releases": np.array(releases), **self.outputs}

    def moved(self, release: Array) -> Array:
        return self.weights - float(self.settings["step_size"]) * release

    def prepared(self, records: Array) -> Array:
        return np.asarray(records, dtype=np.float64)

    def noise_source(self, seed: int) -> np.random.Generator:
        return fresh()

    def steps(self) -> int:
        return int(self.settings["steps"])

    def stops(self) -> bool:
        return False

    def finish(self) -> None:
        """Do nothing. The method is called after the last step, for subclasses that write or print something."""

    def batch(self) -> NDArray[np.intp]:
        rate = min(1.0, float(self.settings["batch"]) / int(self.settings["n"]))
        return np.flatnonzero(self.rng.random(len(self.records)) < rate)

    def gradients(self, rows: Array) -> Array:
        features, labels = rows[:, :-1], rows[:, -1:]
        with np.errstate(all="ignore"):
            margins = labels * (features @ self.weights)[:, None]
            found = np.asarray(-labels * features / (1 + np.exp(np.clip(margins, -500, 500))))
        return found if np.isfinite(found).all() else np.nan_to_num(found, nan=0.0, posinf=1e100, neginf=-1e100)

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
    """A sound loop in which every step draws a new batch of a fixed size without replacement."""

    def batch(self) -> NDArray[np.intp]:
        return np.sort(self.rng.permutation(len(self.records))[: int(self.settings["batch"])])


class DividesByBatch(FirstOrder):
    """A loop with a fault: the noised sum is divided by the number of records drawn, which depends on the data (Opacus
    issue 819 and pull request 838)."""

    def denominator(self, rows: Array) -> float:
        return max(1.0, float(len(rows)))


class SumDividedByBatch(FirstOrder):
    """A loop with a fault: the sum is divided by the number of records drawn, which depends on the data; only the noise
    is divided by the expected batch size."""

    def release(self, rows: Array) -> Array:
        total = self.total(rows)
        return total / max(1, len(rows)) + self.noise(total.size) / float(self.settings["batch"])


class Shuffles(FirstOrder):
    """A loop with a fault: batches are successive parts of a shuffled epoch, but accounted for as Poisson
    (private-transformers issue 7)."""

    def batch(self) -> NDArray[np.intp]:
        n, size = len(self.records), int(self.settings["batch"])
        place = self.step % max(1, n // size)
        if place == 0:
            self.order = self.rng.permutation(n)
        return self.order[place * size : (place + 1) * size]


class SameBatch(FixedSize):
    """A loop with a fault: one batch is drawn at the start and used in every step, but accounted for as drawn anew in
    each step."""

    def batch(self) -> NDArray[np.intp]:
        if self.step == 0:
            self.first = super().batch()
        return self.first


class FixedForPoisson(FixedSize):
    """A loop with a fault: batches have a fixed size, but are accounted for as Poisson."""


class MoreOften(FirstOrder):
    """A loop with a fault: the sampling rate is computed from a wrong number of records, 2/3 of n, so it is 1.5 times
    the claimed rate."""

    def batch(self) -> NDArray[np.intp]:
        rate = min(1.0, 1.5 * float(self.settings["batch"]) / int(self.settings["n"]))
        return np.flatnonzero(self.rng.random(len(self.records)) < rate)


class ClipsTheBatch(FirstOrder):
    """A loop with a fault: the gradient of the batch is clipped instead of each record's, because the losses were
    reduced to one number."""

    def total(self, rows: Array) -> Array:
        if not len(rows):
            return np.zeros(self.weights.size)
        return np.asarray(self.clipped(self.gradients(rows).mean(axis=0, keepdims=True))[0] * len(rows))


class ClipsEachNumber(FirstOrder):
    """A loop with a fault: each coordinate of a gradient is clipped to +-clip on its own, so that its norm may exceed
    the clip."""

    def clipped(self, gradients: Array) -> Array:
        return np.clip(gradients, -self.clip(), self.clip())


class ClipsEachLayer(FirstOrder):
    """A loop with a fault: the gradients of the two halves of the weights are each clipped to the whole clip, so
    together up to sqrt(2) times it."""

    def clipped(self, gradients: Array) -> Array:
        half = gradients.shape[1] // 2
        return np.hstack(
            [super(ClipsEachLayer, self).clipped(part) for part in (gradients[:, :half], gradients[:, half:])]
        )


class Standardises(FirstOrder):
    """A loop with a fault: features are centred by the mean over all records, without noise, so one record changes all
    contributions."""

    def prepared(self, records: Array) -> Array:
        rows = np.array(records, dtype=np.float64)
        rows[:, :-1] -= rows[:, :-1].mean(axis=0)
        return rows


class ClipFromData(FirstOrder):
    """A loop with a fault: the clip is the median of the batch's gradient norms, computed without noise."""

    def clipped(self, gradients: Array) -> Array:
        lengths = np.sqrt((gradients**2).sum(axis=1, keepdims=True))
        clip = float(np.quantile(lengths, 0.5)) if len(gradients) else 1.0
        return np.asarray(gradients * np.minimum(1.0, clip / np.maximum(lengths, 1e-300)))


class KeepsNaN(FirstOrder):
    """A loop with a fault: gradients that are NaN or infinite are not replaced before the sum, so one such record shows
    in the release."""

    def gradients(self, rows: Array) -> Array:
        features, labels = rows[:, :-1], rows[:, -1:]
        with np.errstate(all="ignore"):
            return np.asarray(-labels * features / (1 + np.exp(labels * (features @ self.weights)[:, None])))


class OneStepMore(FirstOrder):
    """A loop with a fault: one more step is made than is accounted for."""

    def steps(self) -> int:
        return super().steps() + 1
