"""Faults of the zoo that these checks must find are found; sound loops are not reported. All: benchmarks.audit_zoo."""

import numpy as np
import pytest

from benchmarks.zoo.catalogue import Specimen
from dpzero_theory.audit.checks.seeds import derived, streams
from tests.audit.small import FEW, named, one_of_each, require_found, require_sound

NAMES = ("noise-from-seed", "noise-fixed", "noise-from-directions")
FAULTS = [
    *one_of_each(*NAMES),
    *named("NoiseContinues", "NoiseFromClock", "NoiseFromSmallSeed", "NoiseFromTwoBytes"),
    *named("NoiseOfHashedSeed", "NoiseOfPythonsGenerator", "NoiseOfMovedSeed", "NoiseOfTurnedSeed"),
]


@pytest.mark.parametrize("specimen", FAULTS, ids=lambda specimen: specimen.name)
def test_faults_are_found(specimen: Specimen) -> None:
    require_found(specimen)


@pytest.mark.parametrize("specimen", FEW, ids=lambda specimen: specimen.name)
def test_sound_loops_are_not_reported(specimen: Specimen) -> None:
    require_sound(specimen, *NAMES)


@pytest.mark.parametrize("seed", [-5, 2**63, 2**64 + 1, 2**200])
def test_any_integer_can_be_a_seed(seed: int) -> None:
    for _, drawn in [*streams(seed, 4), *derived(seed, 3, 4)]:
        assert np.isfinite(drawn).all()
