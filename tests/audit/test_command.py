import json
from pathlib import Path

import pytest

from dpzero_theory.audit.__main__ import RUN, main
from dpzero_theory.optim.files import transcript as runs
from tests.audit.test_spec import folder

__all__ = ["folder"]


def test_text_json_and_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["spec.toml", "--checks", "accounting", "--runs", "24"]
    assert main([*line, "--page", "page.html"]) == 0
    assert "accounting             held" in capsys.readouterr().out
    assert (folder / "page.html").read_text().startswith("<!doctype html>")
    assert main([*line, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["held"] == ["accounting"]
    assert main([*line, "--format", "html"]) == 0
    assert capsys.readouterr().out.startswith("<!doctype html>")


def test_a_violation_is_status_1_and_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (folder / "spec.toml").read_text().replace("epsilon = 2.2", "epsilon = 1.2")
    (folder / "spec.toml").write_text(text)
    assert main(["spec.toml", "--checks", "accounting"]) == 1
    found = capsys.readouterr()
    assert found.err == "python -m dpzero_theory.audit: spec.toml: VIOLATED: accounting\n"


def test_the_name_of_a_transcript() -> None:
    assert RUN == runs.RUN
