"""Tests that shares of an experiment, made apart and merged, have the rows that one machine makes."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.kit.jobs import Share, share
from benchmarks.kit.rows import Results, read_manifest, read_rows
from benchmarks.reports import merge
from benchmarks.sweeps import synthetic
from tests import forks

SWEEP = ["--preset", "smoke", "--jobs", "1", "--device", "cpu", "--modes", "a", "c"]


def made(folder: Path, rows: list[dict[str, Any]], **changes: Any) -> Path:
    options: dict[str, Any] = {"key": ["d"], "fields": ["value"], "seeds": [0], "device": "cpu", "dtype": "float64"}
    with Results(folder, **{**options, **changes}) as results:
        results.add(rows)
    return folder


def test_two_workers_of_a_scheduler_make_what_one_machine_makes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes at once, as two tasks of a scheduler's array, make what one machine makes.

    Their merged rows are complete for the whole command.
    """
    command = ["-m", "benchmarks.synthetic", *SWEEP]
    workers = [forks.start(*command, "--share", f"{task}/2", "--out", tmp_path / str(task)) for task in (1, 2)]
    assert [worker.wait().returncode for worker in workers] == [0, 0]
    out = str(tmp_path / "whole")
    assert merge.EXPERIMENT.main([str(tmp_path / "1"), str(tmp_path / "2"), "--out", out]) == 0
    synthetic.EXPERIMENT.main([*SWEEP, "--out", str(tmp_path / "alone")])
    whole, alone = (read_rows(tmp_path / name).sort_values(list(synthetic.KEY)) for name in ("whole", "alone"))
    assert whole.reset_index(drop=True).equals(alone.reset_index(drop=True))
    assert {run["command"] for run in read_manifest(tmp_path / "whole")["earlier"]} >= {
        read_manifest(tmp_path / name)["command"] for name in ("1", "2")
    }
    before = (tmp_path / "whole" / "rows.csv").read_bytes()
    capsys.readouterr()
    synthetic.EXPERIMENT.main([*SWEEP, "--out", out])
    assert "best last gradient" not in capsys.readouterr().out
    assert (tmp_path / "whole" / "rows.csv").read_bytes() == before


def test_every_digit_stays_and_what_failed_gives_way(tmp_path: Path) -> None:
    one = made(tmp_path / "one", [{"d": 1, "value": 0.1 + 0.2}, {"d": 2, "status": "no memory"}], compress=True)
    two = made(tmp_path / "two", [{"d": 2, "value": 1e-300}, {"d": 1, "value": 0.30000000000000004}], seeds=[1])
    assert merge.EXPERIMENT.main([str(one), str(two), "--out", str(tmp_path / "out")]) == 0
    assert dict(read_rows(tmp_path / "out")[["d", "value"]].to_numpy().tolist()) == {1: 0.30000000000000004, 2: 1e-300}
    assert read_manifest(tmp_path / "out")["seeds"] == [0, 1]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"dtype": "float32"}, "has dtype float32"),
        ({"settings": {"n": 2}}, "has settings"),
        ({"fields": ["other"]}, "the same columns"),
        ({}, "has another row"),
    ],
)
def test_what_does_not_fit_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], said: str
) -> None:
    one = made(tmp_path / "one", [{"d": 1, "value": 1.0}])
    two = made(tmp_path / "two", [{"d": 1, **({} if "fields" in changes else {"value": 2.0})}], **changes)
    with pytest.raises(SystemExit):
        merge.EXPERIMENT.main([str(one), str(two), "--out", str(tmp_path / "out")])
    assert said in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_damaged_rows_are_not_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = made(tmp_path / "one", [{"d": 1, "value": 1.0}])
    (one / "rows.csv").write_text((one / "rows.csv").read_text().replace("1.0", "1.5"))
    with pytest.raises(SystemExit):
        merge.EXPERIMENT.main([str(one), "--out", str(tmp_path / "out")])
    assert "not those of its manifest" in capsys.readouterr().err


def test_shares_are_all_jobs_once() -> None:
    jobs = list(range(11))
    parts = [Share(number, 4).of(jobs) for number in range(1, 5)]
    assert sorted(job for part in parts for job in part) == jobs
    assert share("3/64") == Share(3, 64)
    for wrong in ("0/2", "3/2", "1", "1/x", "-1/2", ""):
        with pytest.raises(Exception, match="must be I/N"):
            share(wrong)
