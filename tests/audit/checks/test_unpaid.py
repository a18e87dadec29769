"""Faults of the zoo that these checks must find are found; sound loops are not reported. All: benchmarks.audit_zoo."""

import time
from typing import Any

import numpy as np
import pytest

from benchmarks.zoo.catalogue import Specimen
from benchmarks.zoo.first_order import FirstOrder
from tests.audit.small import FEW, named, require_found, require_sound

NAMES = ("unaccounted",)


@pytest.mark.parametrize(
    "specimen", named("ShowsNoisyCounts", "ReleasesTwice", "SaysDiverged"), ids=lambda specimen: specimen.name
)
def test_faults_are_found(specimen: Specimen) -> None:
    require_found(specimen, runs=120)


@pytest.mark.parametrize("specimen", FEW, ids=lambda specimen: specimen.name)
def test_sound_loops_are_not_reported(specimen: Specimen) -> None:
    require_sound(specimen, *NAMES)


class _PostProcesses(FirstOrder):
    """Sound: shows the weights, the largest release by its place, a word, and releases with more noise."""

    def finish(self) -> None:
        print("up" if self.weights[0] > 0 else "down", int(np.argmax(self.weights)))
        self.outputs["weights"] = self.weights
        self.outputs["random"] = self.source.normal(size=7)

    def release(self, rows: Any) -> Any:
        found = super().release(rows)
        self.outputs.setdefault("noisier", []).append(found + 0.1 * self.source.normal(size=found.size))
        return found


def test_what_is_computed_from_releases_is_not_reported() -> None:
    require_sound(Specimen(_PostProcesses), "unaccounted", "un-noised", runs=120)


class _ShowsTheTime(FirstOrder):
    """Sound: the clock, and how many runs there were."""

    runs = 0

    def finish(self) -> None:
        self.runs += 1
        print(time.time(), time.perf_counter(), self.runs)


def test_clocks_and_counters_are_not_reported() -> None:
    require_sound(Specimen(_ShowsTheTime), "unaccounted", "un-noised", runs=60)
