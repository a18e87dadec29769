"""Faults of the zoo that these checks must find are found; sound loops are not reported. All: benchmarks.audit_zoo."""

import pytest

from benchmarks.zoo.catalogue import Specimen, records
from dpzero_theory.audit.conformance import check
from tests.audit.small import FEW, named, one_of_each, require_found, require_sound

NAMES = ("batches", "batches-secret")
FAULTS = [*one_of_each(*NAMES), *named("SameBatch", "MoreOften")]


@pytest.mark.parametrize("specimen", FAULTS, ids=lambda specimen: specimen.name)
def test_faults_are_found(specimen: Specimen) -> None:
    require_found(specimen)


def test_sizes_that_are_cut_off_below_are_found() -> None:
    [one] = named("RedrawsSmallBatches")
    report = check(one.make(), records(), one.claimed(), one.view, one.all_settings, checks=["batches"], runs=60)
    assert "how many batches are small" in report["batches"].says


@pytest.mark.parametrize("specimen", FEW, ids=lambda specimen: specimen.name)
def test_sound_loops_are_not_reported(specimen: Specimen) -> None:
    require_sound(specimen, *NAMES)
