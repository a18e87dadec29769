"""Private zeroth-order training in a few lines: a sound loop, and loops with one fault each.

Each step releases the noised sum, over the batch, of clipped differences of losses along K public random directions.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo.first_order import fresh

Array = NDArray[np.float64]
Settings = dict[str, Any]


class ZerothOrder:
    """A sound loop of private zeroth-order training: Poisson batches drawn from the secret seed, directions from
    published seeds, noise from the operating system. Subclasses override single methods.

    The setting `directions` is K, the number of directions a step, 1 by default.
    """

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.records, self.settings = np.asarray(records, dtype=np.float64), settings
        self.rng, self.source = np.random.default_rng(seed), fresh()
        self.weights = np.zeros(self.records.shape[1] - 1)
        releases, seeds = [], []
        for step in range(self.steps()):
            self.step, self.direction_seed = step, int(self.rng.integers(2**31))
            batch, directions = self.batch(), self.directions()
            releases.append(self.release(self.records[batch], directions))
            seeds.append(self.direction_seed)
            self.weights = self.weights - float(settings["step_size"]) * releases[-1] @ directions
        return {"releases": np.array(releases), "seeds": seeds}

    def steps(self) -> int:
        return int(self.settings["steps"])

    def batch(self) -> NDArray[np.intp]:
        rate = min(1.0, float(self.settings["batch"]) / int(self.settings["n"]))
        return np.flatnonzero(self.rng.random(len(self.records)) < rate)

    def directions(self) -> Array:
        """Draw the K directions of a step from its published seed, and return them, shape (K, d)."""
        self.stream = np.random.default_rng(self.direction_seed)
        return np.asarray(self.stream.normal(size=(int(self.settings.get("directions", 1)), self.weights.size)))

    def losses(self, weights: Array, rows: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(np.logaddexp(0, -rows[:, -1] * (rows[:, :-1] @ weights)))

    def differences(self, rows: Array, directions: Array) -> Array:
        """Return each record's finite difference of losses (f(x + h u) - f(x - h u))/(2 h) along each of K directions
        u, shape (records, K). Here x are the weights and h is the smoothing."""
        smoothing = float(self.settings.get("smoothing", 1e-4))
        with np.errstate(all="ignore"):
            columns = [
                (self.losses(self.weights + smoothing * u, rows) - self.losses(self.weights - smoothing * u, rows))
                / (2 * smoothing)
                for u in directions
            ]
        return np.asarray(np.nan_to_num(np.stack(columns, axis=1), nan=0.0, posinf=1e100, neginf=-1e100))

    def clipped(self, differences: Array) -> Array:
        """Scale the K numbers of each record to L2 norm at most the clip, and return them, shape (records, K)."""
        lengths = np.sqrt((np.minimum(np.abs(differences), 1e120) ** 2).sum(axis=1, keepdims=True))
        return np.asarray(differences * np.minimum(1.0, float(self.settings["clip"]) / np.maximum(lengths, 1e-300)))

    def std(self) -> float:
        return float(self.settings["noise_multiplier"]) * float(self.settings["clip"])

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * self.source.normal(size=size))

    def release(self, rows: Array, directions: Array) -> Array:
        total = self.clipped(self.differences(rows, directions)).sum(axis=0)
        return np.asarray((total + self.noise(total.size)) / float(self.settings["batch"]))


class NoiseOfDirection(ZerothOrder):
    """A loop with a fault: the noise is the first draw of a generator seeded with the direction's public seed."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * np.random.default_rng(self.direction_seed).normal(size=size))


class NoiseContinues(ZerothOrder):
    """A loop with a fault: the noise is drawn from the generator that made the public direction, right after it."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * self.stream.normal(size=size))


class ReducedLosses(ZerothOrder):
    """A loop with a fault: the differences are averaged over the batch before they are clipped, so one record can
    change all of the sum."""

    def clipped(self, differences: Array) -> Array:
        if not len(differences):
            return differences
        return np.repeat(super().clipped(differences.mean(axis=0, keepdims=True)), len(differences), axis=0)


class EachDirection(ZerothOrder):
    """A loop with a fault: the differences along the K directions of a step are clipped one by one, but accounted for
    as one release of one clip."""

    def clipped(self, differences: Array) -> Array:
        return np.clip(differences, -float(self.settings["clip"]), float(self.settings["clip"]))


class EmptyBatchSilent(ZerothOrder):
    """A loop with a fault: a step whose batch is empty releases exactly 0, without noise."""

    def noise(self, size: int) -> Array:
        return super().noise(size) if self.size else np.zeros(size)

    def release(self, rows: Array, directions: Array) -> Array:
        self.size = len(rows)
        return super().release(rows, directions)


class DirectionFromData(ZerothOrder):
    """A loop with a fault: the published direction is chosen among two by looking at the data, without noise."""

    def directions(self) -> Array:
        self.direction_seed = 2 * (self.direction_seed // 2)
        found = super().directions()
        if self.differences(self.records, found).clip(-1, 1).sum() > 0:
            self.direction_seed += 1
            found = super().directions()
        return found


class LastBatchPartial(ZerothOrder):
    """A loop with a fault: epochs go through the records in order. The last batch is smaller, and its sum is divided by
    the smaller number of records but its noise by that of a full batch."""

    def batch(self) -> NDArray[np.intp]:
        n, size = len(self.records), int(self.settings["batch"])
        steps = -(-n // size)
        place = self.step % steps
        return np.arange(place * size, min((place + 1) * size, n))

    def release(self, rows: Array, directions: Array) -> Array:
        total = self.clipped(self.differences(rows, directions)).sum(axis=0)
        return np.asarray(total / max(1, len(rows)) + self.noise(total.size) / float(self.settings["batch"]))
