"""Tests that a job's command ends by itself, at its time limit, or with the process that runs it.

It leaves no process behind.
"""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from benchmarks.gpu.execute import run_command

ROOT = Path(__file__).resolve().parents[3]


def small(kind: str, out: Path) -> list[str]:
    return [sys.executable, "-m", "tests.benchmarks.gpu.small", kind, "--out", str(out)]


def gone(pids: list[int]) -> bool:
    """Whether, within ten seconds, no process with one of these ids is left."""
    for _ in range(200):
        states = [Path(f"/proc/{pid}/stat") for pid in pids]
        if all(not state.exists() or state.read_text().rpartition(") ")[2][0] == "Z" for state in states):
            return True
        time.sleep(0.05)
    return False


def begun(out: Path) -> list[int]:
    """Returns the ids of the processes of the job that hangs, once the job has written them to the folder `out`."""
    for _ in range(400):
        if (out / "pids").exists() and (text := (out / "pids").read_text()):
            return list(map(int, text.split()))
        time.sleep(0.05)
    raise AssertionError("the job did not begin")


def test_what_a_command_prints_is_told_and_kept(tmp_path: Path) -> None:
    told: list[str] = []
    ended = run_command(small("works", tmp_path), 30, tmp_path / "logs" / "log.txt", told.append)
    assert (ended.status, ended.last, told[0], len(told)) == (0, "row 11", "row 0", 12)
    assert (tmp_path / "logs" / "log.txt").read_text().splitlines() == told
    ended = run_command(small("fails", tmp_path), 30, tmp_path / "logs" / "log.txt", told.append)
    assert (ended.status, ended.last) == (3, "it cannot be done")


def test_a_limit_ends_the_command_and_its_children(tmp_path: Path) -> None:
    ended = run_command(small("hangs", tmp_path), 2, tmp_path / "log", print)
    assert ended.status is None
    assert 2 <= ended.seconds < 20
    assert gone(begun(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_command_ends_with_the_process_that_runs_it(tmp_path: Path, number: int) -> None:
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            run_command(small("hangs", tmp_path), 60, tmp_path / "log", print)
        finally:
            os._exit(0)
    pids = begun(tmp_path)
    os.kill(child, number)
    os.waitpid(child, 0)
    assert gone(pids)
