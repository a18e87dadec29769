import contextlib
import io
from pathlib import Path

import numpy as np
import pytest

from benchmarks.audits.audit_invented import EXPERIMENT, FOLDER, MENDED, first_try, judged
from benchmarks.kit.rows import read_rows
from benchmarks.zoo.catalogue import records
from benchmarks.zoo.invented.catalogue import FAMILIES, LOOPS
from dpzero_theory.audit.conformance import every

OTHER_STEPS = {"one_step_more": 9, "early_stopping": None}
"""How many releases a loop makes whose fault is their number; None if it follows the data."""


def test_names_are_unique_and_every_fault_names_checks_of_the_audit() -> None:
    specimens = [specimen for found in FAMILIES.values() for specimen in found]
    assert len(specimens) == len(LOOPS) == 117
    assert all(not specimen.finds for specimen in FAMILIES["sound"])
    names = {check.name for check in every()}
    faulty = [specimen for specimen in specimens if specimen.finds]
    assert len(faulty) == 95
    assert all({specimen.finds, *specimen.also} <= names for specimen in faulty)
    assert all(specimen.pattern for specimen in specimens)


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_makes_the_claimed_number_of_steps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, specimen = LOOPS[name]
    claim, view = specimen.claimed(), specimen.view
    settings = {view.names.get(word, word): value for word, value in (claim.as_dict() | specimen.all_settings).items()}
    with contextlib.redirect_stdout(io.StringIO()):
        found = specimen.make()(records(claim.n), 5, settings)
    outputs = found if isinstance(found, dict) else {"releases": found}
    key = "releases" if "releases" in outputs else "trajectory"
    released = np.asarray(outputs[key])
    steps = OTHER_STEPS.get(name, claim.steps)
    assert released.dtype.kind == "f"
    assert np.isfinite(released).all()
    assert steps is None or len(released) == steps + (key == "trajectory")
    assert "batches" not in outputs or len(outputs["batches"]) == len(released) - (key == "trajectory")


def test_the_first_try_is_of_these_loops() -> None:
    assert set(first_try()) == set(LOOPS)
    names = {check.name for check in every()}
    assert {check for violated in first_try().values() for check in violated} <= names
    faults = {name for name, (_, specimen) in LOOPS.items() if specimen.finds}
    assert {name for name in faults if judged(LOOPS[name][1], first_try()[name]) != "yes"} == set(MENDED)


def test_a_loop_is_judged_by_what_is_violated() -> None:
    fault, sound = LOOPS["last_step_without_noise"][1], LOOPS["dpgd_full_sum"][1]
    answers = [judged(fault, found) for found in ([], ["attack"], ["attack", "un-noised"], ["noise-size"])]
    assert answers == ["no", "wrong reason", "yes", "yes"]
    assert [judged(sound, found) for found in ([], ["attack"])] == ["yes", "no"]


def test_rows_of_faults_that_the_first_try_found_and_missed(tmp_path: Path) -> None:
    names = ["one_step_more", "secret_seed_printed"]
    assert EXPERIMENT.main(["--loops", *names, "--out", str(tmp_path)]) in (0, None)
    rows = read_rows(tmp_path).set_index("loop")
    assert dict(rows["first_try_right"]) == {"one_step_more": "yes", "secret_seed_printed": "no"}
    assert set(rows["found_now"]) == {"yes"}
    assert rows.loc["secret_seed_printed", "violated_now"] == "noise-shown"


def test_rows_have_every_loop() -> None:
    rows = read_rows(FOLDER)
    assert set(rows["loop"]) == set(LOOPS)
    sound = rows[rows["sound"] == "yes"]
    assert (sound["found_now"] == "yes").all()
