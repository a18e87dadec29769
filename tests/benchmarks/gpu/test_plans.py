"""Tests that the committed plans for GPU time are those that the present code makes."""

from pathlib import Path

from benchmarks.gpu.jobs import JOBS
from benchmarks.gpu.plans import CARDS, EXPERIMENT, MINUTES
from benchmarks.kit.rows import RESULTS, read_rows


def test_the_committed_plans_are_what_the_code_says(tmp_path: Path) -> None:
    assert EXPERIMENT.main(["--out", str(tmp_path)]) == 0
    rows, committed = read_rows(tmp_path), read_rows(RESULTS / "gpu_plans")
    assert committed.equals(rows), "run python -m benchmarks.gpu.plans and python -m benchmarks.summary --write"
    assert len(rows) == len(CARDS) * len(MINUTES) * len(JOBS)
    assert (rows["start_s"].isna() == rows["why_not"].notna()).all()
