"""Loops with faults that an earlier version of the audit missed.

They make choices by looking at the data, show the noise or its generator, or have noise that depends on the batch.
"""

import hashlib
import json
import random
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.zoo.first_order import Array, FirstOrder, Settings, fresh
from benchmarks.zoo.zeroth_order import ZerothOrder


class _WatchesLoss(FirstOrder):
    """The base class of loops that look at the training loss. Its method `loss` returns the mean training loss, without
    noise, at the current weights or at given ones."""

    def loss(self, weights: Array | None = None) -> float:
        kept, self.weights = self.weights, self.weights if weights is None else weights
        found = float(np.minimum(self.losses(), 1e9).mean())
        self.weights = kept
        return found


class PicksBestRun(_WatchesLoss):
    """A loop with a fault: two runs are made, and the one with the smaller training loss is released and accounted for
    as one run."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        tried = []
        for _ in range(2):
            released = super().__call__(records, seed, settings)
            tried.append((self.loss(), released))
        return min(tried, key=lambda pair: pair[0])[1]


class RedrawsWhenWorse(_WatchesLoss):
    """A loop with a fault: a step's noise is drawn again, at most four times, while the step raises the training
    loss."""

    def release(self, rows: Array) -> Array:
        before = self.loss()
        for _ in range(5):
            found = super().release(rows)
            if self.loss(self.weights - float(self.settings["step_size"]) * found) <= before:
                break
        return found


class SchedulesByLoss(_WatchesLoss):
    """A loop with a fault: a step-size factor, halved at each step whose exact training loss is not below that of all
    steps before, is printed at every step."""

    def stops(self) -> bool:
        loss = self.loss()
        if self.step == 0:
            self.rate, self.best = 1.0, np.inf
        self.rate /= 1 if loss < self.best else 2
        self.best = min(self.best, loss)
        print("rate", self.rate)
        return False


class SkipsLargeSums(FirstOrder):
    """A loop with a fault: a step whose sum before noise is large is skipped and releases zeros."""

    def release(self, rows: Array) -> Array:
        large = float(np.linalg.norm(self.total(rows))) > 0.6 * self.clip() * len(rows)
        return np.zeros(self.weights.size) if large else super().release(rows)


class SavesGenerator(FirstOrder):
    """A loop with a fault: the checkpoint contains the state of the random generator that draws the noise, so that a
    run can be resumed."""

    def finish(self) -> None:
        Path("generator.json").write_text(json.dumps(self.source.bit_generator.state))


class PrintsNoise(ZerothOrder):
    """A loop with a fault: a debugging line shows the noise of every step."""

    def noise(self, size: int) -> Array:
        found = super().noise(size)
        print(f"step {self.step}: noise {found[0]:.4f}")
        return found


class PrintsSeedOfNoise(FirstOrder):
    """A loop with a fault: the noise is drawn from a seed that comes from the operating system, but the seed is
    printed."""

    def noise_source(self, seed: int) -> np.random.Generator:
        number = int(fresh().integers(2**62))
        print("seed of the noise:", number)
        return np.random.default_rng(number)


class NoisePerRecord(FirstOrder):
    """A loop with a fault: the noise's variance is in proportion to the number of records drawn, so that small batches
    have less noise."""

    def noise(self, size: int) -> Array:
        return np.asarray(super().noise(size) * np.sqrt(self.drawn / float(self.settings["batch"])))

    def release(self, rows: Array) -> Array:
        self.drawn = len(rows)
        return super().release(rows)


class CapsBatches(FirstOrder):
    """A loop with a fault: Poisson batches are cut to a largest size, as if memory were short, and still accounted for
    as Poisson."""

    def batch(self) -> NDArray[np.intp]:
        drawn = super().batch()
        return np.sort(self.rng.permutation(drawn)[: int(self.settings["batch"]) + 2])


class RedrawsSmallBatches(FirstOrder):
    """A loop with a fault: a Poisson batch with less than two thirds of the expected records is drawn again, at most
    nine times."""

    def batch(self) -> NDArray[np.intp]:
        for _ in range(10):
            if len(found := super().batch()) >= float(self.settings["batch"]) * 2 / 3:
                break
        return found


class MeanLossBeforeClip(FirstOrder):
    """A loop with a fault: the gradients of the batch's mean loss are clipped, so each is divided by the number of
    records drawn before it is clipped."""

    def gradients(self, rows: Array) -> Array:
        return super().gradients(rows) / max(1, len(rows))


class MomentumBeforeNoise(FirstOrder):
    """A loop with a fault: momentum is applied to the sums before noise, so a record's contributions to earlier steps
    add up in a sum."""

    kept: Array

    def total(self, rows: Array) -> Array:
        self.kept = super().total(rows) + (0.9 * self.kept if self.step else 0.0)
        return np.asarray(self.kept)


class DrawsWithReplacement(FirstOrder):
    """A loop with a fault: a batch may contain a record more than once."""

    def batch(self) -> NDArray[np.intp]:
        return np.sort(self.rng.integers(0, len(self.records), int(self.settings["batch"])))


class AlwaysTheFirst(FirstOrder):
    """A loop with a fault: the first record is in every batch; the others are in Poisson batches."""

    def batch(self) -> NDArray[np.intp]:
        return np.union1d(super().batch(), [0])


class WritesDatabase(FirstOrder):
    """A loop with a fault: the final training loss, without noise, is written into a database file."""

    def finish(self) -> None:
        with closing(sqlite3.connect("metrics.db")) as base:
            base.execute("create table metrics (loss real)")
            base.execute("insert into metrics values (?)", (float(np.minimum(self.losses(), 1e6).mean()),))
            base.commit()


class WarnsOfLoss(FirstOrder):
    """A loop with a fault: a Python warning in every step states the training loss, without noise."""

    def release(self, rows: Array) -> Array:
        warnings.warn(f"loss {np.minimum(self.losses(), 1e6).mean():.4f}", stacklevel=1)
        return super().release(rows)


class NoiseOfHashedSeed(ZerothOrder):
    """A loop with a fault: the noise is drawn from a hash of the direction's published seed."""

    def noise(self, size: int) -> Array:
        digest = hashlib.sha256(str(self.direction_seed).encode()).digest()
        return np.asarray(self.std() * np.random.default_rng(int.from_bytes(digest[:8], "big")).normal(size=size))


class NoiseOfPythonsGenerator(ZerothOrder):
    """A loop with a fault: Python's own generator draws the noise from the direction's published seed."""

    def noise(self, size: int) -> Array:
        generator = random.Random(self.direction_seed)
        return np.array([self.std() * generator.gauss(0.0, 1.0) for _ in range(size)])


class NoiseOfMovedSeed(ZerothOrder):
    """A loop with a fault: torch draws the noise from the direction's published seed plus a constant."""

    def noise(self, size: int) -> Array:
        generator = torch.Generator().manual_seed(self.direction_seed + 104_729)
        return np.asarray(self.std() * torch.randn(size, generator=generator, dtype=torch.float64).numpy())


class NoiseOfTurnedSeed(ZerothOrder):
    """A loop with a fault: the noise is drawn from the direction's published seed with some of its bits flipped."""

    def noise(self, size: int) -> Array:
        return np.asarray(self.std() * np.random.default_rng(self.direction_seed ^ 0xDEADBEEF).normal(size=size))
