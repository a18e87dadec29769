"""Tests that the audit's checks find the faults of faulty training loops.

They are some of the loops of `benchmarks.audit_zoo`, which runs all of them.
"""

import pytest

from benchmarks.zoo.catalogue import Specimen
from tests.audit.small import named, one_of_each, require_found

FOUND_IN = {
    24: [
        *one_of_each("noise-from-seed", "noise-fixed", "noise-from-directions", "representable", "noise-repeated"),
        *one_of_each("sensitivity", "not-finite", "denominator", "batches", "batches-secret"),
        *one_of_each("accounting", "steps", "un-noised", "records-shown"),
        *named("NoiseContinues", "NoiseFromClock", "NoiseFromSmallSeed", "NoiseFromTwoBytes", "NoiseOfHashedSeed"),
        *named("NoiseOfPythonsGenerator", "NoiseOfMovedSeed", "NoiseOfTurnedSeed", "SinglePrecisionNoise"),
        *named("SavesGenerator", "PrintsSeedOfNoise", "PrintsNoise", "SameBatch", "MoreOften", "StopsByLoss"),
        *named("Standardises", "DividesByBatch", "PicksBestRun", "RedrawsWhenWorse"),
        *named("MeanLossBeforeClip", "LogsLoss", "SavesGradients", "SchedulesByLoss", "WritesDatabase"),
        *named("WarnsOfLoss", "SaltsDigest", "SaysLargeBatches", "LogsMembers", "ShowsBatchSizes"),
        *named("ShowsAccuracy", "ClipsGroups", "KeepsItsBatch", "BestByCleanLoss", "AdaptsByExactCount"),
    ],
    60: [
        *one_of_each("noise-size", "noise-law", "noise-independence", "precision"),
        *named("BiasWithoutNoise", "NoiseCancels", "RanksShareNoise", "SkipsLargeSums", "NoisePerRecord"),
    ],
    120: named("ShowsNoisyCounts", "ReleasesTwice", "SaysDiverged"),
}
"""Faulty training loops, by the number of runs in which their check must find the fault."""
CASES = [pytest.param(one, runs, id=one.name) for runs, several in FOUND_IN.items() for one in several]


@pytest.mark.parametrize(("specimen", "runs"), CASES)
def test_faults_are_found(specimen: Specimen, runs: int) -> None:
    require_found(specimen, runs=runs)
