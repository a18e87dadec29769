"""Tests of the form of findings/, which is run by hand: see CONTRIBUTING.md, "Findings"."""

import os
import re
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "findings"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
FIELDS = ["Version", "Source", "Behaviour", "Output", "Matters", "Guessed"]


def test_there_are_a_dozen() -> None:
    assert len(SCRIPTS) >= 12
    assert sorted(FOLDER.iterdir()) == sorted([*SCRIPTS, FOLDER / "tables"])


@pytest.mark.parametrize("script", sorted((FOLDER / "tables").iterdir()), ids=lambda path: path.stem)
def test_a_table_says_what_it_is_made_of(script: Path) -> None:
    assert os.access(script, os.X_OK)
    head, body = script.read_text().split("\nset -euo pipefail\n")
    said = dict(re.findall(r"^# ([A-Z]\w+): (.*(?:\n#   .*)*)", head, re.M))
    assert list(said) == ["Version", "Source", "Output"]
    ((title, name),) = re.findall(r'the table "(.*)" of (docs/results/\w+.md)', said["Output"])
    page = (FOLDER.parent / name).read_text()
    (section,) = re.findall(rf"^## {title}\n.*?(?=\n## |\Z)", page, re.M | re.S)
    assert f"findings/tables/{script.name}" in section
    assert f"/../../{name}" in body
    assert re.search(r'! grep -vxFf ("\$page"|said.md) rows.md', body)
    assert "dpzero" not in body


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_finding_says_what_contributing_asks(script: Path) -> None:
    assert os.access(script, os.X_OK)
    text = script.read_text()
    head, body = text.split("\nset -euo pipefail\n")
    said = dict(re.findall(r"^# ([A-Z]\w+): (.*(?:\n#   .*)*)", head, re.M))
    assert list(said) == FIELDS
    assert re.search(r"\d\.\d", said["Version"])
    assert "https://" in said["Source"]
    assert re.fullmatch(r"[^;]+; seen: .+", said["Guessed"], re.S)
    assert 'work=$(mktemp -d); trap \'rm -rf "$work"\' EXIT; cd "$work"' in body
    (installed,) = re.findall(r"pip install -q --no-compile (?:--target lib )?(.*)", body)
    assert all(re.fullmatch(r"[\w-]+==[\d.]+", package) for package in installed.split())
    assert "dpzero" not in body
    assert "assert " in body  # it fails where the behaviour is another
    assert not subprocess.run(["bash", "-n", script], capture_output=True, check=True).stderr
