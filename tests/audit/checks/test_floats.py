"""Rounding, and noise on a lattice. Faults of the zoo are in `test_zoo`."""

import numpy as np
import pytest

from benchmarks.zoo.catalogue import Specimen
from benchmarks.zoo.first_order import Array, FirstOrder
from benchmarks.zoo.noise import brain
from tests.audit.small import audit, require_sound


class _Rounds(FirstOrder):
    """Sound: releases are rounded to bfloat16 after the noise."""

    def release(self, rows: Array) -> Array:
        return brain(super().release(rows))


class _SinglePrecision(FirstOrder):
    """Sound: sums and noise of single precision."""

    def release(self, rows: Array) -> Array:
        total = self.total(rows).astype(np.float32)
        noisy = total + np.float32(self.std()) * self.source.normal(size=total.size).astype(np.float32)
        return np.asarray(noisy / np.float32(self.denominator(rows)))


class _Lattice(FirstOrder):
    """Sound: integers of a fine lattice, sums and noise alike, so that half of both is on one twice as coarse."""

    def release(self, rows: Array) -> Array:
        total = np.rint(self.clipped(self.gradients(rows)) * 2**30).sum(axis=0)
        return np.asarray((total + np.rint(2**30 * self.noise(total.size))) / 2**30 / self.denominator(rows))


@pytest.mark.parametrize("make", [_Rounds, _SinglePrecision, _Lattice])
def test_sound_loops_of_less_precision_are_not_reported(make: type[FirstOrder]) -> None:
    require_sound(Specimen(make), "representable", "noise-repeated", "noise-law", "noise-size", runs=100)


class _CoarseNoise(_Lattice):
    """The noise is on a lattice four times as coarse as the sums."""

    def noise(self, size: int) -> Array:
        return np.asarray(np.rint(super().noise(size) * 2**28) / 2**28)


def test_noise_on_a_coarser_lattice_than_the_sums_is_reported() -> None:
    assert audit(Specimen(_CoarseNoise), "representable").violations == ["representable"]
