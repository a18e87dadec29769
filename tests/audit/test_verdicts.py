"""Tests of what a verdict of the audit rests on.

No check is held that could not have seen a fault, and a check that could not be made has its own status.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.zoo import behind, first_order
from benchmarks.zoo.catalogue import FAULTS, Specimen
from benchmarks.zoo.first_order import Array, FirstOrder, Settings
from dpzero_theory.audit.__main__ import main
from dpzero_theory.audit.conformance import every
from dpzero_theory.audit.finding import HELD, UNTESTED, VIOLATED
from dpzero_theory.audit.power import share_seen
from dpzero_theory.audit.report import CORE_UNTESTED
from tests.audit.small import audit
from tests.audit.test_spec import folder

__all__ = ["folder"]
BEHIND = [specimen for specimen in FAULTS if specimen.make.__module__ == behind.__name__]


class SingleReturnedAsDouble(FirstOrder):
    """A sound loop that keeps its weights in float32 and returns their path as float64, as users of torch do."""

    def __call__(self, records: Array, seed: int, settings: Settings) -> Any:
        releases = super().__call__(records, seed, settings)["releases"]
        path = [np.zeros(releases.shape[1], np.float32)]
        for release in releases:
            path.append((path[-1] - float(settings["step_size"]) * release).astype(np.float32))
        return {"trajectory": np.array(path, np.float64)}


class ClipsMicroBatches(FirstOrder):
    """A faulty loop that clips sums of two records, not records.

    It cannot be run with another number of records.
    """

    def prepared(self, records: Array) -> Array:
        if len(records) != 24:
            raise RuntimeError("the data set has 24 records")
        return super().prepared(records)

    def total(self, rows: Array) -> Array:
        with np.errstate(all="ignore"):
            parts = np.array_split(self.gradients(rows), max(1, (len(rows) + 1) // 2))
            return np.asarray(sum(self.clipped(part.sum(axis=0, keepdims=True))[0] for part in parts))


class NeedsItsRecords(FirstOrder):
    """A sound loop that cannot be run with another number of records."""

    def prepared(self, records: Array) -> Array:
        if len(records) != 24:
            raise RuntimeError("the data set has 24 records")
        return super().prepared(records)


@pytest.mark.parametrize("specimen", BEHIND, ids=lambda specimen: specimen.name)
def test_noise_of_the_seed_is_found_behind_batches_and_weights_of_the_system(specimen: Specimen) -> None:
    verdict = audit(specimen, "noise-from-seed")["noise-from-seed"]
    assert verdict.status == VIOLATED
    assert "a function of the seed" in verdict.says
    half = specimen.make is behind.NoiseOfSeedEverySecondStep
    assert ("of 30 numbers" in verdict.says) == half


def test_a_loop_whose_first_weights_come_from_the_system_is_tested() -> None:
    report = audit(Specimen(behind.RandomStart, seed="public"), runs=60)
    assert report.violations == []
    assert set(report.named(UNTESTED)) <= {"noise-from-directions", "one-run"}


def test_weights_of_single_precision_in_arrays_of_double_are_no_fault() -> None:
    report = audit(Specimen(SingleReturnedAsDouble), "sensitivity", "noise-size", "noise-law")
    assert report.violations == []
    assert report["sensitivity"].status == HELD


def test_clipped_micro_batches_are_found_where_no_record_can_be_taken_out() -> None:
    """Clipped sums of two records are found where the loop cannot be run with one record less.

    A record in place of one without effect may move a step by one clip, and moves a step of this loop by two.
    """
    verdict = audit(Specimen(ClipsMicroBatches), "sensitivity")["sensitivity"]
    assert verdict.status == VIOLATED
    assert "without effect" in verdict.says
    assert audit(Specimen(NeedsItsRecords), "sensitivity")["sensitivity"].status == HELD


def test_a_record_that_can_neither_be_taken_out_nor_made_harmless_leaves_a_gap() -> None:
    class Intercept(NeedsItsRecords):
        """A loop whose gradients have a constant coordinate, so that no record is without effect."""

        def gradients(self, rows: Array) -> Array:
            found = super().gradients(rows)
            found[:, -1] = 1.0
            return found

    verdict = audit(Specimen(Intercept), "sensitivity")["sensitivity"]
    assert verdict.status == UNTESTED
    assert "let the loop take n - 1 records" in verdict.says


def test_one_run_says_nothing_where_no_number_of_right_guesses_would() -> None:
    verdict = audit(Specimen(first_order.FirstOrder), "one-run")["one-run"]
    assert verdict.status == UNTESTED
    assert "all guesses right would prove no more than" in verdict.says


def test_the_share_of_noise_that_the_attack_would_have_seen_is_seen() -> None:
    """The attack sees too little noise, of the share that its report says it would have seen.

    A loop with that share of the claimed noise is reported as violating its claim.
    """
    report = audit(Specimen(first_order.FirstOrder), "attack", runs=60)
    assert report["attack"].status == HELD
    share = float(report["attack"].power.split()[2])

    class Less(FirstOrder):
        """A faulty loop whose noise has only a share of the claimed standard deviation."""

        def std(self) -> float:
            return share * super().std()

    assert audit(Specimen(Less), "attack", runs=60)["attack"].status == VIOLATED
    assert share_seen(1, 1, 2.0, (1.0, 1.0), 1e-6) is None


def test_every_check_has_a_fault_that_is_planted_for_it() -> None:
    """For every check there is a loop with a fault that it must find, except for the two attacks.

    For these the tests above plant a fault, or they say that they saw nothing.
    """
    planted = {specimen.finds for specimen in FAULTS}
    assert {check.name for check in every()} - planted == {"attack", "one-run"}


def test_a_core_check_that_could_not_be_made_is_a_status_of_its_own(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (folder / "spec.toml").read_text()
    (folder / "blind.py").write_text("def train(records, seed, settings):\n    return {'metric': [1.0]}\n")
    (folder / "spec.toml").write_text(text.replace('train = "zoo_loop:run"', 'train = "blind:train"'))
    line = ["spec.toml", "--runs", "24", "--checks", "noise-size", "accounting"]
    assert main([*line, "--format", "json"]) == CORE_UNTESTED == 3
    found = capsys.readouterr()
    assert json.loads(found.out)["core_not_tested"] == ["noise-size"]
    assert found.err == "python -m dpzero_theory.audit: spec.toml: NOT TESTED: noise-size\n"
    assert main([*line, "--require", "none"]) == 0
    assert "needed to defend the claim: noise-size" in capsys.readouterr().out
    assert main([*line, "--require", "accounting"]) == 0
