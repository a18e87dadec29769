import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.audits.audit_zoo import EXPERIMENT, REPEATS
from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.zoo.table import FAULTS, LOOPS, SOUND, Loop, records
from dpzero_theory.audit.conformance import every

OTHER_STEPS = {"one-step-more", "stops-by-loss", "early-stopping", "sound-ends-by-a-noised-count"}
"""Loops that make another number of steps than claimed, or one that follows the data or the releases."""


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_makes_the_claimed_number_of_steps(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loop = LOOPS[name]
    settings = {**loop.claimed.as_dict(), **loop.given}
    with contextlib.redirect_stdout(io.StringIO()), np.errstate(all="ignore"):
        monkeypatch.setattr("warnings.warn", lambda *said, **how: None)
        found = loop.train()(records(loop.claimed.n), 5, settings)
    key = "releases" if "releases" in found else "trajectory"
    released = np.asarray(found[key])
    assert np.isfinite(released).all()
    assert name in OTHER_STEPS or len(released) == loop.claimed.steps + (key == "trajectory")
    assert loop.viewed


def test_every_fault_names_checks_of_the_audit() -> None:
    names = {check.name for check in every()}
    assert all(set(loop.finds) <= names and loop.says for loop in LOOPS.values())
    assert {loop.finds[0] for loop in FAULTS.values()} == names


def test_a_changed_line_takes_the_place_of_one_line() -> None:
    with pytest.raises(ValueError, match="not enough values to unpack"):
        Loop("none", "", change=["nothing = 3"]).train()


def test_a_row_of_a_fault_and_of_a_sound_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["--loops", "noise-none", "claims-less", "--quick", "--out", str(tmp_path)]
    assert EXPERIMENT.main(line) == 0
    rows = read_rows(tmp_path).set_index("loop")
    assert list(rows["found"]) == ["yes", "yes"]
    assert [rows.loc["noise-none", name] for name in ("un-noised", "sensitivity")] == ["VIOLATED", "untested"]
    assert EXPERIMENT.main(line) == 0
    assert "2 of 2 audits of faults found them" in capsys.readouterr().out


def _page() -> str:
    return " ".join((RESULTS.parents[1] / "docs" / "results" / "audit.md").read_text().split())


def test_the_rows_are_of_these_loops_and_the_page_says_what_they_say() -> None:
    faults, sound = read_rows(RESULTS / "audit_zoo"), read_rows(RESULTS / "audit_zoo_sound")
    assert set(faults["loop"]) == set(FAULTS)
    assert set(sound["loop"]) == set(SOUND)
    assert not (sound["found"] == "yes").any()
    found = int((faults["found"] == "yes").sum())
    assert found >= 0.95 * len(faults)
    assert f"| faulty | {len(faults)} | {len(faults)} | {found} |" in _page()
    assert f"| sound | {sound['loop'].nunique()} | {len(sound)} | 0 |" in _page()
    missed = faults.loc[faults["found"] != "yes", "loop"]
    assert all(f"`{name}`" in _page() for name in missed)
    assert sound.groupby("loop").size().max() <= REPEATS


def test_of_what_was_found_at_first_try_the_checks_that_are_left_keep_95_percent() -> None:
    """The loops were invented by people who had not seen the checks; those of the second person were audited again."""
    rows = read_rows(RESULTS / "audit_invented")
    once = rows[(rows["sound"] == "no") & (rows["first_try_right"] == "yes")]
    kept = int((once["found_now"] == "yes").sum())
    assert (rows.loc[rows["sound"] == "yes", "found_now"] == "yes").all()
    third = read_rows(RESULTS / "audit_third")
    assert int((third["judged"] == "found").sum()) == 81
    said = re.search(r"Of the 81 faults that were found, (\d+) were found by checks that are left", _page())
    assert said
    assert kept + int(said[1]) >= 0.95 * (len(once) + 81)
