"""Tests of the check that committed rows can be made again: what does not come back is found."""

import hashlib
import json
import shutil
import time
from pathlib import Path

import pytest

from benchmarks import reproduce
from benchmarks.kit.remake import Remake
from benchmarks.kit.rows import RESULTS, read_text, rows_file


def copied(folder: Path, change: tuple[str, str] = ("", "")) -> Path:
    """Copies two committed rows that are quickly made again into `folder`, with a digest that fits them; `change`, a
    pair (old text, new text), changes the second row. Returns the folder."""
    place = folder / "checked"
    shutil.copytree(RESULTS / "checked", place)
    manifest, text = read_text(place)
    lines = text.splitlines(keepends=True)[:3]
    lines[2] = lines[2].replace(*change, 1)
    manifest["sha256"] = hashlib.sha256("".join(lines).encode()).hexdigest()
    head = (f"# {name}: {json.dumps(value)}\n" for name, value in manifest.items())
    (place / "rows.csv").write_text("".join([*head, *lines]))
    return folder


def run(folder: Path) -> int:
    return reproduce.EXPERIMENT.main(["--results", str(folder), "--minutes", "5", "--seed", "1"])


def test_rows_come_back_and_a_planted_wrong_one_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flint")
    assert run(copied(tmp_path / "right")) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Passed: 2 came back"
    assert run(copied(tmp_path / "wrong", (",confirmed,", ",refused,"))) == 1
    said = capsys.readouterr().out.splitlines()
    assert sorted(said[-1].removeprefix("Failed: ").split(", ")) == ["1 DIFFERENT", "1 came back"]
    assert sum("confirmed refused, made again confirmed" in line for line in said) == 1


def test_verdicts() -> None:
    row = {"x": 1, "value": 2.0, "seconds": 5.0}

    def made(value: float, **more: float) -> Remake:
        rows = [{"x": 0}, {"x": 1, "value": value, **more}]
        return Remake(("x",), lambda _: rows, varies=("seconds",), tolerance=1e-6)

    assert reproduce.again(made(2.0), row, 9)[0] == "came back"
    assert reproduce.again(made(2.0 + 1e-6), row, 9)[0] == "came back"
    assert reproduce.again(made(2.0 + 1e-5), row, 9) == ("DIFFERENT", "value 2.0, made again 2.00001")
    assert reproduce.again(Remake(("x",), lambda _: [{"x": 0}]), row, 9)[0] == "DIFFERENT"
    assert reproduce.again(Remake(("x",), lambda _: time.sleep(9) or []), row, 0.05)[0] == "too long"

    def absent(_: object) -> list[dict[str, float]]:
        raise ModuleNotFoundError("No module named 'other'", name="other")

    assert reproduce.again(Remake(("x",), absent), row, 9)[0] == "not checked"


def test_every_folder_that_can_be_made_again_is_there() -> None:
    found = reproduce.remakes(RESULTS)
    assert {"synthetic", "slopes", "rank", "accounting_corners", "violations"} <= set(found)
    for name, remake in found.items():
        assert rows_file(RESULTS / name), name
        assert remake.key, name
