"""Tests that outputs computed from releases alone are not reported as further releases.

Loops with faults are tested in `test_zoo`.
"""

import time
from typing import Any

import numpy as np

from benchmarks.zoo.catalogue import Specimen
from benchmarks.zoo.first_order import FirstOrder
from dpzero_theory.audit.checks.unpaid import _is_second
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


def _averaged(values: Any) -> Any:
    """Returns exponential averages of the releases up to each step.

    `values` has the shape (runs, steps, numbers of a step). The newest release has weight 0.01, and the average is
    divided by the sum of the weights.
    """
    steps = np.arange(values.shape[1])
    weights = np.tril(0.99 ** (steps[:, None] - steps))
    return np.einsum("ts,rsk->rtk", weights / weights.sum(axis=1, keepdims=True), values)


def test_averages_of_many_releases_are_no_second_releases() -> None:
    """Averages of many releases are not reported as a second release of the sums.

    Their noise has a correlation of only 0.14 with that of the releases at the same steps.
    """
    draw, sums = np.random.default_rng(3), np.ones((32, 300, 2))
    noise, other = draw.normal(size=(2, *sums.shape))
    assert not _is_second(_averaged(noise), sums, noise, sums, 0.3)
    assert not _is_second(noise + other, sums, noise, sums, 0.3)
    assert _is_second(other, sums, noise, sums, 0.5)
