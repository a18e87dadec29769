"""The command that runs a list of jobs one after the other: what it starts, ends, resumes and reports."""

import importlib
import re
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import scripts
from benchmarks.gpu import __main__ as command
from benchmarks.gpu.__main__ import JOBS, Job, refusal
from benchmarks.kit.rows import OK, RESULTS, read_rows

SMALL = "tests.benchmarks.small_job"


def job(name: str, kind: str = "works", **changes: Any) -> Job:
    return Job(name, f"shows {name}", f"{SMALL} {kind}", name, 1, **changes)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    found = [job("one"), job("two", "{model}"), job("three")]
    monkeypatch.setattr(command, "JOBS", found)
    monkeypatch.setattr(command, "card", lambda: ("h100-80gb", 79.0))
    return found


def run(out: Path, *words: str) -> int:
    return command.EXPERIMENT.main(["--minutes", "2", "--out", str(out), *words])


def statuses(out: Path) -> dict[str, str]:
    rows = read_rows(out / "jobs", failed=True)
    return dict(zip(rows["job"], rows["status"], strict=True))


def test_jobs_run_once_and_what_failed_is_tried_again(
    jobs: list[Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs[0] = job("one", "fails")
    assert run(tmp_path) == 1
    assert statuses(tmp_path) == {"one": "failed (3): it cannot be done", "two": "needs --model", "three": OK}
    jobs[0] = job("one")
    assert run(tmp_path) == 0
    assert capsys.readouterr().out.count("row 11") == 2  # each of the two jobs has printed its last row once
    assert statuses(tmp_path)["one"] == OK


def test_a_job_goes_on_in_another_process_and_is_given_up_where_nothing_comes(
    jobs: list[Job], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "LONGEST", 2.0)
    jobs[:] = [job("one", "slow"), job("two", "hangs")]
    assert run(tmp_path) == 0
    rows = read_rows(tmp_path / "jobs", failed=True).set_index("job")
    assert rows.loc["one", "status"] == OK
    assert int(str(rows.loc["one", "processes"])) > 1
    assert len((tmp_path / "one" / "rows").read_text().splitlines()) == 12
    assert rows.loc["two", "status"] == "unfinished: nothing new in 2 s"
    assert gone((tmp_path / "two" / "pids").read_text())


def gone(pids: str) -> bool:
    """Whether, within ten seconds, no process with one of these ids is left."""
    for _ in range(200):
        states = [Path(f"/proc/{pid}/stat") for pid in pids.split()]
        if all(not state.exists() or state.read_text().rpartition(") ")[2][0] == "Z" for state in states):
            return True
        time.sleep(0.05)
    return False


def test_the_time_ends_in_the_middle_of_a_job_which_the_next_call_ends(jobs: list[Job], tmp_path: Path) -> None:
    jobs[:] = [job("one", "slow"), job("two")]
    assert run(tmp_path, "--minutes", "0.03") == 0
    assert statuses(tmp_path) == {"one": "unfinished: the time is over", "two": "needs 1 s, 0 s are left"}
    assert run(tmp_path) == 0
    assert statuses(tmp_path) == {"one": OK, "two": OK}


@pytest.mark.parametrize(
    ("changes", "memory", "left", "why"),
    [
        ({}, 79, 2, ""),
        ({}, 7, 2, "needs 8 GiB, the card has 7"),
        ({}, 79, 0.5, "needs 1 s, 0 s are left"),
        ({"parts": 4}, 79, 0.5, ""),
        ({"parts": 4}, 79, 0.2, "the smallest part of it needs 0 s, 0 s are left"),
    ],
)
def test_what_does_not_fit_is_left_out(changes: dict[str, Any], memory: float, left: float, why: str) -> None:
    assert refusal(job("one", **changes), memory, left, {}) == why


def test_a_dry_run_prints_the_plan_and_writes_nothing(
    jobs: list[Job], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    jobs.append(job("four", memory_gib=100))
    assert run(tmp_path / "out", "--dry-run") == 0
    said = [line.split("min  ")[1] for line in capsys.readouterr().out.splitlines()]
    assert said == ["shows one", "needs --model", "shows three", "needs 100 GiB, the card has 79"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("one", JOBS, ids=lambda one: one.name)
def test_the_commands_of_the_list_parse(one: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    module, *words = one.words(tmp_path, data=tmp_path, model=tmp_path)
    if module == "pytest":
        files = [Path(word) for word in words if word.endswith(".py")]
        assert files
        assert all("mark.gpu" in (command._ROOT / file).read_text() for file in files)
        return
    path = scripts()[words[0]].relative_to(RESULTS.parents[1]).with_suffix("")
    importlib.import_module(".".join(path.parts)).EXPERIMENT.parser().parse_args(words[1:])


def test_what_a_card_has_shown_is_what_its_rows_say() -> None:
    """Directions and replays have the CPU's bits; a private step in float32 has the memory of inference."""
    page = " ".join((RESULTS.parents[1] / "docs" / "results" / "gpu.md").read_text().split())
    card = RESULTS / "gpu" / "h100-80gb"
    tests = read_rows(card / "tests", failed=True).query("test != 'all of them'")
    passed = tests["status"] == OK
    assert re.findall(r"one of (\d+) failed", page) == [str(len(tests))] == [str(passed.sum() + 1)]
    assert set(tests[~passed]["file"]) == {"tests/curvature/test_spectrum.py"}
    steps = read_rows(card / "optimizer_step").set_index(["dtype", "method"])
    for kind, said in (("float32", ".2f"), ("bfloat16", ".1f")):
        private = steps.loc[kind, "private-rademacher"]
        assert private["peak_to_inference"] <= 1
        assert f"In {kind} a private step takes {private['ratio']:{said}} times" in page
    assert steps.loc["float32", "private-rademacher"]["ratio"] < steps.loc["float32", "four-pass"]["ratio"]
