import re
from pathlib import Path

import pytest

from benchmarks.kit.rows import read_rows
from benchmarks.reports import side_by_side


def test_work_that_takes_twice_as_long_is_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "pyproject.toml").touch()
    (tmp_path / "other" / "slow.py").touch()
    work = "import os\nturn = lambda: sum(range(400_000 if os.path.exists('slow.py') else 100_000))\ntimed(turn)"
    monkeypatch.setattr(side_by_side, "WORK", {"spin": work})
    flags = ["--other", str(tmp_path / "other"), "--starts", "2", "--turns", "5", "--out", str(tmp_path / "rows")]
    assert side_by_side.EXPERIMENT.main(flags) == 0
    assert len(read_rows(tmp_path / "rows")) == 10
    found = re.search(r"spin: ([0-9.]+) \+- ", capsys.readouterr().out)
    assert found
    assert float(found[1]) < 0.6
    before = (tmp_path / "rows" / "rows.csv").read_bytes()
    side_by_side.EXPERIMENT.main(flags)
    assert (tmp_path / "rows" / "rows.csv").read_bytes() == before


def test_work_that_fails_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "WORK", {"broken": "raise ValueError('no such thing')"})
    with pytest.raises(RuntimeError, match=r"broken in .* failed: ValueError: no such thing"):
        list(side_by_side.turns("broken", tmp_path, 1))
