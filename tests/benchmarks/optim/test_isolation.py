"""Tests the benchmark of isolating a record's loss from the other records of its batch, made small."""

from pathlib import Path

import pytest

from benchmarks.kit.rows import read_rows
from benchmarks.optim import isolation


def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "DIRECTIONS", 1)
    monkeypatch.setattr(isolation, "RECORDS", 130)
    monkeypatch.setattr(isolation, "SMOOTHINGS", isolation.SMOOTHINGS[-1:])
    monkeypatch.setattr(isolation, "MOVED", isolation.MOVED[-1:])
    monkeypatch.setattr(isolation, "WAYS", {way: isolation.WAYS[way] for way in ("probed", "exact, rows of 16")})
    assert isolation.EXPERIMENT.main(["--turns", "2", "--out", str(tmp_path / "out")]) == 0
    rows = read_rows(tmp_path / "out").set_index("way")
    assert (rows.loc["exact, rows of 16", list(isolation.MOVED)] == 0).all()
    assert rows.loc["probed", "ratio"] == 1
    assert isolation.EXPERIMENT.main(["--turns", "2", "--out", str(tmp_path / "out")]) == 0


def test_bad_command_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        isolation.EXPERIMENT.main(["--turns", "1"])
    assert status.value.code == 2
    assert "--turns" in capsys.readouterr().err
