from pathlib import Path

import pytest

from benchmarks.kit.rows import read_rows
from benchmarks.training import equal_evaluations, equal_tasks, starting
from benchmarks.training.equal_evaluations import REPORTED, Comparison, Variant


def test_starting_values_stand_beside_the_best_of_the_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(equal_tasks, "STEP_SIZES", (0.01, 0.1))
    monkeypatch.setattr(equal_tasks, "CLIPS", (1.0,))
    presets = {"smoke": Comparison({"digits": (16,)}, (Variant(4), Variant(4, "momentum:0.5")))}
    monkeypatch.setattr(equal_evaluations, "PRESETS", presets)
    assert equal_evaluations.EXPERIMENT.main(["--preset", "smoke", "--out", str(tmp_path / "grid")]) == 0
    grid = read_rows(tmp_path / "grid")
    assert starting.EXPERIMENT.main(["--rows", str(tmp_path / "grid"), "--out", str(tmp_path / "rows")]) == 0
    rows = read_rows(tmp_path / "rows")
    assert rows["seed"].tolist() == list(REPORTED)
    best = grid[(grid["update"] == "plain") & grid["seed"].isin(REPORTED)]
    assert rows["grid_accuracy"].tolist() == best["accuracy"].tolist()
    assert set(rows["grid_step_size"]) == set(best["step_size"])
    assert (rows["clip"] > 0).all()
    assert rows["step_size"].nunique() == 1
    mean = 100 * rows["accuracy"].mean()
    assert f"digits      16 K = 4    {mean:.1f} +-" in capsys.readouterr().out
