import json
from pathlib import Path

import pytest

from dpzero_theory.audit.__main__ import main
from tests.audit.test_spec import folder

__all__ = ["folder"]


def test_text_json_and_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["spec.toml", "--checks", "accounting", "--runs", "24"]
    assert main(line) == 0
    assert "accounting             held" in capsys.readouterr().out
    assert main([*line, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["held"] == ["accounting"]
    assert main([*line, "--format", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_a_violation_is_status_1_and_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "spec.toml").read_text().replace("epsilon = 2.2", "epsilon = 1.2")
    (folder / "spec.toml").write_text(text)
    assert main(["spec.toml", "--checks", "accounting"]) == 1
    assert capsys.readouterr().err == "python -m dpzero_theory.audit: spec.toml: VIOLATED: accounting\n"


def test_a_core_check_that_could_not_be_made_is_status_3(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "spec.toml").read_text()
    (folder / "blind.py").write_text("def train(records, seed, settings):\n    return {'metric': [1.0]}\n")
    (folder / "spec.toml").write_text(text.replace('train = "zoo_loop:run"', 'train = "blind:train"'))
    line = ["spec.toml", "--runs", "24", "--checks", "noise-size", "accounting", "--format", "json"]
    assert main(line) == 3
    found = capsys.readouterr()
    assert json.loads(found.out)["core_not_tested"] == ["noise-size"]
    assert found.err == "python -m dpzero_theory.audit: spec.toml: NOT TESTED: noise-size\n"
