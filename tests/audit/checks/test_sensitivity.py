"""Faults of the zoo that these checks must find are found; sound loops are not reported. All: benchmarks.audit_zoo."""

import pytest

from benchmarks.zoo.catalogue import Specimen
from tests.audit.small import FEW, audit, named, one_of_each

NAMES = ("sensitivity", "not-finite", "denominator")
FAULTS = [*one_of_each(*NAMES), *named("Standardises", "DividesByBatch", "ReducedLosses")]


@pytest.mark.parametrize("specimen", FAULTS, ids=lambda specimen: specimen.name)
def test_faults_are_found(specimen: Specimen) -> None:
    report = audit(specimen, specimen.finds)
    assert report.violations == [specimen.finds], report.text()
    assert report[specimen.finds].mend


@pytest.mark.parametrize("specimen", FEW, ids=lambda specimen: specimen.name)
def test_sound_loops_are_not_reported(specimen: Specimen) -> None:
    report = audit(specimen, *NAMES)
    assert report.violations == [], report.text()
