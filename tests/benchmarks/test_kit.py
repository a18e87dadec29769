"""Tests of the parts of the kit: the runner of experiments, rows made again, tables, times, peak memory, the GPU."""

import functools
import hashlib
import json
import shutil
import time
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import __main__ as entry
from benchmarks import reproduce
from benchmarks.kit import card
from benchmarks.kit.device import full_float32
from benchmarks.kit.experiment import Cell, Experiment, flag
from benchmarks.kit.peaks import peak, reset_peak
from benchmarks.kit.remake import Remake
from benchmarks.kit.rows import RESULTS, read_manifest, read_rows, read_text, rows_file
from benchmarks.kit.timing import median_ratio, timed
from dpzero_theory import privacy
from dpzero_theory.cli import integer

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


def test_every_script_is_listed_with_a_line_and_runs_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert names == list(entry.scripts())
    assert len(names) == sum("\nEXPERIMENT = " in path.read_text() for path in RESULTS.parent.rglob("*.py"))
    assert {"synthetic", "gpu", "audit_zoo"} <= set(names)
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)
    assert entry.main(["llm.many_directions", "--summary"]) == 0
    assert "| DPZero | chosen | 1000 | 64,000 |" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        entry.main(["no_such_script"])
    assert stop.value.code == 2


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


def reproduced(folder: Path) -> int:
    return reproduce.EXPERIMENT.main(["--results", str(folder), "--minutes", "5", "--seed", "1"])


def test_rows_come_back_and_a_planted_wrong_one_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("flint")
    assert reproduced(copied(tmp_path / "right")) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Passed: 2 came back"
    assert reproduced(copied(tmp_path / "wrong", (",confirmed,", ",refused,"))) == 1
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
    for said, verdict in (
        ("about 2.000001, not 1", "came back"),
        ("about 2.1, not 1", "DIFFERENT"),
        ("2", "DIFFERENT"),
    ):
        again = Remake(("x",), lambda _, said=said: [{"x": 1, "value": said}], tolerance=1e-6)
        assert reproduce.again(again, {"x": 1, "value": "about 2.0, not 1"}, 9)[0] == verdict
    assert reproduce.again(Remake(("x",), lambda _: [{"x": 0}]), row, 9)[0] == "DIFFERENT"
    assert reproduce.again(Remake(("x",), lambda _: time.sleep(9) or []), row, 0.05)[0] == "too long"

    def absent(_: object) -> list[dict[str, float]]:
        raise ModuleNotFoundError("No module named 'other'", name="other")

    assert reproduce.again(Remake(("x",), absent), row, 9)[0] == "not checked"


def test_every_folder_that_can_be_made_again_is_there() -> None:
    found = reproduce.remakes(RESULTS)
    assert {"synthetic", "slopes", "rank", "accounting_random", "violations"} <= set(found)
    for name, remake in found.items():
        assert rows_file(RESULTS / name), name
        assert remake.key, name


def test_the_error_is_the_spread_of_the_median() -> None:
    """The error stated with a median ratio is, on average, within 10% of the standard deviation of 2,000 medians.

    Each is the median of 41 normal ratios.
    """
    rng = np.random.default_rng(0)
    found = np.array([median_ratio(rng.normal(1.01, 0.05, 41), np.ones(41)) for _ in range(2000)])  # type: ignore[arg-type]
    assert found[:, 0].mean() == pytest.approx(1.01, abs=1e-3)
    assert found[:, 1].mean() == pytest.approx(found[:, 0].std(), rel=0.1)


def test_nothing_is_kept_of_earlier_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    question = functools.lru_cache(lambda: asked.append(1))
    monkeypatch.setattr(privacy, "question", question, raising=False)
    assert [timed(question).found for _ in range(3)] == [None] * 3
    assert len(asked) == 3


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="a peak can be forgotten on Linux only")
def test_a_freed_allocation_counts_until_the_reset() -> None:
    held = reset_peak("cpu")
    torch.ones(100 * 2**18)
    assert peak("cpu") - held == pytest.approx(100, abs=5)
    held = reset_peak("cpu")
    assert peak("cpu") - held < 5


def test_what_a_process_computes_on_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(name="NVIDIA Z", total_memory=24 * 2**30, uuid="8a6b")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: found)
    monkeypatch.setattr(card, "_told", lambda card: {"driver_version": "570.1", "asked": card})
    full_float32()
    assert card.accelerator("cuda") == {}  # Nothing has been computed on the card yet
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    described = card.accelerator("NVIDIA Z")
    assert (described["card"], described["memory_gib"], described["driver_version"]) == ("NVIDIA Z", 24.0, "570.1")
    assert described["asked"] == "GPU-8a6b"
    assert described["tf32"] == {"matmul": False, "cudnn": False}
