"""Tests that outputs computed from releases alone are not reported as further releases.

Loops with faults are tested in `test_zoo`.
"""

import time
from typing import Any

import numpy as np

from benchmarks.zoo.catalogue import Specimen
from benchmarks.zoo.first_order import FirstOrder
from tests.audit.small import require_sound


class _PostProcesses(FirstOrder):
    """A sound loop whose further outputs are all computed from the releases, or are random.

    It shows the weights, the index of the largest one, a word, and the releases with more noise.
    """

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
    """A sound loop that prints the clock and how many runs there were."""

    runs = 0

    def finish(self) -> None:
        self.runs += 1
        print(time.time(), time.perf_counter(), self.runs)


def test_clocks_and_counters_are_not_reported() -> None:
    require_sound(Specimen(_ShowsTheTime), "unaccounted", "un-noised", runs=60)
