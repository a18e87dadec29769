"""Every Python block of the README runs, in order, as a reader would paste it."""

import re
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"


def test_the_python_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.S)
    assert len(blocks) >= 4
    for block in blocks:
        exec(block, names)
    assert "theorem-3-sharp" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "prescribed").iterdir()} == {"data.key", "ledger.jsonl", "transcript.bin"}
    assert names["run"].releases_left == 0
