"""Tests that the benchmark of the sweep's speed measures what it says, on a tiny grid."""

from pathlib import Path

import pytest

from benchmarks.kit.rows import read_rows
from benchmarks.sweeps import sweep_speed


def test_rows_are_consistent(tmp_path: Path) -> None:
    sweep_speed.EXPERIMENT.main(["--out", str(tmp_path), "--repetitions", "2", "--device", "cpu", "--threads", "1"])
    rows = read_rows(tmp_path)
    assert len(rows) == 4
    assert (rows["lane_steps"] == 2 * 2 * (10 + 40)).all()
    assert rows["reference_s"].tolist() == pytest.approx(rows["reference_step_s"] * rows["lane_steps"], rel=1e-3)
    assert rows["ratio"].tolist() == pytest.approx(rows["reference_s"] / rows["engine_s"], rel=1e-2)
    assert (rows["product_share"] < 1).all()
