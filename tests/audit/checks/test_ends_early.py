"""Tests of audits of loops that end early, or that refuse what the audit asks of them."""

from typing import Any

import numpy as np
import pytest

from benchmarks.zoo.catalogue import Specimen
from benchmarks.zoo.first_order import Array, FirstOrder
from benchmarks.zoo.sound import StopsByNoisedCount
from dpzero_theory.audit.finding import UNTESTED
from tests.audit.small import audit


class _FromOnes(StopsByNoisedCount):
    """A sound loop that ends early and starts at weights other than zero, so that a record can move its end."""

    def batch(self) -> Any:
        if self.step == 0:
            self.weights = np.full(self.weights.size, 0.2)
        return super().batch()


@pytest.mark.parametrize("make", [StopsByNoisedCount, _FromOnes])
@pytest.mark.parametrize("repeat", range(3))
def test_a_loop_that_ends_by_what_it_paid_for_is_sound(make: type[FirstOrder], repeat: int) -> None:
    report = audit(Specimen(make), repeat=repeat)
    assert not report.violations
    assert not report.untested_of(["core"])


class _StopsAtNaN(FirstOrder):
    """A loop with a fault: it ends without a word when a batch has a record with NaN."""

    def stops(self) -> bool:
        return bool(np.isnan(self.records).any())


class _KeepsNaNAndStops(StopsByNoisedCount):
    """A loop with a fault: it ends early by a count, and NaN goes through."""

    def release(self, rows: Array) -> Array:
        return super().release(rows) * (np.nan if np.isnan(rows).any() else 1.0)


@pytest.mark.parametrize("make", [_StopsAtNaN, _KeepsNaNAndStops])
def test_an_end_by_a_record_with_nan_is_found(make: type[FirstOrder]) -> None:
    assert audit(Specimen(make), "not-finite").violations == ["not-finite"]


class _OneSize(FirstOrder):
    """A sound loop that refuses batches of another size than its own."""

    def batch(self) -> Any:
        if self.settings["batch"] == self.settings["n"]:
            raise ValueError("batch must be smaller than n")
        return super().batch()


def test_a_loop_that_refuses_whole_batches_is_not_accused_of_refusing_nan() -> None:
    report = audit(Specimen(_OneSize), "not-finite", "sensitivity")
    assert not report.violations
    assert report["not-finite"].status == UNTESTED
