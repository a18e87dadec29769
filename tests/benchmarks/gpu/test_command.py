"""Tests of the command that runs a list of jobs one after the other, resumes them after kills, and reports each."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import planning
from benchmarks.gpu.cards import Work, known
from benchmarks.gpu.jobs import Job
from benchmarks.kit.rows import read_rows

SMALL = "tests.benchmarks.gpu.small"


def job(name: str, kind: str = "works", **changes: Any) -> Job:
    return Job(name, f"shows {name}", SMALL, kind, kind, name, Work(1), **changes)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    found = [job("one"), job("two", "{model}", needs=("model",)), job("three")]
    monkeypatch.setattr(command, "JOBS", found)
    monkeypatch.setattr(command, "_draw", lambda folder: None)
    monkeypatch.setattr(command, "NAMES", tuple(one.name for one in found))
    return found


def run(out: Path, *words: str) -> int:
    return command.EXPERIMENT.main(
        ["--minutes", "2", "--preset", "smoke", "--device", "cpu", "--out", str(out), *words]
    )


def statuses(out: Path) -> dict[str, str]:
    rows = read_rows(out / "jobs", failed=True)
    return dict(zip(rows["job"], rows["status"], strict=True))


def test_jobs_run_once(jobs: list[Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--only", "one") == 0
    assert run(tmp_path) == 0
    printed = capsys.readouterr().out
    assert printed.count("row 11") == 2  # The jobs "one" and "three" have each printed their last row
    assert statuses(tmp_path) == {"one": "ok", "two": "needs --model", "three": "ok"}


def test_a_job_that_fails_is_said_and_tried_again(jobs: list[Job], tmp_path: Path) -> None:
    jobs[0] = job("one", "fails")
    assert run(tmp_path) == 1
    assert statuses(tmp_path) == {"one": "failed (3): it cannot be done", "two": "needs --model", "three": "ok"}
    jobs[0] = job("one")
    assert run(tmp_path) == 0


def test_a_job_goes_on_in_another_process_and_is_given_up_where_nothing_comes(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "LONGEST", 2.0)
    jobs[:] = [job("one", "slow"), job("two", "hangs")]
    assert run(tmp_path) == 0
    rows = read_rows(tmp_path / "jobs", failed=True).set_index("job")
    assert rows.loc["one", "status"] == "ok"
    assert rows.loc["one", "processes"] > 1
    assert rows.loc["two", "status"] == "unfinished: nothing new in 2 s"
    assert len((tmp_path / "one" / "rows").read_text().splitlines()) == 12


def test_a_job_that_takes_too_long_lets_the_others_go_first(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "PATIENCE", 0.0)
    monkeypatch.setattr(command, "SLACK", 2.5)
    jobs[:] = [job("one", "slow"), job("two")]
    assert run(tmp_path) == 0
    ends = [line for line in capsys.readouterr().out.splitlines() if "/2 " in line and " about " not in line]
    assert [line.split(",")[0] for line in ends] == [
        f"1/2 one: {command.LATE.split(',')[0]}",
        "2/2 two: ok",
        "1/2 one: ok",
    ]
    rows = read_rows(tmp_path / "jobs").set_index("job")
    assert rows.loc["one", "processes"] == 2
    assert rows.loc["one", "wall_s"] >= 3  # The time is that of both processes together: twelve rows, at four a second


def test_the_time_ends_in_the_middle_of_a_job_which_the_next_call_ends(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Job, "in_smoke", lambda self: self)
    jobs[:] = [job("one", "slow"), job("two")]
    assert run(tmp_path, "--minutes", "0.03") == 0
    found = statuses(tmp_path)
    assert found["one"] == "unfinished: the time is over"
    assert found["two"] == "needs 1 s, 0 s are left"
    assert run(tmp_path) == 0
    assert statuses(tmp_path) == {"one": "ok", "two": "ok"}


def test_ctrl_c_says_what_there_is(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    jobs[1:] = [job("three")]
    with monkeypatch.context() as patch:
        patch.setattr(command.execute, "run_command", interrupted)
        assert run(tmp_path) == 130
    assert statuses(tmp_path) == {"one": command.INTERRUPTED}
    assert "results: " in capsys.readouterr().out
    assert run(tmp_path) == 0
    assert statuses(tmp_path) == {"one": "ok", "three": "ok"}


def test_rows_of_another_card_are_not_mixed_with_these(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--only", "one") == 0
    monkeypatch.setattr(command, "_card", lambda parser, options: ("h200", known()["h200"]))
    with pytest.raises(SystemExit) as status:
        run(tmp_path)
    assert status.value.code == 2
    assert "card cpu, not card h200" in capsys.readouterr().err


def test_killed_at_random_and_resumed_the_rows_are_the_same(jobs: list[Job], tmp_path: Path) -> None:
    rng, kills = np.random.default_rng(0), 0
    jobs[1:] = [job("three")]
    for _ in range(8):
        child = os.fork()
        if child == 0:
            try:
                run(tmp_path / "killed")
            finally:
                os._exit(0)
        time.sleep(rng.uniform(0.05, 0.6))
        os.kill(child, signal.SIGKILL)
        kills += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert kills >= 3
    assert run(tmp_path / "killed") == run(tmp_path / "whole") == 0
    for name in ("one", "three"):
        texts = [(tmp_path / folder / name / "rows").read_text() for folder in ("killed", "whole")]
        assert texts[0] == texts[1] == "".join(f"row {number:3}\n" for number in range(12))


def test_a_dry_run_prints_the_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert (
        command.EXPERIMENT.main(["--minutes", "40", "--dry-run", "--card", "a100-40gb", "--out", str(tmp_path / "out")])
        == 0
    )
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "a100-40gb, 39 GiB, 40 minutes"
    assert len(lines) == 1 + len(command.JOBS)
    assert "needs 61 GiB, the card has 39" in next(line for line in lines if " opt-30b " in line)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "flag"),
    [(["--device", "cpu"], "--preset"), (["--card", "h200"], "--card"), (["--only", "nothing"], "--only")],
)
def test_bad_lines(words: list[str], flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as status:
        command.EXPERIMENT.main(["--minutes", "10", *words])
    assert status.value.code == 2
    assert flag in capsys.readouterr().err
