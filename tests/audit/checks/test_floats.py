"""Tests of the audit's checks of rounding and of noise on a lattice; loops with faults are tested in `test_zoo`."""

import numpy as np
import pytest

from benchmarks.zoo.catalogue import Specimen
from benchmarks.zoo.first_order import Array, FirstOrder
from benchmarks.zoo.noise import brain
from tests.audit.small import audit, require_sound


class _Rounds(FirstOrder):
    """A sound loop whose releases are rounded to bfloat16 after the noise is added."""

    def release(self, rows: Array) -> Array:
        return brain(super().release(rows))


class _SinglePrecision(FirstOrder):
    """A sound loop whose sums and noise are computed in single precision."""

    def release(self, rows: Array) -> Array:
        total = self.total(rows).astype(np.float32)
        noisy = total + np.float32(self.std()) * self.source.normal(size=total.size).astype(np.float32)
        return np.asarray(noisy / np.float32(self.denominator(rows)))


class _Lattice(FirstOrder):
    """A sound loop whose sums and noise are integer multiples of 2^-30.

    Half of both are therefore also multiples of 2^-29.
    """

    def release(self, rows: Array) -> Array:
        total = np.rint(self.clipped(self.gradients(rows)) * 2**30).sum(axis=0)
        return np.asarray((total + np.rint(2**30 * self.noise(total.size))) / 2**30 / self.denominator(rows))


@pytest.mark.parametrize("make", [_Rounds, _SinglePrecision, _Lattice])
def test_sound_loops_of_less_precision_are_not_reported(make: type[FirstOrder]) -> None:
    require_sound(Specimen(make), "representable", "noise-repeated", "noise-law", "noise-size", runs=100)


class _CoarseNoise(_Lattice):
    """A faulty loop whose noise is on a lattice four times as coarse as the sums."""

    def noise(self, size: int) -> Array:
        return np.asarray(np.rint(super().noise(size) * 2**28) / 2**28)


def test_noise_on_a_coarser_lattice_than_the_sums_is_reported() -> None:
    assert audit(Specimen(_CoarseNoise), "representable").violations == ["representable"]
