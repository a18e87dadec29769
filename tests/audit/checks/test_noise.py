"""Faults of the zoo that these checks must find are found; sound loops are not reported. All: benchmarks.audit_zoo."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.zoo.catalogue import Specimen
from dpzero_theory.audit.checks.noise import independence
from dpzero_theory.audit.noise import NoiseSample
from tests.audit.small import FEW, named, one_of_each, require_found, require_sound

NAMES = ("noise-size", "noise-law", "noise-independence", "precision")
MORE = ("BiasWithoutNoise", "NoiseCancels", "RanksShareNoise", "SkipsLargeSums", "NoisePerRecord")
FAULTS = [*one_of_each(*NAMES), *named(*MORE)]


@pytest.mark.parametrize("specimen", FAULTS, ids=lambda specimen: specimen.name)
def test_faults_are_found(specimen: Specimen) -> None:
    require_found(specimen, runs=60)


@pytest.mark.parametrize("specimen", FEW, ids=lambda specimen: specimen.name)
def test_sound_loops_are_not_reported(specimen: Specimen) -> None:
    require_sound(specimen, *NAMES)


@pytest.mark.parametrize(("equal", "status"), [(1, "held"), (12, "violated")])
def test_one_number_that_comes_again_is_chance_and_many_are_not(equal: int, status: str) -> None:
    """Of 24 pairs of Gaussians one is equal to six digits in one of 60,000 samples."""
    values = np.random.default_rng(5).normal(size=(24, 6, 1))
    values[:equal, 5] = -values[:equal, 0]
    lab: Any = SimpleNamespace(noise=SimpleNamespace(sample=NoiseSample("as claimed", values)))
    assert independence(lab, 1e-7).status == status
