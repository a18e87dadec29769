from pathlib import Path

import pytest

from dpzero_theory.audit.__main__ import main
from dpzero_theory.audit.adapters.folder import report_of_folder
from tests.optim.small import private


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = private(tmp_path / "run")
    run.run()
    run.close()
    return tmp_path / "run"


def test_what_a_folder_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of_folder(folder)
    assert report.named("held") == ["noise-size", "accounting", "steps"]
    assert report.violations == []
    assert main([str(folder), "--require", "noise-size", "accounting", "steps"]) == 0
    assert main([str(folder)]) == 3
    assert "the folder has neither the records nor the loop" in " ".join(capsys.readouterr().out.split())


def test_a_file_that_was_cut_off(folder: Path) -> None:
    file = folder / "run.sqlite"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"spec must be the folder of a private run; got .*malformed"):
        report_of_folder(folder)


def test_no_run(tmp_path: Path) -> None:
    (tmp_path / "run.sqlite").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="spec must be the folder of a private run"):
        report_of_folder(tmp_path)
