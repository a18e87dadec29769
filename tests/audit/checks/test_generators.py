"""Tests that the audit finds noise in a loop's outputs, and nothing in outputs that only look like noise.

Loops with other faults are tested in `test_zoo`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.zoo.catalogue import Specimen
from benchmarks.zoo.first_order import Array, FirstOrder, fresh
from dpzero_theory.audit.checks.generators import shown
from dpzero_theory.audit.loop import LoopOutput
from tests.audit.small import audit


def _torch_state() -> None:
    torch.save({"generator": torch.Generator().manual_seed(int(fresh().integers(2**31))).get_state()}, "last.pt")


def _legacy_state() -> None:
    state = np.random.RandomState(int(fresh().integers(2**31))).get_state(legacy=False)
    Path("state.txt").write_text(repr(state))


def _finishing(what: Callable[[], Any]) -> Specimen:
    class _Loop(FirstOrder):
        def finish(self) -> None:
            what()

    return Specimen(_Loop)


@pytest.mark.parametrize("saved", [_torch_state, _legacy_state])
def test_states_of_other_libraries_are_found(saved: Callable[[], None]) -> None:
    assert audit(_finishing(saved), "noise-shown").violations == ["noise-shown"]


def _public_state() -> None:
    Path("generator.json").write_text(json.dumps(np.random.default_rng(7).bit_generator.state))


def _new_numbers() -> None:
    print("run", int(fresh().integers(2**50)), "of", 123456789)


def _large_numbers_and_digests() -> None:
    print("run", 10**19 + int(fresh().integers(2**50)), 2**65 + int(fresh().integers(2**50)), fresh().bytes(16).hex())


@pytest.mark.parametrize("saved", [_public_state, _new_numbers, _large_numbers_and_digests])
def test_generators_of_public_seeds_and_names_of_runs_are_not(saved: Callable[[], None]) -> None:
    assert audit(_finishing(saved), "noise-shown").violations == []


class _SavesNoise(FirstOrder):
    """A faulty loop that outputs its noise, in single precision."""

    def release(self, rows: Array) -> Array:
        total = self.total(rows)
        noise = self.noise(total.size)
        self.outputs.setdefault("drawn", []).append(np.float32(noise))
        return np.asarray((total + noise) / self.denominator(rows))


class _ShowsReleasesAgain(FirstOrder):
    """A sound loop that prints its releases once more as sums, with fewer digits, and outputs the weights."""

    def release(self, rows: Array) -> Array:
        found = super().release(rows)
        print(self.step, *(f"{number:.3e}" for number in found * self.denominator(rows)))
        self.outputs["weights"] = self.weights
        return found


@pytest.mark.parametrize(("make", "found"), [(_SavesNoise, ["noise-shown"]), (_ShowsReleasesAgain, [])])
def test_noise_itself_is_found_and_releases_are_not_noise(make: type[FirstOrder], found: list[str]) -> None:
    assert audit(Specimen(make), "noise-shown").violations == found


@pytest.mark.parametrize(("count", "status"), [(4, "held"), (12, "violated")])
def test_few_numbers_are_near_the_noise_by_chance(count: int, status: str) -> None:
    """An output near the noise is reported only if it has too many numbers to be near by chance.

    Four random numbers are as near to the noise as these in one of about 10^8 places of an output, and thousands of
    places are compared.
    """
    noise = np.random.default_rng(5).normal(size=(count, 1))
    sums = np.linspace(5, 6, count)[:, None]
    output = 3 * noise.ravel() + 2e-3 * np.linalg.norm(noise) * np.eye(count)[0]
    run = LoopOutput(noise + sums, shown={"an output": output, "others": np.zeros(1000)})
    runs = SimpleNamespace(
        frozen={},
        repeatable={},
        paired=lambda seed: {"seed": seed},
        attempt=lambda **how: run,
        comparable=lambda run: run.releases,
        quiet=lambda **how: sums,
    )
    lab: Any = SimpleNamespace(runs=runs, view=SimpleNamespace(seed="public"), noise=SimpleNamespace(repeatable={}))
    assert shown(lab, 1e-7).status == status
