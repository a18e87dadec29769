"""Tests that kinds of faults are found which loops of a second stranger had and the audit missed.

Beside each fault stands its nearest sound neighbour, which must not be reported.
"""

import secrets
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.zoo.catalogue import Specimen, claim
from benchmarks.zoo.first_order import Array, FirstOrder, Settings, fresh
from benchmarks.zoo.sound import CorrelatedNoise
from benchmarks.zoo.zeroth_order import ZerothOrder
from tests.audit.small import audit, require_found, require_sound


class _SystemBatches(FirstOrder):
    """Draws its batches from the operating system."""

    def batch(self) -> NDArray[np.intp]:
        rate = min(1.0, float(self.settings["batch"]) / int(self.settings["n"]))
        return np.flatnonzero(fresh().random(len(self.records)) < rate)


class _SmallSeedInside(_SystemBatches):
    """Draws 16 random bits from the operating system and seeds the noise's generator with them."""

    def noise_source(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(secrets.randbits(16))


class _SmallSeedOfGenerator(_SystemBatches):
    """Seeds the noise's generator with a number below 65,536 that another generator, with a whole key, draws."""

    def noise_source(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(int(fresh().integers(2**16)))


class _LargeSeedInside(_SystemBatches):
    def noise_source(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(secrets.randbits(64))


class _SmallSeedOfOther(_SystemBatches):
    """Draws what it shows, and no noise, with a seed of 16 bits."""

    def finish(self) -> None:
        self.outputs["shuffle"] = np.random.default_rng(secrets.randbits(16)).permutation(9)


class _MadeOnce(_SystemBatches):
    """Draws its noise from a generator that is made once, when the program starts, from a seed in its code."""

    GENERATOR = np.random.default_rng(1234)

    def noise_source(self, seed: int) -> np.random.Generator:
        return self.GENERATOR


class _MadeOnceFromTheSystem(_MadeOnce):
    GENERATOR = np.random.default_rng()


class _ShowsDirections(ZerothOrder):
    """Draws directions and noise from one key, and shows the directions in place of their seeds."""

    LATER = 0

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        steps = int(settings["steps"])
        self.drawn = fresh().normal(size=(steps, records.shape[1] - 1))
        outputs = super().__call__(records, seed, settings)
        return {"releases": outputs["releases"], "directions": self.drawn}

    def directions(self) -> Array:
        return np.asarray(self.drawn[self.step][None])

    def noise(self, size: int) -> Array:
        if not self.LATER:
            return np.asarray(super().noise(size))
        later = self.drawn[(self.step + self.LATER) % len(self.drawn)]
        return np.asarray(self.std() * later[:1])


class _NoiseOfLaterDirection(_ShowsDirections):
    LATER = 1


class _NoiseOfLaterPath(_ShowsDirections):
    """Its noise is a later step's direction, which is seen in the path of the weights alone."""

    LATER = 2

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.path: list[Array] = []
        outputs = super().__call__(records, seed, settings)
        return {"releases": outputs["releases"], "weights": np.array([*self.path, self.weights])}

    def batch(self) -> NDArray[np.intp]:
        self.path.append(self.weights)
        return super().batch()


class _ShowsPath(_NoiseOfLaterPath):
    LATER = 0


class _NoiseOverAll(_SystemBatches):
    """Divides the noise by n, and the sum by the expected batch, so that with batch = n all is right."""

    def release(self, rows: Array) -> Array:
        total = self.total(rows)
        return np.asarray(total / self.denominator(rows) + self.noise(total.size) / int(self.settings["n"]))


class _Retries(FirstOrder):
    """Makes its third step twice, as after a crash, and writes both to its log."""

    NEW = True

    def release(self, rows: Array) -> Array:
        found = super().release(rows)
        if self.step == 2:
            print("crashed at", *found.tolist())
            found = super().release(rows) if self.NEW else found
        return found


class _ReadsAgain(_Retries):
    """Reads the released step again after a crash, and pays nothing for it."""

    NEW = False


class _Workers(FirstOrder):
    """Three workers each add a third of the noise's variance to their part of the sum, and show the parts."""

    SHOWN = True

    def release(self, rows: Array) -> Array:
        parts = [
            self.total(part) + self.noise(rows.shape[1] - 1) / np.sqrt(3) for part in np.array_split(rows, 3, axis=0)
        ]
        if self.SHOWN:
            self.outputs.setdefault("workers", []).append(np.array(parts) / self.denominator(rows))
        return np.asarray(sum(parts) / self.denominator(rows))


class _HiddenWorkers(_Workers):
    SHOWN = False


class _BestOfThree(FirstOrder):
    """Makes three runs in single precision and releases the one with the smallest loss, computed without noise."""

    CLEAN = True

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        tried = []
        for _ in range(3):
            released = super().__call__(records, seed, settings)
            kept, self.weights = self.weights, self.weights.astype(np.float32).astype(np.float64)
            loss = np.float32(np.minimum(self.losses(), 1e9).mean()) if self.CLEAN else fresh().random()
            self.weights = kept
            tried.append((float(loss), released))
        return min(tried, key=lambda pair: pair[0])[1]


class _AnyOfThree(_BestOfThree):
    """Releases one of three runs that chance alone chooses."""

    CLEAN = False


class _Raises(FirstOrder):
    """Raises an error where a record is not finite."""

    def prepared(self, records: Array) -> Array:
        if not np.isfinite(records).all():
            raise ValueError(f"record {int(np.flatnonzero(~np.isfinite(records).all(axis=1))[0])} is not finite")
        return super().prepared(records)


class _SloppyClip(FirstOrder):
    """Maps gradients that are NaN to zero, and multiplies infinite ones by clip / infinity, which gives NaN."""

    def gradients(self, rows: Array) -> Array:
        with np.errstate(all="ignore"):
            found = (rows[:, :-1] @ self.weights - rows[:, -1])[:, None] * rows[:, :-1]
        return np.where(np.isnan(found).any(axis=1, keepdims=True), 0.0, found)

    def clipped(self, gradients: Array) -> Array:
        with np.errstate(all="ignore"):
            lengths = np.sqrt((gradients**2).sum(axis=1, keepdims=True))
            return np.asarray(gradients * np.minimum(1.0, self.clip() / np.maximum(lengths, 1e-300)))


class _CarefulClip(_SloppyClip):
    def clipped(self, gradients: Array) -> Array:
        return super().clipped(np.where(np.isfinite(gradients).all(axis=1, keepdims=True), gradients, 0.0))


class _CountsFinite(FirstOrder):
    """Divides by the number of records that are finite, of all n."""

    def gradients(self, rows: Array) -> Array:
        return super().gradients(np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0))

    def denominator(self, rows: Array) -> float:
        return float(np.isfinite(rows).all(axis=1).sum()) if len(rows) else 1.0


class _CountsAll(_CountsFinite):
    def denominator(self, rows: Array) -> float:
        return float(self.settings["n"])


class _Snapshot(ZerothOrder):
    """Zeroth-order SVRG: adds the difference of all records at a snapshot of the weights, without noise or pay."""

    ANCHOR = 1.0

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.snapshot = np.zeros(records.shape[1] - 1)
        return super().__call__(records, seed, settings)

    def differences(self, rows: Array, directions: Array) -> Array:
        here, kept = super().differences(rows, directions), self.weights
        self.weights = self.snapshot
        there = super().differences(rows, directions)
        self.weights = kept
        self.anchor = self.clipped(there).sum(axis=0)
        return here - there if self.ANCHOR else here

    def release(self, rows: Array, directions: Array) -> Array:
        found = super().release(rows, directions)
        return np.asarray(found + self.ANCHOR * self.anchor / float(self.settings["batch"]))


class _NoSnapshot(_Snapshot):
    ANCHOR = 0.0


class _SnapshotInWeights(_Snapshot):
    """Zeroth-order SVRG that moves its weights by the snapshot's difference too, and does not release it."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        return {**super().__call__(records, seed, settings), "weights": self.weights}

    def release(self, rows: Array, directions: Array) -> Array:
        found = ZerothOrder.release(self, rows, directions)
        step = float(self.settings["step_size"]) / float(self.settings["batch"])
        self.weights = self.weights - step * self.anchor @ directions
        return found


class _Throughput(FirstOrder):
    """Prints how many records it handles in a second, by a clock."""

    SIZED = True

    def release(self, rows: Array) -> Array:
        import time

        begun = time.perf_counter()
        found = super().release(rows)
        count = len(rows) if self.SIZED else float(self.settings["batch"])
        print(f"{count / max(time.perf_counter() - begun, 1e-9):.1f} records a second")
        return found


class _ThroughputOfExpected(_Throughput):
    SIZED = False


class _OwnStepSize(CorrelatedNoise):
    """Correlated noise whose later sums follow weights that earlier noise moved, with a step size of its own."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        return super().__call__(records, seed, {**settings, "step_size": 0.5})


def _fixed() -> Any:
    return claim("fixed-size", "replace-one")


def _full() -> Any:
    return claim("full", "replace-one")


def _full_removed() -> Any:
    return claim("full", "add-remove")


def _one_step() -> Any:
    return claim("full", steps=1)


FAULTY = [
    Specimen(_SmallSeedInside, "noise-fixed", seed="public"),
    Specimen(_SmallSeedOfGenerator, "noise-fixed", seed="public"),
    Specimen(_MadeOnce, "noise-fixed", seed="public"),
    Specimen(_NoiseOfLaterDirection, "noise-from-directions"),
    Specimen(_NoiseOfLaterPath, "noise-from-directions"),
    Specimen(_NoiseOverAll, "noise-size"),
    Specimen(_Retries, "unaccounted"),
    Specimen(_Workers, "unaccounted"),
    Specimen(_BestOfThree, "sensitivity"),
    Specimen(_BestOfThree, "sensitivity", claimed=_full),
    Specimen(_Raises, "not-finite"),
    Specimen(_SloppyClip, "not-finite"),
    Specimen(_CountsFinite, "denominator", claimed=_full),
    Specimen(_CountsFinite, "denominator", claimed=_full_removed),
    Specimen(_Snapshot, "sensitivity", claimed=_full, settings={"step_size": 1.0}),
    Specimen(_SnapshotInWeights, "unaccounted", claimed=_full),
    Specimen(_Throughput, "un-noised"),
]
SOUND = [
    (Specimen(_LargeSeedInside, seed="public"), "noise-fixed"),
    (Specimen(_MadeOnceFromTheSystem, seed="public"), "noise-fixed"),
    (Specimen(_SmallSeedOfOther, seed="public"), "noise-fixed"),
    (Specimen(_ShowsDirections), "noise-from-directions"),
    (Specimen(_ShowsPath), "noise-from-directions"),
    (Specimen(_SystemBatches), "noise-size"),
    (Specimen(_ReadsAgain), "unaccounted"),
    (Specimen(_HiddenWorkers), "unaccounted"),
    (Specimen(_AnyOfThree), "sensitivity"),
    (Specimen(_CarefulClip), "not-finite"),
    (Specimen(_CountsAll, claimed=_full), "denominator"),
    (Specimen(_NoSnapshot, claimed=_full, settings={"step_size": 1.0}), "sensitivity"),
    (Specimen(_NoSnapshot, claimed=_full), "unaccounted"),
    (Specimen(_ThroughputOfExpected), "un-noised"),
]


@pytest.mark.parametrize("fault", FAULTY, ids=lambda one: f"{one.name}-{one.claimed.__name__}")
def test_a_fault_of_a_kind_that_was_missed_is_found(fault: Specimen) -> None:
    require_found(fault)


@pytest.mark.parametrize(("loop", "check"), SOUND, ids=lambda one: getattr(one, "name", one))
def test_its_sound_neighbour_is_not_reported(loop: Specimen, check: str) -> None:
    require_sound(loop, check)


def test_a_loop_that_follows_its_own_noise_in_one_release_is_not_accused() -> None:
    report = audit(Specimen(_OwnStepSize, claimed=_one_step))
    assert report.violations == [], report.text()
