"""Tests of the runner of experiments.

It measures the cells of an experiment once each, in order, in one process or several, and reports them at the end.
"""

from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from benchmarks import __main__ as entry
from benchmarks.kit.experiment import Cell, Command, Experiment, flag
from benchmarks.kit.rows import RESULTS, read_manifest, read_rows
from dpzero_theory.cli import Parser, integer

MEASURED: list[int] = []


def square(options: Namespace, at: Cell) -> dict[str, Any]:
    MEASURED.append(at["x"])
    return {"square": at["x"] ** 2 * options.times}


SQUARES = Experiment(
    name="squares",
    about="Squares of numbers.",
    flags=[flag("--count", type=integer(1, 99), default=3), flag("--times", type=integer(1, 9), default=1)],
    key=("x",),
    fields=("square",),
    seeds=[7],
    settings=lambda options: {"times": options.times},
    cells=lambda options: ({"x": x} for x in range(options.count)),
    measure=square,
)


@pytest.fixture(autouse=True)
def nothing_is_measured_yet() -> None:
    MEASURED.clear()


def test_only_what_is_not_there_is_measured(tmp_path: Path) -> None:
    words = ["--out", str(tmp_path)]
    assert SQUARES.main(words) == 0
    assert SQUARES.main([*words, "--count", "5"]) == 0
    assert MEASURED == [0, 1, 2, 3, 4]
    assert read_rows(tmp_path)["square"].tolist() == [0, 1, 4, 9, 16]
    manifest = read_manifest(tmp_path)
    assert (manifest["seeds"], manifest["settings"]) == ([7], {"times": 1})


def test_rows_of_other_settings_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    SQUARES.main(["--out", str(tmp_path)])
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        SQUARES.main(["--out", str(tmp_path), "--times", "2"])
    said = capsys.readouterr().err
    assert stop.value.code == 2
    assert said.startswith("python -m benchmarks squares: --out: ")
    assert said.count("\n") == 1


def test_fresh_rows_are_made_anew_and_a_report_gives_the_status(tmp_path: Path) -> None:
    fresh = replace(SQUARES, fresh=True, report=lambda options: int(read_rows(options.out)["square"].sum() > 1))
    assert fresh.main(["--out", str(tmp_path), "--count", "2"]) == 0
    assert fresh.main(["--out", str(tmp_path), "--times", "2", "--count", "2"]) == 1
    assert MEASURED == [0, 1, 0, 1]


def test_a_cell_of_several_rows_is_done_when_all_its_keys_are(tmp_path: Path) -> None:
    """A cell that gives three rows is done once all three are there; rows that exist are not added again."""
    powers = replace(
        SQUARES,
        key=("x", "power"),
        fields=("value",),
        keys=lambda options, at: ({**at, "power": power} for power in range(options.times)),
        measure=lambda options, at: ({"power": power, "value": at["x"] ** power} for power in range(options.times)),
        settings={},
    )
    powers.main(["--out", str(tmp_path), "--times", "2"])
    powers.main(["--out", str(tmp_path), "--times", "3"])
    assert len(read_rows(tmp_path)) == 9


def test_what_is_told_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replace(SQUARES, told=lambda at, rows: f"x = {at['x']}").main(["--out", str(tmp_path)])
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in said[:3]] == ["1/3 x = 0", "2/3 x = 1", "3/3 x = 2"]


def test_a_failure_is_a_row_if_the_experiment_says_so(tmp_path: Path) -> None:
    def fail(options: Namespace, at: Cell) -> dict[str, Any]:
        raise FloatingPointError("no luck")

    with pytest.raises(FloatingPointError):
        replace(SQUARES, measure=fail).main(["--out", str(tmp_path)])
    replace(SQUARES, measure=fail, tolerant=True).main(["--out", str(tmp_path)])
    assert set(read_rows(tmp_path, failed=True)["status"]) == {"FloatingPointError: no luck"}
    SQUARES.main(["--out", str(tmp_path)])
    assert read_rows(tmp_path)["square"].tolist() == [0, 1, 4]


def test_any_executor_gives_the_rows_of_one_process(tmp_path: Path) -> None:
    several = replace(SQUARES, workers=1)
    several.main(["--out", str(tmp_path / "one")])
    several.main(["--out", str(tmp_path / "processes"), "--workers", "2"])
    with ThreadPoolExecutor(2) as threads:
        several.main(["--out", str(tmp_path / "threads")], threads)
    for name in ("one", "processes", "threads"):
        assert read_rows(tmp_path / name).sort_values("x")["square"].tolist() == [0, 1, 4]


def test_a_summary_is_printed_alone_or_after_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summed = replace(SQUARES, summary=lambda folder: f"sum {read_rows(folder)['square'].sum()}")
    summed.main(["--out", str(tmp_path)])
    assert capsys.readouterr().out.endswith("sum 5\n")
    summed.main(["--out", str(tmp_path), "--summary"])
    assert capsys.readouterr().out == "sum 5\n"
    with pytest.raises(SystemExit):
        summed.main(["--out", str(tmp_path / "none"), "--summary"])


def test_the_folder_is_by_name_or_by_the_options(tmp_path: Path) -> None:
    assert SQUARES.parser().parse_args([]).out == RESULTS / "squares"
    by = replace(SQUARES, folder=lambda options: tmp_path / f"{options.times}")
    by.main(["--times", "4"])
    assert len(read_rows(tmp_path / "4")) == 3


def test_a_command_has_the_status_that_its_body_gives() -> None:
    def body(parser: Parser, options: Namespace) -> int | None:
        return 3 if options.fail else None

    command = Command("body", "A body.", body, [flag("--fail", action="store_true")])
    assert (command.main([]), command.main(["--fail"])) == (0, 3)


def test_every_script_is_listed_with_a_line_and_runs_by_its_name(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert entry.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert names == list(entry.scripts())
    assert len(names) == sum("\nEXPERIMENT = " in path.read_text() for path in RESULTS.parent.rglob("*.py"))
    assert {"synthetic", "gpu", "audit_zoo"} <= set(names)
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)
    assert entry.main(["users", "--out", str(tmp_path)]) == 0
    pd.testing.assert_frame_equal(read_rows(tmp_path), read_rows(RESULTS / "users"), rtol=1e-9)
    with pytest.raises(SystemExit) as stop:
        entry.main(["no_such_script"])
    assert stop.value.code == 2
