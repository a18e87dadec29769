"""Tests of the benchmark of forged run folders: some folders of each kind, and the committed rows of a thousand.

They also show that the benchmark notices a verification that accepts forgeries.
"""

from pathlib import Path

import pytest

from benchmarks.kit.rows import RESULTS, read_rows
from benchmarks.optim import forged_folders
from benchmarks.optim.forged_folders import EXPERIMENT, JUDGED


def test_some_of_each_kind(tmp_path: Path) -> None:
    assert EXPERIMENT.main(["--folders", "5", "--out", str(tmp_path)]) == 0
    rows = read_rows(tmp_path)
    assert set(rows["kind"]) == {"forged", "damaged", "threaded"}


def test_the_committed_thousand_have_nothing_wrong() -> None:
    rows = read_rows(RESULTS / "forged_folders")
    assert sorted(rows["trial"]) == list(range(1000))
    assert rows[list(JUDGED)].to_numpy().sum() == 0
    assert (rows["kind"].value_counts() >= 200).all()
    assert (rows["held"] == 1).sum() < 400


def test_a_verify_that_looks_at_nothing_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(forged_folders, "_verified", lambda folder, form: (0, True))
    assert EXPERIMENT.main(["--folders", "3", "--out", str(tmp_path)]) == 1
    assert read_rows(tmp_path)["accepted"].sum() > 0
