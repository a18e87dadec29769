"""Tests that weights are not taken for releases where they move by more than the step size times the release."""

from typing import Any

import numpy as np
import pytest

from benchmarks.zoo.catalogue import Specimen
from benchmarks.zoo.first_order import Array, FirstOrder, Settings
from benchmarks.zoo.zeroth_order import ZerothOrder
from dpzero_theory.audit.lab import Lab
from dpzero_theory.audit.loop import Loop
from dpzero_theory.audit.weights import runs_of
from tests.audit.small import records, small


class _Shows(FirstOrder):
    """A sound loop that shows its weights alone; its method `move` says how a release moves them."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        releases = super().__call__(records, seed, settings)["releases"]
        weights, self.kept = [np.zeros(releases.shape[1])], np.zeros((2, releases.shape[1]))
        for step, release in enumerate(releases):
            weights.append(weights[-1] - float(settings["step_size"]) * self.move(step, release))
        return {"trajectory": np.array(weights)}

    def move(self, step: int, release: Array) -> Array:
        return release


class _Last(_Shows):
    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        return {"weights": super().__call__(records, seed, settings)["trajectory"][-1]}


class _Schedule(_Shows):
    def move(self, step: int, release: Array) -> Array:
        return release * (1 - 0.1 * step)


class _Momentum(_Shows):
    def move(self, step: int, release: Array) -> Array:
        self.kept[0] = 0.9 * self.kept[0] + release
        return self.kept[0].copy()


def _adam(kept: Array, step: int, release: Array) -> Array:
    kept[0], kept[1] = 0.9 * kept[0] + 0.1 * release, 0.99 * kept[1] + 0.01 * release**2
    return np.asarray(kept[0] / (1 - 0.9 ** (step + 1)) / np.sqrt(kept[1] / (1 - 0.99 ** (step + 1)) + 1e-300))


class _Adam(_Shows):
    def move(self, step: int, release: Array) -> Array:
        return _adam(self.kept, step, release)


class _Slower(_Shows):
    """Weights whose noise grows 8 times where its multiplier grows 64 times, as it can by chance under Adam."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        claimed = small(Specimen(_Shows).claimed()).noise_multiplier
        noise = claimed * (float(settings["noise_multiplier"]) / claimed) ** 0.5
        return super().__call__(records, seed, {**settings, "noise_multiplier": noise})


class _AdamLast(_Last):
    def move(self, step: int, release: Array) -> Array:
        return _adam(self.kept, step, release)


class _ZerothOrder(ZerothOrder):
    """A zeroth-order loop that shows its weights alone: what it clips is a number, which the weights do not show."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        super().__call__(records, seed, settings)
        return {"weights": self.weights}


def _lab(train: type[Any]) -> Lab:
    specimen = Specimen(train)
    claim = small(specimen.claimed())
    return Lab(runs_of(Loop(train(), records(claim.n), claim, specimen.view, specimen.all_settings)), 24)


@pytest.mark.parametrize("train", [_Shows, _Last])
def test_plain_steps_are_releases(train: type[_Shows]) -> None:
    lab = _lab(train)
    assert lab.runs.why_no_releases == ""
    assert lab.runs.base.releases is not None
    assert lab.noise.sample is not None
    assert 0.8 < lab.noise.sample.values.std() < 1.2


@pytest.mark.parametrize(
    ("train", "why"),
    [
        (_Schedule, "schedule"),
        (_Momentum, "momentum"),
        (_Adam, "Adam"),
        (_Slower, "Adam"),
        (_AdamLast, "Adam"),
        (_ZerothOrder, "zeroth-order"),
    ],
)
def test_other_steps_are_not(train: type[Any], why: str) -> None:
    lab = _lab(train)
    assert why in lab.runs.why_no_releases
    assert lab.runs.base.releases is None
    assert lab.noise.sample is None
