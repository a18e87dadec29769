"""Tests of the audit's attack on a loop with half the noise; loops with other faults are tested in `test_zoo`."""

import pytest

from benchmarks.zoo.catalogue import Specimen
from tests.audit.small import audit, named

FAULTS = [*named("HalfNoise")]


@pytest.mark.parametrize("specimen", FAULTS, ids=lambda specimen: specimen.name)
def test_faults_are_found(specimen: Specimen) -> None:
    report = audit(specimen, "attack", runs=60)
    assert report.violations == ["attack"], report.text()
    # The check's 95% bound on mu need not exceed the claimed mu: the bets stop once they have refuted the claim, often
    # before the bound is above it.
    assert (report["attack"].p_value or 1) <= 1e-6
    assert report["attack"].evidence["gdp_claimed"] == pytest.approx(1)
