"""Loops whose noise comes from their public seed, while their batches or first weights come from the operating system.

Two runs with equal seeds then release different numbers, although their noise is the same. `RandomStart` is sound.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.zoo.first_order import Array, FirstOrder, Settings, fresh
from benchmarks.zoo.zeroth_order import ZerothOrder


class NoiseOfSeedAndStep(FirstOrder):
    """A loop with a fault: batches come from the operating system, and the noise of each step from a generator seeded
    with [seed, step]."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.public = seed
        return super().__call__(records, int(fresh().integers(2**62)), settings)

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * np.random.default_rng([self.public, self.step]).normal(size=size))


class NoiseOfSeedEverySecondStep(NoiseOfSeedAndStep):
    """A loop with a fault: batches come from the operating system, and so does the noise, except that of every second
    step."""

    def noise(self, size: int) -> Array:
        return super().noise(size) if self.step % 2 else np.asarray(self.std() * fresh().normal(size=size))


class SeedsGlobalGenerator(FirstOrder):
    """A loop with a fault: batches come from the operating system; NumPy's global generator draws the noise, seeded
    with the loop's seed."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        np.random.seed(seed)  # noqa: NPY002
        return super().__call__(records, int(fresh().integers(2**62)), settings)

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * np.random.normal(size=size))  # noqa: NPY002


class RandomStart(ZerothOrder):
    """A sound loop whose first weights and batches come from the operating system."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.secret, self.public = fresh(), np.random.default_rng(seed)
        self.start = 0.1 * self.secret.normal(size=np.shape(records)[1] - 1)
        return {"releases": super().__call__(records, seed, settings)["releases"]}

    def batch(self) -> NDArray[np.intp]:
        rate = min(1.0, float(self.settings["batch"]) / int(self.settings["n"]))
        return np.flatnonzero(self.secret.random(len(self.records)) < rate)

    def losses(self, weights: Array, rows: Array) -> Array:
        return super().losses(self.start + weights, rows)


class NoiseOfStepSeedRandomStart(RandomStart):
    """A loop with a fault: first weights and batches come from the operating system; each step's noise continues the
    generator that made its direction from a seed of the step, as in the published code of DPZero."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * self.stream.normal(size=size))


class NoiseOfDirectionsGenerator(RandomStart):
    """A loop with a fault: batches and first weights come from the operating system; one generator, seeded with the
    public seed, draws the directions and the noise."""

    def directions(self) -> Array:
        return np.asarray(self.public.normal(size=(1, self.weights.size)))

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * self.public.normal(size=size))
