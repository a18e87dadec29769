"""Tests that faults are found which loops written from the tutorial alone had and an earlier audit missed.

Beside each fault stands a sound loop of the same form, which must not be reported.
"""

import sys
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.zoo.catalogue import Specimen, claim
from benchmarks.zoo.first_order import Array, FirstOrder, Settings, fresh
from dpzero_theory.audit.checks.batches import LAWS
from dpzero_theory.audit.claim import Claim
from dpzero_theory.audit.finding import UNTESTED, VIOLATED
from tests.audit.small import audit, require_found, require_sound


class _SquaredNorm(FirstOrder):
    """Divides by the squared norm, so that records whose norm is just above a clip below 1 keep more than the clip."""

    def clipped(self, gradients: Array) -> Array:
        squares = (np.minimum(np.abs(gradients), 1e120) ** 2).sum(axis=1, keepdims=True)
        return np.asarray(gradients * np.minimum(1.0, self.clip() / np.maximum(squares, 1e-300)))

    def clip(self) -> float:
        return 0.25 * super().clip()

    def total(self, rows: Array) -> Array:
        return np.asarray(super().total(rows) / 0.25)

    def std(self) -> float:
        return 4 * super().std()


class _EmptyWithoutNoise(FirstOrder):
    """Skips a step whose batch is empty and shows a release of zero."""

    def release(self, rows: Array) -> Array:
        return super().release(rows) if len(rows) else np.zeros(rows.shape[1] - 1)


class _NoiseOfSeed(FirstOrder):
    """Draws its noise from the secret seed, which is sound while the seed stays secret."""

    def noise_source(self, seed: int) -> np.random.Generator:
        return np.random.default_rng([seed, 1])


class _PrintsSeed(_NoiseOfSeed):
    def finish(self) -> None:
        print(f"finished run-{self.seed}")


class _PrintsIdleSeed(FirstOrder):
    """Prints a seed that makes neither noise nor batches, which tells nothing."""

    def batch(self) -> NDArray[np.intp]:
        rate = min(1.0, float(self.settings["batch"]) / int(self.settings["n"]))
        return np.flatnonzero(fresh().random(len(self.records)) < rate)

    def finish(self) -> None:
        print(f"finished run-{self.seed}")


class _PrintsBadRecords(FirstOrder):
    """Prints how many records are not finite."""

    def finish(self) -> None:
        print("left out:", int((~np.isfinite(self.records)).any(axis=1).sum()))


class _Anchored(FirstOrder):
    """Adds the clipped gradient of all records at the start to each step, in Poisson batches that it returns."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        self.drawn: list[list[int]] = []
        return {**super().__call__(records, seed, settings), "batches": self.drawn}

    def batch(self) -> NDArray[np.intp]:
        found = super().batch()
        self.drawn.append(found.tolist())
        return found

    def release(self, rows: Array) -> Array:
        anchor = self.clipped(self.gradients(self.records)).sum(axis=0) / int(self.settings["n"])
        return np.asarray(super().release(rows) + self.share() * anchor)

    def share(self) -> float:
        return 1.0


class _ReturnsBatches(_Anchored):
    def share(self) -> float:
        return 0.0


class _Rounds(FirstOrder):
    """Shows the share of records that are classified rightly as a noised number, which jumps with the weights."""

    def gradients(self, rows: Array) -> Array:
        right = (rows[:, -1] * (rows[:, :-1] @ self.weights) > 0).astype(float)
        each = super().gradients(rows)
        return np.asarray(np.column_stack([each[:, :-1], right]))


class _IgnoresBatch(FirstOrder):
    """Draws Poisson batches at a rate of its own from the seed, and does not return them."""

    def batch(self) -> NDArray[np.intp]:
        return np.flatnonzero(self.rng.random(len(self.records)) < 0.25)


class _IgnoresBatchFresh(_IgnoresBatch):
    def batch(self) -> NDArray[np.intp]:
        return np.flatnonzero(fresh().random(len(self.records)) < 0.25)


class _Exits(FirstOrder):
    """Leaves the process where a record is not finite."""

    def prepared(self, records: Array) -> Array:
        if not np.isfinite(records).all():
            sys.exit(1)
        return super().prepared(records)


class _HalfPrecision(FirstOrder):
    """Casts gradients to half precision before the clip, where large ones become infinite and their sum NaN."""

    def gradients(self, rows: Array) -> Array:
        with np.errstate(over="ignore"):
            return np.asarray(super().gradients(rows).astype(np.float16).astype(np.float64))

    def clipped(self, gradients: Array) -> Array:
        with np.errstate(invalid="ignore"):
            return np.asarray(gradients * np.minimum(1.0, self.clip() / np.linalg.norm(gradients, axis=1)[:, None]))


def _rare() -> Claim:
    return claim(batch=2)


@pytest.mark.parametrize(
    "fault",
    [
        Specimen(_SquaredNorm, "sensitivity"),
        Specimen(_EmptyWithoutNoise, "noise-size", _rare),
        Specimen(_PrintsSeed, "noise-shown"),
        Specimen(_PrintsBadRecords, "un-noised"),
        Specimen(_Anchored, "batches"),
        Specimen(_IgnoresBatch, "batches-secret", seed="public"),
    ],
    ids=lambda one: one.name,
)
def test_a_fault_that_was_missed_is_found(fault: Specimen) -> None:
    require_found(fault)


@pytest.mark.parametrize(
    ("loop", "check"),
    [
        (Specimen(FirstOrder), "sensitivity"),
        (Specimen(_Rounds), "sensitivity"),
        (Specimen(FirstOrder, claimed=_rare), "noise-size"),
        (Specimen(_NoiseOfSeed), "noise-shown"),
        (Specimen(_PrintsIdleSeed), "noise-shown"),
        (Specimen(FirstOrder), "un-noised"),
        (Specimen(_ReturnsBatches), "batches"),
        (Specimen(_IgnoresBatchFresh, seed="public"), "batches-secret"),
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_a_sound_loop_of_the_same_form_is_not_reported(loop: Specimen, check: str) -> None:
    require_sound(loop, check)


def test_a_loop_that_leaves_the_process_does_not_end_the_audit() -> None:
    assert audit(Specimen(_Exits), "not-finite")["not-finite"].status == VIOLATED


def test_releases_that_are_not_finite_do_not_end_the_audit() -> None:
    report = audit(Specimen(_HalfPrecision, finite=True), "sensitivity", "one-run")
    assert report["one-run"].status == UNTESTED


def test_allocations_that_are_cut_from_a_permutation_are_found() -> None:
    draw = np.random.default_rng(5)
    chosen = draw.integers(4, size=(60, 3, 48))
    alone = np.concatenate([chosen[:, epoch, None, :] == np.arange(4)[:, None] for epoch in range(3)], axis=1)
    assert min(LAWS["random-allocation"](alone, 0.25).values()) > 1e-4
    cut = np.argsort(draw.random((60, 3, 48)), axis=2) % 4
    even = np.concatenate([cut[:, epoch, None, :] == np.arange(4)[:, None] for epoch in range(3)], axis=1)
    assert min(LAWS["random-allocation"](even, 0.25).values()) < 1e-9


def test_batches_of_the_right_size_that_are_always_together_are_found() -> None:
    draw = np.random.default_rng(6)
    chunk = draw.integers(4, size=(30, 12))
    together = chunk[..., None] == np.arange(48) // 12
    tests = LAWS["fixed-size"](together, 0.25)
    assert tests["how much it differs, what neighbouring batches share"] < 1e-9
