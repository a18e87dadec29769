"""Tests that a program in a fork behaves as one started by `python`: words, folder, environment, output and status."""

import json
import os
import signal
from pathlib import Path

import pytest

from tests import forks

SHOWN = "import json, os, sys; print(json.dumps([sys.argv[1:], os.getcwd(), os.environ['PLACE'], os.getpid()]))"


def test_words_folder_and_environment_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", "here")
    done = forks.run("-c", SHOWN, "a", tmp_path, folder=tmp_path)
    words, folder, place, process = json.loads(done.stdout)
    assert (words, folder, place) == (["a", str(tmp_path)], str(tmp_path), "here")
    assert process != os.getpid()
    other = forks.run("-c", SHOWN, environment={"PLACE": "there"})
    assert json.loads(other.stdout)[2] == "there"
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('no')", 1, "no\n"),
        ("raise SystemExit", 0, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, ""),
    ],
)
def test_its_end_is_told(code: str, status: int, told: str) -> None:
    done = forks.run("-c", code)
    assert done.returncode == status
    assert done.stderr.endswith(told)
    assert bool(done.stderr) == bool(told)


def test_a_module_is_run_as_a_program_and_nothing_of_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forks.run("-m", "dpzero_theory.params", "--help").stdout.startswith("usage: python -m dpzero_theory.params")
    monkeypatch.setattr(forks, "ROOT", None)
    assert forks.run("-c", "from tests import forks; print(forks.ROOT)").stdout == f"{Path(__file__).parents[1]}\n"
